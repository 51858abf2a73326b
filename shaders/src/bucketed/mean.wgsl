// The mean of magnitudes that were aligned and added up.

// floor(sum / count), below 2^32: a digit a turn.
fn quotient(sum: vec2<u32>, count: u32) -> u32 {
    var rest = sum.y;
    var digits = 0u;
    for (var turn = 0u; turn < 32u; turn++) {
        let over = rest >> 31u;
        rest = (rest << 1u) | ((sum.x >> (31u - turn)) & 1u);
        digits = digits << 1u;
        if over != 0u || rest >= count {
            rest = rest - count;
            digits = digits | 1u;
        }
    }
    return digits;
}

fn mean(sum: vec2<u32>, count: u32, to: u32) -> u32 {
    if count == 0u {
        return 0u;
    }
    let exponent = i32(to) - 158;
    let half = exponent / 2;
    return f_mul1(f_mul1(f_from_u32(quotient(sum, count)), pow2(half)), pow2(exponent - half));
}
