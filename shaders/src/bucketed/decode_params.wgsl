// `gradwire_kernels::params::DecodeParams`, word for word.
struct DecodeParams {
    n: u32,
    bucket_log2: u32,
    bits: u32,
    levels: u32,
    flags: u32,
    weight: u32,
    payloads: u32,
    scalar_stride: u32,
    code_stride: u32,
    first_item: u32,
    reserved_0: u32,
    reserved_1: u32,
}

@group(0) @binding(0) var<uniform> params: DecodeParams;

const FLAG_ACCUMULATE: u32 = 1u;
const FLAG_WEIGHTED: u32 = 2u;

fn has(flag: u32) -> bool {
    return (params.flags & flag) != 0u;
}

// The launch's first item of the table.
fn first_item() -> u32 {
    return params.first_item;
}

// What a codec asks; of the last five only what encodes makes use.
fn bits() -> u32 {
    return params.bits;
}

fn levels() -> u32 {
    return params.levels;
}

fn fraction() -> u32 {
    return 0u;
}

fn by_l2() -> bool {
    return false;
}

fn of_unit() -> bool {
    return false;
}

fn clipped() -> bool {
    return false;
}

fn has_least() -> bool {
    return false;
}

fn to_nearest() -> bool {
    return false;
}
