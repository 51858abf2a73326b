// `gradwire_kernels::params::RandomParams`, word for word.
struct RandomParams {
    n: u32,
    entries: u32,
    first: u32,
    low_bits: u32,
    high_bits: u32,
    flags: u32,
    factor: u32,
    reserved: u32,
    keys_0: u32,
    keys_1: u32,
    keys_2: u32,
    keys_3: u32,
    keys_4: u32,
    keys_5: u32,
    keys_6: u32,
    keys_7: u32,
}

@group(0) @binding(0) var<uniform> params: RandomParams;

const FLAG_TAKE: u32 = 1u;
const FLAG_ACCUMULATE: u32 = 2u;
const FLAG_ADD: u32 = 4u;

fn mix(half: u32, key: u32, bits: u32) -> u32 {
    let product = (half ^ key) * 0x85ebca6bu;
    return ((product ^ (product >> 13u)) * 0xc2b2ae35u) >> (32u - bits);
}

// A round on either half: the upper, then the lower.
fn two_rounds(halves: vec2<u32>, upper_key: u32, lower_key: u32) -> vec2<u32> {
    let upper = halves.y ^ mix(halves.x, upper_key, params.high_bits);
    return vec2<u32>(halves.x ^ mix(upper, lower_key, params.low_bits), upper);
}

// Where the permutation puts a number below `n` (`arith/permutation.rs`).
fn place(number: u32) -> u32 {
    var at = number;
    loop {
        var halves = vec2<u32>(at & ((1u << params.low_bits) - 1u), at >> params.low_bits);
        halves = two_rounds(halves, params.keys_0, params.keys_1);
        halves = two_rounds(halves, params.keys_2, params.keys_3);
        halves = two_rounds(halves, params.keys_4, params.keys_5);
        halves = two_rounds(halves, params.keys_6, params.keys_7);
        at = (halves.y << params.low_bits) | halves.x;
        // The walk is a cycle, and it began below.
        if at < params.n {
            break;
        }
    }
    return at;
}

// Above infinity lies the one NaN.
fn canonical(value: u32) -> u32 {
    return select(value, NAN, (value & MAGNITUDE) > INF);
}

fn scaled(value: u32) -> u32 {
    if params.factor == 0x3f800000u {
        return canonical(value);
    }
    return f_mul1(value, params.factor);
}
