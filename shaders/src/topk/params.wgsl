// `gradwire_kernels::params::SelectParams`, word for word.
struct SelectParams {
    elements: u32,
    first: u32,
    bound: u32,
    first_tile: u32,
    tiles: u32,
    segments: u32,
    flags: u32,
    dtype: u32,
    samples_log2: u32,
    round: u32,
    rounds: u32,
    states: u32,
    next: u32,
    counted: u32,
    histograms: u32,
    zeroed: u32,
    capacity: u32,
    capacity_again: u32,
    all_tiles: u32,
    room: u32,
    sums: u32,
    info: u32,
    counts: u32,
    values: u32,
    places: u32,
    band: u32,
    block: u32,
    keep: u32,
}

@group(0) @binding(0) var<uniform> params: SelectParams;

const FLAG_FEEDBACK: u32 = 1u;
const FLAG_SENT: u32 = 2u;
const FLAG_WARPS: u32 = 4u;
const FLAG_LAZY: u32 = 8u;
const FLAG_OF_SKETCH: u32 = 16u;
const FLAG_LEAVES_SENT: u32 = 32u;
const FLAG_FORGETS: u32 = 64u;

// Elements of a tile.
const TILE: u32 = 8192u;
// Tiles that one workgroup filters again; the first time it is one.
const TILES_AGAIN: u32 = 8u;
// Words of a tile's sketch: one for each 32 of its elements.
const SKETCH_WORDS: u32 = 256u;
// Words that a workgroup of the sample's kernel makes zero.
const ZEROED_WORDS: u32 = 4096u;
// Bins of a histogram of keys, and behind them the sums of each 32, this many words apart.
const SUM_WORDS: u32 = 8u;
const HISTOGRAM_BINS: u32 = 2048u;
const HISTOGRAM_WORDS: u32 = 2560u;
// Words of the room: what was given out, and for filtering again; tiles that found none; 1 where a segment is left to the
// sketch.
const AGAIN_ROOM: u32 = 1u;
const NO_ROOM: u32 = 2u;
const ANY_SKETCH: u32 = 3u;
// Room for candidates is given out in pieces of this many.
const PIECE: u32 = 16u;
// In place of where a tile's candidates are: they found no room.
const NOWHERE: u32 = 0xffffffffu;
// Above every key; above every key of a half.
const NO_KEY: u32 = 0x7f800002u;
const NO_HALF_KEY: u32 = 0x7fffu;

// Words of a segment in the table.
const SEGMENT_WORDS: u32 = 16u;
const START: u32 = 0u;
const ELEMENTS: u32 = 1u;
const KEEP: u32 = 2u;
const FIRST_TILE: u32 = 3u;
const OUTPUT: u32 = 4u;
const FIXED: u32 = 5u;
const FLOOR_FIXED: u32 = 6u;
const UNSAMPLED: u32 = 7u;
const SLOTS_LOG2: u32 = 8u;
const RANK_LOW: u32 = 9u;
const RANK_HIGH: u32 = 10u;
const SKETCH_LOW: u32 = 11u;
const SKETCH_HIGH: u32 = 12u;
const SENT_KEY: u32 = 13u;
const SENT_INDEX: u32 = 14u;

// Words of a segment's state.
const STATE_WORDS: u32 = 16u;
const FLOOR: u32 = 0u;
const SURE: u32 = 1u;
const AGAIN: u32 = 2u;
const SOURCE: u32 = 3u;
const BASE: u32 = 4u;
const RANGE: u32 = 5u;
const RANK: u32 = 6u;
const LEFT: u32 = 7u;
const COUNT_SURE: u32 = 8u;
const COUNT_BAND: u32 = 9u;
const COUNT_BELOW: u32 = 10u;
const HIGH_BASE: u32 = 11u;
const CUT: u32 = 12u;
const TIES: u32 = 13u;
const HIGH_RANGE: u32 = 14u;
const HIGH_RANK: u32 = 15u;

// Where the last kept key is looked for.
const DONE: u32 = 0u;
const IN_BAND: u32 = 1u;
const IN_CANDIDATES: u32 = 2u;
const IN_SKETCH: u32 = 3u;

fn has(flag: u32) -> bool {
    return (params.flags & flag) != 0u;
}

// Where the sample's guesses are of a segment: complements of floors and sure keys, in turn.
fn guesses_of(index: u32) -> u32 {
    return params.room - ((params.segments - index) << (params.samples_log2 + 1u));
}

// Where the sums are of what is counted of 64 tiles, 2 words each, or with `upper` of 64 times 64.
fn sums_of(upper: bool, of_sketch: bool) -> u32 {
    let lower_words = 2u * ((params.all_tiles + 63u) / 64u);
    let words = lower_words + 2u * ((params.all_tiles + 4095u) / 4096u);
    return params.sums + select(words, 0u, of_sketch) + select(0u, lower_words, upper);
}

// Where a tile's sketch is.
fn sketch_of(tile: u32) -> u32 {
    return params.values + params.capacity + tile * SKETCH_WORDS;
}

// Whether elements are stored as halves.
fn is_half() -> bool {
    return params.dtype != 0u && !has(FLAG_FEEDBACK);
}

fn no_key() -> u32 {
    return select(NO_KEY, NO_HALF_KEY, is_half());
}

// `arith::topk::rounds_of`.
fn rounds_of(span: u32) -> u32 {
    return select(2u, 3u, span > (1u << 22u));
}

// `arith::topk::digit_shift`.
fn digit_shift(span: u32, rounds: u32) -> u32 {
    let bits = 32u - countLeadingZeros(span - 1u);
    return bits - (bits + rounds - 1u) / rounds;
}
