// The L2 norm of a bucket, in integers: `kernels-gpu/src/arith/norm.rs`.

// The exponent that a bucket with this largest magnitude is aligned to.
fn alignment(largest: u32) -> u32 {
    return max(largest >> 23u, 1u);
}

// A magnitude as a multiple of one unit in the last place of the alignment's binade, rounded down.
fn aligned(magnitude: u32, to: u32) -> u32 {
    let exponent = magnitude >> 23u;
    let mantissa = (magnitude & FRACTION) | select(IMPLIED, 0u, exponent == 0u);
    return mantissa >> min(to - max(exponent, 1u), 31u);
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

// A sum of 96 bits as one below 2^62, and how many times its root was halved: a quarter of it is a halving.
fn reduced(sum: vec3<u32>) -> vec3<u32> {
    var words = sum;
    var halvings = 0u;
    // At most 17 turns.
    while words.z != 0u || (words.y >> 30u) != 0u {
        words.x = (words.x >> 2u) | (words.y << 30u);
        words.y = (words.y >> 2u) | (words.z << 30u);
        words.z = words.z >> 2u;
        halvings = halvings + 1u;
    }
    return vec3<u32>(words.xy, halvings);
}

// A number times 2^exponent, at most the largest finite number.
fn scaled(number: u32, exponent: i32) -> u32 {
    let half = exponent / 2;
    return min(f_mul1(f_mul1(number, pow2(half)), pow2(exponent - half)), FINITE);
}

// The norm from the sum of aligned squares: sqrt(sum) units of the alignment's binade.
fn norm_from_sum(sum: vec3<u32>, to: u32) -> u32 {
    let words = reduced(sum);
    return scaled(f_from_u32(isqrt(words.xy)), i32(to) - 150 + i32(words.z));
}

// `factor` standard deviations about zero, from the sum of aligned squares of so many elements.
fn deviations(sum: vec3<u32>, elements: u32, to: u32, factor: u32) -> u32 {
    let words = reduced(sum);
    let count = max(elements, 1u);
    let root = isqrt(vec2<u32>(count << 30u, count >> 2u));
    let ratio = f_div1(f_from_u32(isqrt(words.xy)), f_from_u32(root));
    return scaled(f_mul1(ratio, factor), i32(to) - 135 + i32(words.z));
}
