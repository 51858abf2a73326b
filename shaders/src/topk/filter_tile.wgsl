@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> residual: array<u32>;
@group(0) @binding(3) var<storage, read_write> workspace: array<atomic<u32>>;

var<workgroup> index_of_tile: u32;
// Whether the segment asks to be filtered again, and whether it is left to the sketch.
var<workgroup> again: u32;
var<workgroup> unsampled: u32;
var<workgroup> first_candidate: u32;
var<workgroup> below: atomic<u32>;
// What is guessed: the complement of the lowest floor, and the highest sure key.
var<workgroup> guessed_floor: atomic<u32>;
var<workgroup> guessed_sure: atomic<u32>;

// Room for a tile's candidates, or nowhere.
fn reserve(bottom: u32, fixed: bool, count: u32, anew: bool) -> u32 {
    if count == 0u {
        return 0u;
    }
    // Where all elements are candidates, storing them saves nothing, and takes the room of others.
    if bottom != 0u || anew {
        let room = params.room + select(0u, AGAIN_ROOM, anew);
        let begin = select(0u, params.capacity, anew);
        let capacity = select(params.capacity, params.capacity_again, anew);
        // The count cannot wrap: a tile adds its elements at most, and a piece, once.
        let pieces = (count + PIECE - 1u) / PIECE * PIECE;
        let first = atomicAdd(&workspace[room], pieces);
        if first + pieces <= capacity {
            return begin + first;
        }
    }
    if !fixed {
        atomicAdd(&workspace[params.room + NO_ROOM], 1u);
    }
    return NOWHERE;
}

// Makes the tile's segment known to all, and what the sample guesses of it unless it is filtered `anew`.
fn load_job(tile: u32, thread: u32, anew: bool) {
    if thread == 0u {
        index_of_tile = segment_of(tile);
        again = state(index_of_tile, AGAIN);
        unsampled = table(index_of_tile, UNSAMPLED);
        atomicStore(&below, 0u);
        atomicStore(&guessed_floor, 0u);
        atomicStore(&guessed_sure, 0u);
    }
    workgroupBarrier();
    if !anew && thread < (1u << params.samples_log2) {
        let at = guesses_of(index_of_tile) + 2u * thread;
        atomicMax(&guessed_floor, word(at));
        atomicMax(&guessed_sure, word(at + 1u));
    }
    workgroupBarrier();
}

// Counts keys of the band, given from the floor on, in the first range in which the last kept key is looked for.
fn count_band(index: u32, open: vec4<bool>, offset: vec4<u32>, span: u32) {
    let histogram = params.histograms + index * HISTOGRAM_WORDS;
    let shift = digit_shift(span, rounds_of(span));
    for (var slot = 0u; slot < 4u; slot++) {
        if open[slot] {
            let bin = offset[slot] >> shift;
            atomicAdd(&workspace[histogram + bin], 1u);
            atomicAdd(&workspace[histogram + HISTOGRAM_BINS + bin / 32u * SUM_WORDS], 1u);
        }
    }
}

// All invocations arrive together. With `anew`, what the residual holds is filtered, by keys that are the tile's own: of the
// lowest of all candidates, elements are candidates up to where the sketch has enough of them, and of the highest that the
// last kept one may be they are sure as long as it has none too many.
fn filter_tile(tile: u32, thread: u32, anew: bool) {
    let index = index_of_tile;
    clear_masks(thread);
    let first_tile = table(index, FIRST_TILE);
    let extent = extent_of(table(index, START), table(index, ELEMENTS), tile - first_tile);
    let fixed = table(index, FIXED) != 0u;
    var base = ~atomicLoad(&guessed_floor);
    var top = max(atomicLoad(&guessed_sure), base);
    if anew {
        base = ~state(index, FLOOR);
        top = max(state(index, SURE), base);
    }
    if fixed {
        base = table(index, FLOOR_FIXED);
        top = base;
    }
    var bottom = base;
    var sure = top;
    if anew {
        let before_tile = between(true, first_tile, tile, thread);
        let high = before_tile.x + word(params.counts + 2u * tile);
        bottom += select(0u, 1u, before_tile.y >= state(index, TIES));
        sure = max(sure - select(0u, 1u, high <= state(index, HIGH_RANK)), bottom);
    }
    let lane = thread & 31u;
    let first_row = (thread >> 5u) * 32u;
    var below_here = 0u;
    let sent = sent_of(index);
    for (var q = 0u; q < 8u; q++) {
        let row = first_row + q * 4u;
        let e = vec4<u32>(extent.x + row * 32u + lane) + vec4<u32>(0u, 32u, 64u, 96u);
        let here = in_extent(e, extent);
        let at = e - vec4<u32>(params.first);
        let raw = fresh(at, here, anew, sent);
        if has(FLAG_FEEDBACK) && !anew {
            put_sums(at, here, raw);
        }
        let k = keys(raw);
        let is = here & (k >= vec4<u32>(bottom));
        set_a(row, lane, is);
        let open = is & (k < vec4<u32>(sure));
        set_b(row, lane, open);
        if any(open) {
            count_band(index, open, k - vec4<u32>(base), top - base);
        }
        let one = select(vec4<u32>(0u), vec4<u32>(1u), here & (k == vec4<u32>(bottom - 1u)));
        below_here += one.x + one.y + one.z + one.w;
    }
    if below_here != 0u {
        atomicAdd(&below, below_here);
    }
    let all = sum_masks(thread);
    if thread == 0u {
        let count = all & 0xffffu;
        let band = all >> 16u;
        first_candidate = reserve(bottom, fixed, count, anew);
        let info = params.info + 4u * tile;
        atomicStore(&workspace[info], first_candidate);
        atomicStore(&workspace[info + 1u], count);
        atomicStore(&workspace[info + 2u], band);
        // Filtered again: whether elements of the highest key that the last kept one may be are sure here.
        atomicStore(&workspace[info + 3u], select(atomicLoad(&below), select(0u, 1u, sure < top), anew));
        let at = params.states + index * STATE_WORDS;
        atomicAdd(&workspace[at + COUNT_SURE], count - band);
        atomicAdd(&workspace[at + COUNT_BAND], band);
        if !anew {
            atomicAdd(&workspace[at + COUNT_BELOW], atomicLoad(&below));
        }
    }
    let start = workgroupUniformLoad(&first_candidate);
    if start == NOWHERE {
        return;
    }
    for (var slot = 0u; slot < 32u; slot++) {
        let row = first_row + slot;
        if ((atomicLoad(&mask_a[row]) >> lane) & 1u) != 0u {
            // Its own element again: with feedback, the sum that it wrote.
            let raw = settled(extent.x + row * 32u + lane - params.first);
            let to = start + before_in_a(row, lane);
            atomicStore(&workspace[params.values + to], raw);
            atomicStore(&workspace[params.places + to], row * 32u + lane);
            if ((atomicLoad(&mask_b[row]) >> lane) & 1u) != 0u {
                atomicStore(&workspace[params.band + start + before_in_b(row, lane)], raw);
            }
        }
    }
}
