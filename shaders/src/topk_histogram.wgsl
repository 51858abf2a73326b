@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read> residual: array<u32>;
@group(0) @binding(3) var<storage, read_write> workspace: array<atomic<u32>>;

// What: counts the keys among which the last kept one is (`kernels/topk/histogram.rs`).
// Arguments: SelectParams; input, or residual (FEEDBACK); workspace (the histograms are added to).
// Thread mapping: a team of 32 lanes takes 8 tiles one after another.
// Workgroup memory: none.
// Launch contract: a workgroup for each 64 of `tiles` tiles, from first_tile on.
// Traffic: the band, or the sketch, once; an atomic operation for each element of the range.
// Determinism: sums of integers.
// Edge cases: nothing is done for a segment whose last kept key is known.
@compute @workgroup_size(256)
fn topk_histogram(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread & 31u;
    for (var round = 0u; round < TILES_PER_TEAM; round++) {
        let of_launch = tile_of(group.x, thread, round);
        if of_launch < params.tiles {
            let tile = params.first_tile + of_launch;
            let index = segment_of(tile);
            let source = state(index, SOURCE);
            if source != DONE {
                let base = state(index, BASE);
                let span = state(index, RANGE);
                let left = state(index, LEFT);
                let shift = digit_shift(span, left);
                let histogram = params.histograms + index * params.bins;
                if source == IN_SKETCH {
                    // Both ranges are the same in the first round.
                    let high_base = state(index, HIGH_BASE);
                    let high_span = select(state(index, HIGH_RANGE), 0u, left == params.rounds);
                    let high_shift = digit_shift(max(high_span, 1u), left);
                    for (var at = lane; at < SKETCH_WORDS; at += 32u) {
                        let k = word(sketch_of(tile) + at);
                        if k - base < span {
                            atomicAdd(&workspace[histogram + ((k - base) >> shift)], 1u);
                        }
                        if k - high_base < high_span {
                            let bin = params.bins / 2u + ((k - high_base) >> high_shift);
                            atomicAdd(&workspace[histogram + bin], 1u);
                        }
                    }
                } else {
                    var visit = gradient(index, tile);
                    if word(params.info + 4u * tile) != NOWHERE {
                        visit = candidates(tile, source == IN_BAND);
                    }
                    for (var at = lane; at < visit.count; at += 32u) {
                        let offset = key(visited(visit, at)) - base;
                        if offset < span {
                            atomicAdd(&workspace[histogram + (offset >> shift)], 1u);
                        }
                    }
                }
            }
        }
    }
}
