@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> residual: array<u32>;
@group(0) @binding(3) var<storage, read> workspace: array<u32>;
@group(0) @binding(4) var<storage, read_write> indices: array<u32>;
@group(0) @binding(5) var<storage, read_write> values: array<u32>;

// Keys at or above a trial, two rounds in turn.
var<workgroup> reached: array<atomic<u32>, 2>;

// What: selects the largest of each segment, or block, of at most 8192 elements (`kernels/topk/block.rs`).
// Arguments: SelectParams; input, residual (FEEDBACK: becomes the sum; with SENT, zero where an entry is kept); workspace (the
// table, where there are segments); indices and values (a word for each entry of the whole selection).
// Thread mapping: a workgroup a segment; a team of 32 lanes takes 1024 elements, a lane the 32 that are 32 apart.
// Workgroup memory: 770 words, 3080 bytes.
// Launch contract: `tiles` workgroups; segments, or blocks, from first_tile on.
// Traffic: input (and residual) once, and what is kept once more, from cache; 8 bytes an entry.
// Determinism: integers only.
// Edge cases: of a last block that is shorter, at most all is kept.
@compute @workgroup_size(256)
fn topk_block(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let index = params.first_tile + group.x;
    var start = index * params.block;
    var elements = min(params.elements - start, params.block);
    var keep = min(params.keep, elements);
    var output = index * params.keep;
    if params.segments > 0u {
        start = table(index, START);
        elements = table(index, ELEMENTS);
        keep = table(index, KEEP);
        output = table(index, OUTPUT);
    }
    let extent = extent_of(start, elements, 0u);
    let lane = thread & 31u;
    let first_row = (thread >> 5u) * 32u;
    // A key that is not there is below all others, which are raised by 1.
    var own: array<u32, 32>;
    for (var q = 0u; q < 8u; q++) {
        let row = first_row + q * 4u;
        let e = vec4<u32>(extent.x + row * 32u + lane) + vec4<u32>(0u, 32u, 64u, 96u);
        let here = in_extent(e, extent);
        let at = e - vec4<u32>(params.first);
        let raw = fresh(at, here);
        if has(FLAG_FEEDBACK) {
            put_sums(at, here, raw);
        }
        let k = select(vec4<u32>(0u), keys(raw) + 1u, here);
        own[q * 4u] = k.x;
        own[q * 4u + 1u] = k.y;
        own[q * 4u + 2u] = k.z;
        own[q * 4u + 3u] = k.w;
    }
    clear_masks(thread);
    if thread < 2u {
        atomicStore(&reached[thread], 0u);
    }
    workgroupBarrier();
    // The largest key that as many reach as are kept, bit by bit.
    var last = 0u;
    var above = 0u;
    for (var round = 0u; round < 31u; round++) {
        let trial = last | (1u << (30u - round));
        var count = 0u;
        for (var slot = 0u; slot < 32u; slot++) {
            count += select(0u, 1u, own[slot] >= trial);
        }
        if count != 0u {
            atomicAdd(&reached[round & 1u], count);
        }
        workgroupBarrier();
        count = atomicLoad(&reached[round & 1u]);
        // Of the trials that too few reach, the last one is the key above the last kept one.
        if count >= keep {
            last = trial;
        } else {
            above = count;
        }
        workgroupBarrier();
        if thread == 0u {
            atomicStore(&reached[round & 1u], 0u);
        }
    }
    for (var q = 0u; q < 8u; q++) {
        let k = vec4<u32>(own[q * 4u], own[q * 4u + 1u], own[q * 4u + 2u], own[q * 4u + 3u]);
        set_a(first_row + q * 4u, lane, k > vec4<u32>(last));
        set_b(first_row + q * 4u, lane, k == vec4<u32>(last));
    }
    sum_masks(thread);
    if keep == 0u {
        return;
    }
    let ties = keep - above;
    for (var slot = 0u; slot < 32u; slot++) {
        let row = first_row + slot;
        let ties_before = before_in_b(row, lane);
        if own[slot] > last || (own[slot] == last && ties_before < ties) {
            let element = extent.x + row * 32u + lane;
            let to = output + before_in_a(row, lane) + min(ties_before, ties);
            indices[to] = element;
            values[to] = bits_of(settled(element - params.first));
            if has(FLAG_SENT) {
                residual[element - params.first] = 0u;
            }
        }
    }
}
