// DRIVE: `kernels-gpu/src/arith/drive.rs`. `bucketed/codec.wgsl` says what each function is for.
// The statistic is the largest magnitude, and the sums of all aligned to it and of their squares; then it is the scale.
// All but the scale: `bucketed/signs.wgsl`.
// Edge cases: a bucket with a NaN or an infinity has a scale NaN.

const SUMS: u32 = 2u;

fn looks_twice() -> bool {
    return true;
}

// The aligned magnitude, of 24 bits; and its square, from two halves of 12: high * high, high * low, low * low.
fn terms(value: u32, largest: vec4<u32>) -> vec4<u32> {
    let m = aligned(value & MAGNITUDE, alignment(largest.x));
    let high = m >> 12u;
    let low = m & 0xfffu;
    return vec4<u32>(m, high * high, high * low, low * low);
}

fn sums(added: vec4<u32>) -> Sums {
    let lower = add64(vec2<u32>(added.w, 0u), vec2<u32>(added.z << 13u, added.z >> 19u));
    let squares = add64(lower, vec2<u32>(added.y << 24u, added.y >> 8u));
    return Sums(vec3<u32>(added.x, 0u, 0u), vec3<u32>(squares, 0u), vec3<u32>(0u));
}

fn shifts(largest: vec4<u32>, own: vec4<u32>) -> vec3<u32> {
    let by = alignment(largest.x) - alignment(own.x);
    return vec3<u32>(min(by, 62u), 2u * min(by, 31u), 0u);
}

fn statistic(largest: vec4<u32>, total: Sums, factor: u32) -> vec2<u32> {
    if largest.x >= INF {
        return vec2<u32>(NAN, 0u);
    }
    // Bits of the sum of magnitudes beyond 31, at most 24: they are cut off both sums. The quotient has units of 2^-8.
    let sum = total.a.xy;
    let long = 64u - select(32u + countLeadingZeros(sum.x), countLeadingZeros(sum.y), sum.y != 0u);
    let by = min(max(long, 31u) - 31u, 31u);
    let s = total.b;
    let fine = vec3<u32>(s.x << 8u, (s.y << 8u) | (s.x >> 24u), (s.z << 8u) | (s.y >> 24u));
    let low = shift64(fine.xy, by).x;
    let dividend = vec2<u32>(low, shift64(fine.yz, by).x);
    return vec2<u32>(mean(dividend, shift64(sum, by).x, alignment(largest.x)), 0u);
}
