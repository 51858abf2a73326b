@group(0) @binding(1) var<storage, read_write> workspace: array<atomic<u32>>;

// What each invocation's bins count.
var<workgroup> sums: array<u32, 256>;

fn put(at: u32, value: u32) {
    atomicStore(&workspace[at], value);
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
    // Tiles that found no room are read wherever candidates are looked through. Few of them cost less than a sketch.
    let is_stored = word(params.room + NO_ROOM) <= params.all_tiles / 8u;
    var source = DONE;
    put(own + LEFT, params.rounds);
    if table(index, UNSAMPLED) != 0u {
        source = IN_SKETCH;
    } else if keep < sure {
        source = select(IN_SKETCH, IN_CANDIDATES, is_stored);
        put(own + BASE, top);
        put(own + RANGE, no_key() - top);
        put(own + RANK, keep);
    } else if keep == sure {
        put(own + CUT, top);
    } else if keep < sure + band {
        source = select(IN_SKETCH, IN_BAND, is_stored);
        put(own + BASE, bottom);
        put(own + RANGE, top - bottom);
        put(own + RANK, keep - sure);
    } else if keep - sure - band <= below {
        put(own + CUT, bottom);
        put(own + TIES, keep - sure - band);
    } else {
        source = IN_SKETCH;
    }
    put(own + SOURCE, source);
    if source == IN_SKETCH {
        // Its keys are raised by 1.
        put(own + BASE, 1u);
        put(own + RANGE, no_key());
        put(own + RANK, table(index, SKETCH_LOW));
        put(own + HIGH_BASE, 1u);
        put(own + HIGH_RANGE, select(no_key(), 0u, table(index, SKETCH_HIGH) == 0u));
        put(params.room + ANY_SKETCH, 1u);
        put(own + HIGH_RANK, table(index, SKETCH_HIGH));
    }
}

// When both ranks of the sketch are known: filter again.
fn ask(index: u32) {
    let own = states() + index * STATE_WORDS;
    let all = table(index, SKETCH_LOW) == 0u;
    put(own + FLOOR, select(~(state(index, BASE) - 1u), 0xffffffffu, all));
    put(own + TIES, select(state(index, RANK), 0xffffffffu, all));
    // Keys end below the raised one. Where no element is sure, none has the key either that is one less.
    put(own + SURE, select(state(index, HIGH_BASE), no_key() + 1u, table(index, SKETCH_HIGH) == 0u));
    put(own + COUNT_SURE, 0u);
    put(own + COUNT_BAND, 0u);
    put(own + SOURCE, DONE);
    put(own + AGAIN, 1u);
}

// The round behind the filter's second one: as many are sure as are kept, or fewer, and with the band no fewer.
fn begin_again(index: u32) {
    let own = states() + index * STATE_WORDS;
    let bottom = ~state(index, FLOOR);
    let wanted = table(index, KEEP) - state(index, COUNT_SURE);
    // No other round is its first.
    put(own + AGAIN, 2u);
    put(own + TIES, 0u);
    if wanted == 0u {
        put(own + CUT, state(index, SURE));
    } else {
        put(own + SOURCE, IN_BAND);
        put(own + BASE, bottom);
        put(own + RANGE, state(index, SURE) - bottom);
        put(own + RANK, wanted);
        put(own + LEFT, params.rounds);
    }
}

// The bin that was found becomes the range of three words of the state.
fn narrow(own: u32, base: u32, span: u32, rank: u32, from_bin: u32, above: u32, shift: u32) {
    put(own + base, word(own + base) + from_bin);
    put(own + span, min(word(own + span) - from_bin, 1u << shift));
    put(own + rank, word(own + rank) - above);
}

// Finds the bins of two ranks, from the highest on, and narrows the state's ranges down to them; nothing for rank 0. Makes the
// histogram zero. All invocations arrive together.
fn find(index: u32, histogram: u32, bins: u32, low: u32, high: u32, shift: u32, thread: u32) {
    let each = (bins + 255u) / 256u;
    let first = min(thread * each, bins);
    let behind = min(first + each, bins);
    var own = 0u;
    for (var bin = first; bin < behind; bin++) {
        own += word(histogram + bin);
    }
    sums[thread] = own;
    workgroupBarrier();
    // What is counted above this invocation's bins.
    var above = 0u;
    for (var other = thread + 1u; other < 256u; other++) {
        above += sums[other];
    }
    // State and sums were read by all.
    storageBarrier();
    workgroupBarrier();
    let at = states() + index * STATE_WORDS;
    for (var bin = behind; bin > first; bin--) {
        let count = word(histogram + bin - 1u);
        put(histogram + bin - 1u, 0u);
        let from_bin = (bin - 1u) << shift;
        if above < low && above + count >= low {
            narrow(at, BASE, RANGE, RANK, from_bin, above, shift);
        }
        if above < high && above + count >= high {
            narrow(at, HIGH_BASE, HIGH_RANGE, HIGH_RANK, from_bin, above, shift);
        }
        above += count;
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
    let begins_again = params.round > params.rounds && state(index, AGAIN) == 1u;
    let begins = params.round == 0u || begins_again;
    storageBarrier();
    workgroupBarrier();
    if thread == 0u {
        if begins_again {
            begin_again(index);
        } else if begins {
            begin(index);
        }
    }
    storageBarrier();
    workgroupBarrier();
    let source = state(index, SOURCE);
    let span = state(index, RANGE);
    let rank = state(index, RANK);
    let high_span = state(index, HIGH_RANGE);
    let high_rank = select(0u, state(index, HIGH_RANK), source == IN_SKETCH);
    let left = state(index, LEFT);
    // A round that begins has a histogram of the band alone. Where another range is looked through it is of no use, and is
    // made zero without being looked at.
    let of_band = source == IN_BAND && state(index, BASE) == bottom && span == band;
    let wanted = source != DONE && (!begins || of_band);
    let is_first = left == params.rounds;
    var shift = 0u;
    var bins = 0u;
    var high_shift = 0u;
    var high_bins = 0u;
    if wanted {
        shift = digit_shift(span, left);
        bins = ((span - 1u) >> shift) + 1u;
        // In its first round the sketch has one range for both ranks.
        if high_rank != 0u && !is_first {
            high_shift = digit_shift(high_span, left);
            high_bins = ((high_span - 1u) >> high_shift) + 1u;
        }
    } else if begins && !fixed && band != 0u {
        bins = ((band - 1u) >> digit_shift(band, params.rounds)) + 1u;
    }
    let histogram = params.histograms + index * params.bins;
    let low_wanted = select(0u, rank, wanted);
    let high_wanted = select(0u, high_rank, wanted && is_first);
    find(index, histogram, bins, low_wanted, high_wanted, shift, thread);
    workgroupBarrier();
    find(index, histogram + params.bins / 2u, high_bins, 0u, select(0u, high_rank, high_bins != 0u), high_shift, thread);
    storageBarrier();
    workgroupBarrier();
    if thread == 0u && wanted {
        let own = states() + index * STATE_WORDS;
        put(own + LEFT, left - 1u);
        if rank == 0u {
            // There is no lower rank: of a key that no entry has there is nothing to count.
            put(own + BASE, 0u);
            put(own + RANGE, 1u);
        }
        if source != IN_SKETCH {
            if state(index, RANGE) == 1u {
                put(own + SOURCE, DONE);
                put(own + CUT, state(index, BASE) + 1u);
                put(own + TIES, state(index, RANK));
            }
        } else if left == 1u {
            ask(index);
        }
    }
}
