@group(0) @binding(1) var<storage, read_write> workspace: array<u32>;

// What each invocation's bins count.
var<workgroup> sums: array<u32, 256>;

fn put(at: u32, value: u32) {
    workspace[at] = value;
}

// Round 0: among which elements the last kept key is to be looked for.
fn begin(index: u32) {
    let own = states() + index * STATE_WORDS;
    if table(index, FIXED) != 0u {
        let bottom = table(index, FLOOR_FIXED);
        put(own + FLOOR, ~bottom);
        put(own + SURE, bottom);
        put(own + CUT, bottom);
        return;
    }
    let bottom = ~state(index, FLOOR);
    let top = max(state(index, SURE), bottom);
    let keep = table(index, KEEP);
    let sure = state(index, COUNT_SURE);
    let band = state(index, COUNT_BAND);
    let below = state(index, COUNT_BELOW);
    // Where most candidates found no room, all of the segment are sought in the gradient and stored anew.
    let mostly_stored = workspace[params.room] / 2u <= params.capacity;
    put(own + LEFT, params.rounds);
    if keep < sure {
        put(own + SOURCE, select(IN_GRADIENT, IN_CANDIDATES, mostly_stored));
        put(own + BASE, top);
        put(own + RANGE, NO_KEY - top);
        put(own + RANK, keep);
    } else if keep == sure {
        put(own + CUT, top);
    } else if keep < sure + band {
        put(own + SOURCE, select(IN_GRADIENT, IN_BAND, mostly_stored));
        put(own + BASE, bottom);
        put(own + RANGE, top - bottom);
        put(own + RANK, keep - sure);
    } else if keep - sure - band <= below {
        put(own + CUT, bottom);
        put(own + TIES, keep - sure - band);
    } else {
        // The key below the floor is not among them: it was counted.
        put(own + SOURCE, IN_GRADIENT);
        put(own + BASE, 0u);
        put(own + RANGE, bottom - 1u);
        put(own + RANK, keep - sure - band - below);
    }
}

// Later rounds: the bin in which the last kept key is becomes the range.
fn go_on(index: u32, base: u32, span: u32, rank: u32, count: u32) {
    let own = states() + index * STATE_WORDS;
    let from_gradient = state(index, SOURCE) == IN_GRADIENT;
    put(own + BASE, base);
    put(own + RANGE, span);
    put(own + RANK, rank);
    if span == 1u {
        put(own + SOURCE, DONE);
        put(own + CUT, base + 1u);
        put(own + TIES, rank);
        if from_gradient {
            put(own + AGAIN, params.round + 1u);
            put(own + FLOOR, ~(base + 1u));
            put(own + SURE, base + 1u);
        }
    } else if from_gradient {
        let pieces = (table(index, ELEMENTS) / TILE + 2u) * (PIECE - 1u);
        let wanted = table(index, KEEP) - rank + count + pieces;
        if wanted <= params.capacity_again {
            put(own + SOURCE, IN_BAND);
            put(own + AGAIN, params.round + 1u);
            put(own + FLOOR, ~base);
            put(own + SURE, base + span);
        }
    }
}

// What: makes of a segment's counts a smaller range of keys (`kernels/topk/narrow.rs`).
// Arguments: SelectParams; workspace (table and room are read, states changed, histograms read and zeroed).
// Thread mapping: a workgroup a segment; an invocation takes neighbouring bins, the last one the highest.
// Workgroup memory: 256 words, 1024 bytes.
// Launch contract: tiles workgroups, the segments from first_tile on.
// Traffic: every bin twice.
// Determinism: integers only.
// Edge cases: nothing is done for a segment whose last kept key is known.
@compute @workgroup_size(256)
fn topk_narrow(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let index = params.first_tile + group.x;
    // Before the state changes: what the filter counted the band in.
    let bottom = ~state(index, FLOOR);
    let band = max(state(index, SURE), bottom) - bottom;
    let fixed = table(index, FIXED) != 0u;
    storageBarrier();
    workgroupBarrier();
    if params.round == 0u && thread == 0u {
        begin(index);
    }
    storageBarrier();
    workgroupBarrier();
    let base = state(index, BASE);
    let span = state(index, RANGE);
    let rank = state(index, RANK);
    let left = state(index, LEFT);
    let sought = state(index, SOURCE) != DONE;
    // In round 0 there is a histogram of the band alone. Where another range is looked through it is of no use, and is made
    // zero without being looked at.
    let wanted = sought && (params.round != 0u || (base == bottom && span == band));
    var shift = 0u;
    var bins = 0u;
    if wanted {
        shift = digit_shift(span, left);
        bins = ((span - 1u) >> shift) + 1u;
    } else if params.round == 0u && !fixed && band != 0u {
        bins = ((band - 1u) >> digit_shift(band, params.rounds)) + 1u;
    }
    let histogram = params.histograms + index * params.bins;
    let each = (bins + 255u) / 256u;
    let first = min(thread * each, bins);
    let behind = min(first + each, bins);
    var own = 0u;
    for (var bin = first; bin < behind; bin++) {
        own += workspace[histogram + bin];
    }
    sums[thread] = own;
    workgroupBarrier();
    // What is counted above this invocation's bins.
    var above = 0u;
    for (var other = thread + 1u; other < 256u; other++) {
        above += sums[other];
    }
    // The state was read by all.
    storageBarrier();
    workgroupBarrier();
    for (var bin = behind; bin > first; bin--) {
        let count = workspace[histogram + bin - 1u];
        workspace[histogram + bin - 1u] = 0u;
        if wanted && above < rank && above + count >= rank {
            put(states() + index * STATE_WORDS + LEFT, left - 1u);
            let from_bin = (bin - 1u) << shift;
            go_on(index, base + from_bin, min(span - from_bin, 1u << shift), rank - above, count);
        }
        above += count;
    }
}
