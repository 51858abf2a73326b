// `gradwire_kernels::params::LowRankParams`, word for word.
//
// Unlike the other codecs, PowerSGD has sums of f32 here, and no bits that another backend would have to agree with. What
// WGSL leaves to an implementation is kept harmless: sums are short trees or a few dozen terms, whose error is bounded in any
// order and with any contraction; whether a number is finite is asked of its bits; what has to be more exact than f32 is done
// in integers (wide.wgsl). A subnormal number may count as zero.
struct LowRankParams {
    first: u32,
    bound: u32,
    first_tile: u32,
    matrices: u32,
    rank: u32,
    flags: u32,
    dtype: u32,
    tiles: u32,
    marks: u32,
    left: u32,
    right: u32,
    factor: u32,
    shares: u32,
    key_low: u32,
    key_high: u32,
    step_low: u32,
    step_high: u32,
    tensor: u32,
    steps: u32,
    plain: u32,
    plain_sent: u32,
    reserved_0: u32,
    reserved_1: u32,
    reserved_2: u32,
}

@group(0) @binding(0) var<uniform> params: LowRankParams;

const FLAG_RIGHT: u32 = 1u;
const FLAG_FEEDBACK: u32 = 2u;
const FLAG_FORM: u32 = 4u;
const FLAG_PRODUCT: u32 = 8u;
const FLAG_SCAN: u32 = 16u;
const FLAG_TAKE: u32 = 32u;
const FLAG_ORTHONORMAL: u32 = 64u;
const FLAG_SEED: u32 = 128u;
const FLAG_START: u32 = 256u;
const FLAG_FORMED: u32 = 512u;
const FLAG_COMMIT: u32 = 1024u;
const FLAG_SEND: u32 = 2048u;
const FLAG_GUARDED: u32 = 4096u;

// Rows, and columns, of a tile.
const TILE: u32 = 256u;
const TILE_WORDS: u32 = 4u;
const TILE_ODD: u32 = 3u;
// Columns of a factor that are worked on together.
const TOGETHER: u32 = 8u;
const PAD: u32 = 16u;

// Words of a matrix in the table.
const MATRIX_WORDS: u32 = 16u;
const FIRST: u32 = 0u;
const ROWS: u32 = 1u;
const COLUMNS: u32 = 2u;
const PADDED: u32 = 3u;
const SENT: u32 = 5u;
const SHARES: u32 = 7u;
const FIRST_GROUP: u32 = 9u;
const TENSOR: u32 = 11u;

// Words of a matrix's marks.
const MARK_WORDS: u32 = 4u;
const MARK_SENT: u32 = 0u;
const MARK_POISONED: u32 = 1u;
const MARK_WARY_FOR: u32 = 2u;
const MARK_OUTCOME: u32 = 3u;
// In MARK_SENT.
const DROPPED: u32 = 2u;
const WARY: u32 = 2u;

fn has(flag: u32) -> bool {
    return (params.flags & flag) != 0u;
}

fn padded(entries: u32) -> u32 {
    return (entries + (PAD - 1u)) / PAD * PAD;
}

fn is_finite(bits: u32) -> bool {
    return (bits & MAGNITUDE) < INF;
}

fn table(index: u32, at: u32) -> u32 {
    return word(index * MATRIX_WORDS + at);
}

fn mark(index: u32, which: u32) -> u32 {
    return word(params.marks + index * MARK_WORDS + which);
}
