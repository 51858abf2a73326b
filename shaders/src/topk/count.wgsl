@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read> residual: array<u32>;
@group(0) @binding(3) var<storage, read_write> workspace: array<atomic<u32>>;

// What the teams count of a tile: kept elements, and those of the key below the cut.
var<workgroup> totals: array<atomic<u32>, 128>;

// Entries of a tile's sketch that have the keys of either rank, which are raised by 1.
fn count_tied(tile: u32, lane: u32) -> vec2<u32> {
    let bottom = ~now[FLOOR];
    let sure = max(now[SURE], bottom);
    var counts = vec2<u32>(0u);
    for (var at = lane; at < SKETCH_WORDS; at += 32u) {
        let k = word(sketch_of(tile) + at);
        counts += select(vec2<u32>(0u), vec2<u32>(1u), vec2<u32>(k) == vec2<u32>(sure, bottom + 1u));
    }
    return counts;
}

// Of a lane: elements of a tile from the cut on, and of the key below.
fn count_kept(index: u32, tile: u32, lane: u32) -> vec2<u32> {
    let info = params.info + 4u * tile;
    let cut = now[CUT];
    let bottom = ~now[FLOOR];
    var counts = vec2<u32>(0u);
    if cut == bottom {
        if lane == 0u {
            counts = vec2<u32>(word(info + 1u), word(info + 3u));
        }
        return counts;
    }
    var visit = gradient(index, tile);
    if word(info) != NOWHERE {
        let only_band = cut <= max(now[SURE], bottom);
        visit = candidates(tile, only_band);
        if only_band && lane == 0u {
            counts.x = word(info + 1u) - word(info + 2u);
        }
    }
    for (var at = lane; at < visit.count; at += 32u) {
        let k = key(visited(visit, at));
        counts.x += select(0u, 1u, k >= cut);
        counts.y += select(0u, 1u, k == cut - 1u);
    }
    return counts;
}

// What: narrows down which key is the last kept one, and counts what is kept of each tile; with OF_SKETCH, what its sketch has
// of the keys of both ranks (`kernels/topk/count.rs`).
// Arguments: SelectParams; input, or residual (FEEDBACK); workspace (the next states and counts are written, the counts' sums
// added to, histograms made zero).
// Thread mapping: a team of 32 lanes takes each eighth of a segment's tiles in the workgroup.
// Workgroup memory: 214 words, 856 bytes.
// Launch contract: a workgroup for each 8 * tiles_per_team(tiles) of `tiles` tiles, from first_tile on.
// Traffic: the band once; a state and up to 96 words of a histogram for each segment of a workgroup.
// Determinism: sums of integers.
// Edge cases: where all candidates are kept nothing is looked through; where no segment is left to the sketch, nothing of it
// is counted.
@compute @workgroup_size(256)
fn topk_count(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let of_sketch = has(FLAG_OF_SKETCH);
    let idle = of_sketch && word(params.room + ANY_SKETCH) == 0u;
    if thread < 128u {
        atomicStore(&totals[thread], 0u);
    }
    let each = 8u * tiles_per_team(params.tiles);
    let begin = params.first_tile + group.x * each;
    let behind = params.first_tile + min(group.x * each + each, params.tiles);
    var tile = begin;
    while tile < behind {
        narrow_down(tile, thread);
        let end = min(workgroupUniformLoad(&end_now), behind);
        let wanted = !idle && (!of_sketch || now[AGAIN] != 0u);
        for (var own = tile + (thread >> 5u); own < end; own += 8u) {
            if wanted {
                var counts = vec2<u32>(0u);
                if of_sketch {
                    counts = count_tied(own, thread & 31u);
                } else {
                    counts = count_kept(index_now, own, thread & 31u);
                }
                atomicAdd(&totals[2u * (own - begin)], counts.x);
                atomicAdd(&totals[2u * (own - begin) + 1u], counts.y);
            }
        }
        tile = end;
    }
    workgroupBarrier();
    if thread < 128u {
        if begin + thread / 2u < behind && !idle {
            let to = params.counts + 2u * begin + thread;
            atomicStore(&workspace[to], atomicLoad(&totals[thread]));
        }
    }
    if thread < 4u && !idle {
        // Of each kind of count, the sums of 64 tiles and of 64 times 64: a workgroup's tiles may lie in two.
        let upper = thread >= 2u;
        let shift = select(6u, 12u, upper);
        let sums = sums_of(upper, of_sketch) + (thread & 1u);
        var sum = 0u;
        for (var tile = begin; tile < behind; tile++) {
            sum += atomicLoad(&totals[2u * (tile - begin) + (thread & 1u)]);
            if tile + 1u == behind || ((tile + 1u) & 63u) == 0u {
                if sum != 0u {
                    atomicAdd(&workspace[sums + 2u * (tile >> shift)], sum);
                }
                sum = 0u;
            }
        }
    }
}
