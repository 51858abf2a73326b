// `gradwire_kernels::params::EncodeParams`, word for word.
struct EncodeParams {
    n: u32,
    first_unit: u32,
    bucket_log2: u32,
    bits: u32,
    levels: u32,
    fraction: u32,
    flags: u32,
    dtype: u32,
    beta: u32,
    key_low: u32,
    key_high: u32,
    tensor: u32,
    step_low: u32,
    step_high: u32,
    partials: u32,
    base: u32,
}

@group(0) @binding(0) var<uniform> params: EncodeParams;

const FLAG_L2: u32 = 1u;
const FLAG_NEAREST: u32 = 2u;
const FLAG_FEEDBACK: u32 = 4u;
const FLAG_WIDE: u32 = 8u;
const FLAG_GUARDED: u32 = 16u;
const FLAG_UNIT: u32 = 32u;
const FLAG_CLIPPED: u32 = 64u;
const FLAG_AT_LEAST: u32 = 128u;

// `bucket_log2` of a tensor that is one bucket.
const WHOLE: u32 = 31u;
// Elements of a workgroup.
const SPAN: u32 = 8192u;
// `shift` of a span that is all one bucket: the rows of 32 elements of a span are 256.
const ONE_BUCKET: u32 = 8u;

fn has(flag: u32) -> bool {
    return (params.flags & flag) != 0u;
}

// The launch's first item of the table.
fn first_item() -> u32 {
    return params.partials;
}

// What a codec asks.
fn bits() -> u32 {
    return params.bits;
}

fn levels() -> u32 {
    return params.levels;
}

fn fraction() -> u32 {
    return params.fraction;
}

fn by_l2() -> bool {
    return has(FLAG_L2);
}

fn of_unit() -> bool {
    return has(FLAG_UNIT);
}

fn clipped() -> bool {
    return has(FLAG_CLIPPED);
}

// Whether the factor is the smallest scale.
fn has_least() -> bool {
    return has(FLAG_AT_LEAST);
}

fn to_nearest() -> bool {
    return has(FLAG_NEAREST);
}
