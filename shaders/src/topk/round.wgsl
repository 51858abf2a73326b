// A round of counting the keys among which the last kept one is (`kernels/topk/histogram.rs`).

fn count_bin(index: u32, bin: u32) {
    let histogram = params.histograms + index * HISTOGRAM_WORDS;
    atomicAdd(&workspace[histogram + bin], 1u);
    atomicAdd(&workspace[histogram + HISTOGRAM_BINS + bin / 32u * SUM_WORDS], 1u);
}

fn count_sketch(index: u32, tile: u32, lane: u32) {
    let left = now[LEFT];
    let base = now[BASE];
    let span = now[RANGE];
    let shift = digit_shift(span, left);
    // Both ranges are the same in the first round.
    let high_base = now[HIGH_BASE];
    let high_span = select(now[HIGH_RANGE], 0u, left == params.rounds);
    let high_shift = digit_shift(max(high_span, 1u), left);
    for (var at = lane; at < SKETCH_WORDS; at += 32u) {
        let k = word(sketch_of(tile) + at);
        if k - base < span {
            count_bin(index, (k - base) >> shift);
        }
        if k - high_base < high_span {
            count_bin(index, HISTOGRAM_BINS / 2u + ((k - high_base) >> high_shift));
        }
    }
}

fn count_elements(index: u32, tile: u32, lane: u32) {
    let base = now[BASE];
    let span = now[RANGE];
    let shift = digit_shift(span, now[LEFT]);
    var visit = gradient(index, tile);
    if word(params.info + 4u * tile) != NOWHERE {
        visit = candidates(tile, now[SOURCE] == IN_BAND);
    }
    for (var at = lane; at < visit.count; at += 32u) {
        let offset = key(visited(visit, at)) - base;
        if offset < span {
            count_bin(index, offset >> shift);
        }
    }
}

// The tiles of a workgroup, segment by segment: a team of 32 lanes takes each eighth tile. All invocations arrive together.
fn count_group(group: u32, thread: u32) {
    let each = 8u * tiles_per_team(params.tiles);
    let behind = params.first_tile + min(group * each + each, params.tiles);
    var tile = params.first_tile + group * each;
    while tile < behind {
        narrow_down(tile, thread);
        let end = min(workgroupUniformLoad(&end_now), behind);
        let source = now[SOURCE];
        for (var own = tile + (thread >> 5u); own < end; own += 8u) {
            if source == IN_SKETCH {
                // In round 0 it is made, and counts its own.
                if params.round != 0u {
                    count_sketch(index_now, own, thread & 31u);
                }
            } else if source != DONE {
                count_elements(index_now, own, thread & 31u);
            }
        }
        tile = end;
    }
}
