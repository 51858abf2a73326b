@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read> residual: array<u32>;
@group(0) @binding(3) var<storage, read_write> workspace: array<atomic<u32>>;

// Keys at or above a trial, of both ranks in one word, two rounds in turn.
var<workgroup> reached: array<atomic<u32>, 2>;

// Where a sector of the sample begins in a segment of so many elements: `arith::topk::sampled`.
fn sampled(sector: u32, sectors_log2: u32, elements: u32, workgroup: u32) -> u32 {
    let part = elements >> sectors_log2;
    // sector * elements has up to 41 bits: by halves of the elements.
    let low = sector * (elements & 0xffffu);
    let high = sector * (elements >> 16u) + (low >> 16u);
    let begin = (high << (16u - sectors_log2)) | ((low & 0xffffu) >> sectors_log2);
    var mixed = (sector * 32u + workgroup + 1u) * 0x9e3779b1u;
    mixed = (mixed ^ (mixed >> 15u)) * 0x85ebca6bu;
    let space = select(0u, part - 8u, part > 8u);
    return begin + upper_half(mixed, space);
}

// The upper half of a product.
fn upper_half(a: u32, b: u32) -> u32 {
    let al = a & 0xffffu;
    let ah = a >> 16u;
    let bl = b & 0xffffu;
    let bh = b >> 16u;
    let middle = ah * bl + ((al * bl) >> 16u);
    let other = al * bh + (middle & 0xffffu);
    return ah * bh + (middle >> 16u) + (other >> 16u);
}

// What: guesses a segment's floor and sure key by a sample of it, and makes zero what all that follows adds to
// (`kernels/topk/sample.rs`).
// Arguments: SelectParams; input, residual (FEEDBACK), workspace (table; guesses are written or raised, words made zero).
// Thread mapping: 1 << samples_log2 workgroups a segment; 8 invocations read 8 neighbours. Those behind make words zero.
// Workgroup memory: 2 words.
// Launch contract: tiles << samples_log2 workgroups, the segments from first_tile on; and any number more.
// Traffic: 8 neighbours are a sector.
// Determinism: the places are the same everywhere, and maxima do not depend on order.
// Edge cases: of a segment whose floor is fixed, or without a sample, the guess is zero; one of which nothing is bound is left
// alone.
@compute @workgroup_size(256)
fn topk_sample(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let sampling = params.tiles << params.samples_log2;
    if group.x >= sampling {
        let first = (params.counted + group.x - sampling) * ZEROED_WORDS;
        for (var at = first + thread; at < min(first + ZEROED_WORDS, params.next); at += 256u) {
            atomicStore(&workspace[params.room + at], 0u);
        }
        return;
    }
    let index = params.first_tile + (group.x >> params.samples_log2);
    let of_segment = group.x & ((1u << params.samples_log2) - 1u);
    let start = max(table(index, START), params.first);
    let end = min(table(index, START) + table(index, ELEMENTS), params.first + params.bound);
    // No return: whether it is would not be known to be the same in all invocations at the barriers.
    let bound = start < end;
    let wanted = (table(index, FIXED) | table(index, UNSAMPLED)) == 0u && bound;
    let slots_log2 = table(index, SLOTS_LOG2);
    let sent = sent_of(index);
    var sample: array<u32, 32>;
    for (var slot = 0u; slot < 32u; slot++) {
        sample[slot] = 0u;
        if wanted && slot < (1u << slots_log2) {
            let sector = (slot * 256u + thread) / 8u;
            let within = sampled(sector, 5u + slots_log2, end - start, of_segment);
            let element = max((start + within) & ~7u, start) + (thread & 7u);
            if element < end {
                sample[slot] = key(fresh(vec4<u32>(element - params.first), vec4<bool>(true, false, false, false), false, sent).x);
            }
        }
    }
    let ranks = vec2<u32>(table(index, RANK_LOW), table(index, RANK_HIGH));
    var found = vec2<u32>(0u);
    if thread < 2u {
        atomicStore(&reached[thread], 0u);
    }
    workgroupBarrier();
    for (var round = 0u; round < 31u; round++) {
        let bit = 1u << (30u - round);
        let trial = found | vec2<u32>(bit);
        var count = 0u;
        for (var slot = 0u; slot < 32u; slot++) {
            count += select(0u, 1u, sample[slot] >= trial.x) + select(0u, 0x10000u, sample[slot] >= trial.y);
        }
        if count != 0u {
            atomicAdd(&reached[round & 1u], count);
        }
        workgroupBarrier();
        let both = atomicLoad(&reached[round & 1u]);
        found = select(found, trial, vec2<u32>(both & 0xffffu, both >> 16u) >= ranks);
        workgroupBarrier();
        // The next round but one adds to it, a barrier from here.
        if thread == 0u {
            atomicStore(&reached[round & 1u], 0u);
        }
    }
    if thread == 0u && bound {
        let at = guesses_of(index) + 2u * of_segment;
        var guess = vec2<u32>(0u);
        if wanted {
            let bottom = select(found.x + 1u, 0u, ranks.x == 0u);
            guess = vec2<u32>(~bottom, select(found.y, no_key(), ranks.y == 0u));
            if table(index, START) < params.first {
                // An earlier launch sampled what is bound before.
                guess = max(guess, vec2<u32>(word(at), word(at + 1u)));
            }
        }
        atomicStore(&workspace[at], guess.x);
        atomicStore(&workspace[at + 1u], guess.y);
    }
}
