@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read> residual: array<u32>;
@group(0) @binding(3) var<storage, read_write> workspace: array<atomic<u32>>;

// What the teams count of a tile: kept elements, and those of the key below the cut. Each word is used in one round.
var<workgroup> totals: array<atomic<u32>, 128>;

// What: counts what is kept of each tile; in round 1, what its sketch has of the keys of both ranks (`kernels/topk/histogram.rs`).
// Arguments: SelectParams; input, or residual (FEEDBACK); workspace (counts are written, their sums
// added to).
// Thread mapping: a team of 32 lanes takes 8 tiles one after another.
// Workgroup memory: 128 words, 512 bytes.
// Launch contract: a workgroup for each 64 of `tiles` tiles, from first_tile on.
// Traffic: the band once.
// Determinism: sums of integers.
// Edge cases: where all candidates are kept nothing is looked through; where no segment is left to the sketch, nothing is done
// in round 1.
@compute @workgroup_size(256)
fn topk_count(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread & 31u;
    let of_sketch = params.round != 0u;
    let idle = of_sketch && word(params.room + ANY_SKETCH) == 0u;
    if thread < 128u {
        atomicStore(&totals[thread], 0u);
    }
    workgroupBarrier();
    for (var round = 0u; round < TILES_PER_TEAM; round++) {
        let of_launch = tile_of(group.x, thread, round);
        if of_launch < params.tiles && !idle {
            let tile = params.first_tile + of_launch;
            let index = segment_of(tile);
            let info = params.info + 4u * tile;
            let cut = state(index, CUT);
            let slot = ((thread >> 5u) * TILES_PER_TEAM + round) * 2u;
            if of_sketch {
                if state(index, AGAIN) != 0u {
                    // The keys of either rank, which are raised by 1.
                    var high = 0u;
                    var low = 0u;
                    for (var at = lane; at < SKETCH_WORDS; at += 32u) {
                        let k = word(sketch_of(tile) + at);
                        high += select(0u, 1u, k == sure_of(index));
                        low += select(0u, 1u, k == floor_of(index) + 1u);
                    }
                    atomicAdd(&totals[slot], high);
                    atomicAdd(&totals[slot + 1u], low);
                }
            } else if cut == floor_of(index) {
                if lane == 0u {
                    atomicAdd(&totals[slot], word(info + 1u));
                    atomicAdd(&totals[slot + 1u], word(info + 3u));
                }
            } else {
                var visit = gradient(index, tile);
                if word(info) != NOWHERE {
                    let only_band = cut <= sure_of(index);
                    visit = candidates(tile, only_band);
                    if only_band && lane == 0u {
                        atomicAdd(&totals[slot], word(info + 1u) - word(info + 2u));
                    }
                }
                var kept = 0u;
                var ties = 0u;
                for (var at = lane; at < visit.count; at += 32u) {
                    let k = key(visited(visit, at));
                    kept += select(0u, 1u, k >= cut);
                    ties += select(0u, 1u, k == cut - 1u);
                }
                atomicAdd(&totals[slot], kept);
                atomicAdd(&totals[slot + 1u], ties);
            }
        }
    }
    workgroupBarrier();
    if thread < 128u {
        let of_launch = group.x * 64u + thread / 2u;
        if of_launch < params.tiles && !idle {
            let to = params.counts + 2u * (params.first_tile + of_launch) + (thread & 1u);
            atomicStore(&workspace[to], atomicLoad(&totals[thread]));
        }
    }
    if thread < 4u && !idle {
        // Of each kind of count, the sums of 64 tiles and of 64 times 64: a workgroup's tiles may lie in two.
        let upper = thread >= 2u;
        let shift = select(6u, 12u, upper);
        let sums = sums_of(upper, of_sketch) + (thread & 1u);
        let first = params.first_tile + group.x * 64u;
        let behind = params.first_tile + min(group.x * 64u + 64u, params.tiles);
        var sum = 0u;
        for (var tile = first; tile < behind; tile++) {
            sum += atomicLoad(&totals[2u * (tile - first) + (thread & 1u)]);
            if tile + 1u == behind || ((tile + 1u) & 63u) == 0u {
                if sum != 0u {
                    atomicAdd(&workspace[sums + 2u * (tile >> shift)], sum);
                }
                sum = 0u;
            }
        }
    }
}
