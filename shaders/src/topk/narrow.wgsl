// Narrowing down which key is the last kept one (`kernels/topk/narrow.rs`): a workgroup works a segment's state out from the one
// that the last pass left, and from what was counted since. The one that has the segment's first tile leaves it for the next.

var<workgroup> index_now: u32;
// The first tile behind the segment's.
var<workgroup> end_now: u32;
// The segment's state, as this pass has it; and its source again, and whether there is a histogram to be looked at.
var<workgroup> now: array<u32, 16>;
var<workgroup> source_now: u32;
var<workgroup> narrows: u32;
// Sums of 32 bins, or bins, while one is looked for; which sum it was, and what is counted above it.
var<workgroup> bins_now: array<u32, 64>;
var<workgroup> group_now: u32;
var<workgroup> above_now: u32;

fn put(at: u32, value: u32) {
    atomicStore(&workspace[at], value);
}

// Round 0: among which elements the last kept key is to be looked for.
fn begin(index: u32) {
    if table(index, FIXED) != 0u {
        let bottom = table(index, FLOOR_FIXED);
        now[FLOOR] = ~bottom;
        now[SURE] = bottom;
        now[CUT] = bottom;
        return;
    }
    let bottom = ~now[FLOOR];
    let top = max(now[SURE], bottom);
    let keep = table(index, KEEP);
    let sure = now[COUNT_SURE];
    let band = now[COUNT_BAND];
    let below = now[COUNT_BELOW];
    // Tiles that found no room are read wherever candidates are looked through. Few of them cost less than a sketch.
    let is_stored = word(params.room + NO_ROOM) <= params.all_tiles / 8u;
    var source = DONE;
    if table(index, UNSAMPLED) != 0u {
        source = IN_SKETCH;
    } else if keep < sure {
        source = select(IN_SKETCH, IN_CANDIDATES, is_stored);
        now[BASE] = top;
        // Keys end at the one of NaN.
        now[RANGE] = no_key() - top;
        now[RANK] = keep;
    } else if keep == sure {
        now[CUT] = top;
    } else if keep < sure + band {
        source = select(IN_SKETCH, IN_BAND, is_stored);
        now[BASE] = bottom;
        now[RANGE] = top - bottom;
        now[RANK] = keep - sure;
    } else if keep - sure - band <= below {
        now[CUT] = bottom;
        now[TIES] = keep - sure - band;
    } else {
        source = IN_SKETCH;
    }
    now[SOURCE] = source;
    now[LEFT] = rounds_of(now[RANGE]);
    if source == IN_SKETCH {
        // Its keys are raised by 1.
        now[BASE] = 1u;
        now[RANGE] = no_key();
        now[RANK] = table(index, SKETCH_LOW);
        now[LEFT] = params.rounds;
        now[HIGH_BASE] = 1u;
        now[HIGH_RANGE] = select(no_key(), 0u, table(index, SKETCH_HIGH) == 0u);
        now[HIGH_RANK] = table(index, SKETCH_HIGH);
    }
}

// When both ranks of the sketch are known: filter again.
fn ask(index: u32) {
    let all = table(index, SKETCH_LOW) == 0u;
    now[FLOOR] = select(~(now[BASE] - 1u), 0xffffffffu, all);
    now[TIES] = select(now[RANK], 0xffffffffu, all);
    // Keys end below the raised one. Where no element is sure, none has the key either that is one less.
    now[SURE] = select(now[HIGH_BASE], no_key() + 1u, table(index, SKETCH_HIGH) == 0u);
    now[COUNT_SURE] = 0u;
    now[COUNT_BAND] = 0u;
    now[SOURCE] = DONE;
    now[AGAIN] = 1u;
}

// The round behind the filter's second one: as many are sure as are kept, or fewer, and with the band no fewer.
fn begin_again(index: u32) {
    let bottom = ~now[FLOOR];
    let wanted = table(index, KEEP) - now[COUNT_SURE];
    // No other round is its first.
    now[AGAIN] = 2u;
    now[TIES] = 0u;
    if wanted == 0u {
        now[CUT] = now[SURE];
    } else {
        now[SOURCE] = IN_BAND;
        now[BASE] = bottom;
        now[RANGE] = now[SURE] - bottom;
        now[RANK] = wanted;
        now[LEFT] = rounds_of(now[RANGE]);
    }
}

// Makes the state of a tile's segment known to all, but for what a histogram tells. All invocations arrive together.
fn open_segment(tile: u32, thread: u32) {
    // What the words held before was read by all.
    workgroupBarrier();
    if thread == 0u {
        index_now = segment_of(tile);
    }
    let index = workgroupUniformLoad(&index_now);
    if thread < STATE_WORDS {
        now[thread] = state(index, thread);
    }
    // The sample's guesses, until there is a state.
    let guesses = select(0u, 2u << params.samples_log2, params.round == 0u);
    if thread < guesses {
        bins_now[thread] = word(guesses_of(index) + thread);
    }
    workgroupBarrier();
    if thread == 0u {
        for (var at = 0u; at < guesses; at += 2u) {
            now[FLOOR] = max(now[FLOOR], bins_now[at]);
            now[SURE] = max(now[SURE], bins_now[at + 1u]);
        }
        end_now = table(index, FIRST_TILE) + ((table(index, START) & 31u) + table(index, ELEMENTS) + TILE - 1u) / TILE;
        let begins_again = params.round > params.rounds && now[AGAIN] == 1u;
        narrows = select(0u, 1u, now[SOURCE] != DONE);
        if params.round == 0u || begins_again {
            // What the filter counted the band in.
            let bottom = ~now[FLOOR];
            let band = max(now[SURE], bottom) - bottom;
            if begins_again {
                begin_again(index);
            } else {
                begin(index);
            }
            // Where another range is looked through, what was counted is of no use.
            narrows = select(0u, 1u, now[SOURCE] == IN_BAND && now[BASE] == bottom && now[RANGE] == band);
        }
        source_now = now[SOURCE];
    }
    workgroupBarrier();
}

// The bin in which the element of a rank is, counted from the highest, becomes the range of three words of the state; nothing
// for rank 0. All invocations arrive together.
fn to_bin(histogram: u32, first: u32, shift: u32, base: u32, width: u32, rank: u32, wanted: u32, thread: u32) {
    let span = now[width];
    let groups = ((max(span, 1u) - 1u) >> shift) / 32u + 1u;
    if thread < 64u {
        bins_now[thread] = 0u;
        if thread < groups {
            bins_now[thread] = word(histogram + HISTOGRAM_BINS + (first / 32u + thread) * SUM_WORDS);
        }
    }
    if thread == 0u {
        group_now = 0u;
        above_now = 0u;
    }
    workgroupBarrier();
    if thread < 64u {
        var above = 0u;
        for (var other = thread + 1u; other < 64u; other++) {
            above += bins_now[other];
        }
        if above < wanted && above + bins_now[thread] >= wanted {
            group_now = thread;
            above_now = above;
        }
    }
    workgroupBarrier();
    let group = group_now;
    if thread < 32u {
        bins_now[thread] = word(histogram + first + group * 32u + thread);
    }
    workgroupBarrier();
    if thread < 32u {
        var above = above_now;
        for (var other = thread + 1u; other < 32u; other++) {
            above += bins_now[other];
        }
        if above < wanted && above + bins_now[thread] >= wanted {
            let from_bin = (group * 32u + thread) << shift;
            now[base] += from_bin;
            now[width] = min(span - from_bin, 1u << shift);
            now[rank] = wanted - above;
        }
    }
    workgroupBarrier();
}

// A round. All invocations arrive together.
fn narrow_segment(thread: u32) {
    let histogram = params.counted + index_now * HISTOGRAM_WORDS;
    let in_sketch = now[SOURCE] == IN_SKETCH;
    let left = now[LEFT];
    let low = now[RANK];
    let high = select(0u, now[HIGH_RANK], in_sketch);
    let shift = digit_shift(max(now[RANGE], 1u), left);
    let high_shift = digit_shift(max(now[HIGH_RANGE], 1u), left);
    // In its first round the sketch has one range for both ranks.
    let high_first = select(HISTOGRAM_BINS / 2u, 0u, left == params.rounds);
    to_bin(histogram, 0u, shift, BASE, RANGE, RANK, low, thread);
    to_bin(histogram, high_first, high_shift, HIGH_BASE, HIGH_RANGE, HIGH_RANK, high, thread);
    if thread == 0u {
        if low == 0u {
            // There is no lower rank: of a key that no entry has there is nothing to count.
            now[BASE] = 0u;
            now[RANGE] = 1u;
        }
        now[LEFT] = left - 1u;
        if in_sketch {
            if left == 1u {
                ask(index_now);
            }
        } else if now[RANGE] == 1u {
            now[SOURCE] = DONE;
            now[CUT] = now[BASE] + 1u;
            now[TIES] = now[RANK];
        }
    }
    workgroupBarrier();
}

// What is left for the next pass, where the tile is the segment's first: the state, and zeros where that will be counted.
fn leave_segment(tile: u32, thread: u32) {
    let index = index_now;
    if tile == table(index, FIRST_TILE) {
        if thread < STATE_WORDS {
            put(params.next + index * STATE_WORDS + thread, now[thread]);
        }
        let source = now[SOURCE];
        // The sketch is followed by filtering again, which counts too.
        let asks = params.round == params.rounds && now[AGAIN] != 0u;
        if source == IN_SKETCH || (source != DONE && now[LEFT] > 1u) || asks {
            for (var at = thread; at < HISTOGRAM_WORDS; at += 256u) {
                put(params.zeroed + index * HISTOGRAM_WORDS + at, 0u);
            }
        }
        if params.round == 0u && source == IN_SKETCH && thread == 0u {
            put(params.room + ANY_SKETCH, 1u);
        }
    }
}

// Makes the state of a tile's segment known to all, as this pass has it. All invocations arrive together.
fn narrow_down(tile: u32, thread: u32) {
    open_segment(tile, thread);
    if workgroupUniformLoad(&narrows) != 0u {
        narrow_segment(thread);
    }
    leave_segment(tile, thread);
}
