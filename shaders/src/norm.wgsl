// The L2 norm of a bucket, in integers: `kernels-gpu/src/arith/norm.rs`. A u64 is its low word, then its high word.

// The exponent that a bucket with this largest magnitude is aligned to.
fn alignment(largest: u32) -> u32 {
    return max(largest >> 23u, 1u);
}

// Magnitudes as multiples of one unit in the last place of the alignment's binade, rounded down.
fn aligned(magnitude: vec4<u32>, to: vec4<u32>) -> vec4<u32> {
    let exponent = magnitude >> vec4<u32>(23u);
    let implied = select(vec4<u32>(IMPLIED), vec4<u32>(0u), exponent == vec4<u32>(0u));
    let mantissa = (magnitude & vec4<u32>(FRACTION)) | implied;
    return mantissa >> min(to - max(exponent, vec4<u32>(1u)), vec4<u32>(31u));
}

fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

// Shifted right by `by`, 0 to 62.
fn shift64(a: vec2<u32>, by: u32) -> vec2<u32> {
    if by == 0u {
        return a;
    }
    if by >= 32u {
        return vec2<u32>(a.y >> (by - 32u), 0u);
    }
    return vec2<u32>((a.x >> by) | (a.y << (32u - by)), a.y >> by);
}

// The largest integer whose square is at most `value`, for values below 2^62: a digit a turn.
fn isqrt(value: vec2<u32>) -> u32 {
    var rest = 0u;
    var root = 0u;
    for (var turn = 0u; turn < 31u; turn++) {
        let at = 60u - 2u * turn;
        let two = (select(value.x, value.y, at >= 32u) >> (at & 31u)) & 3u;
        // In the last turn the rest takes 33 bits, of which this one is the top.
        let over = rest >> 30u;
        let trial = (root << 2u) | 1u;
        rest = (rest << 2u) | two;
        root = root << 1u;
        if over != 0u || rest >= trial {
            rest = rest - trial;
            root = root | 1u;
        }
    }
    return root;
}

// The norm from the sum of aligned squares: sqrt(sum) * 2^halvings units of the alignment's binade, at most the largest
// finite number.
fn norm_from_sum(sum: vec2<u32>, halvings: u32, to: u32) -> u32 {
    let exponent = i32(to) - 150 + i32(halvings);
    let half = exponent / 2;
    let root = f_from_u32(isqrt(sum));
    return min(f_mul1(f_mul1(root, pow2(half)), pow2(exponent - half)), FINITE);
}
