// Signs with a scale: `kernels-gpu/src/arith/sign.rs`. `bucketed/codec.wgsl` says what each function is for.
// The statistic is the largest magnitude, the sum of all aligned to it, and their count; then it is the scale.
// All but the scale: `bucketed/signs.wgsl`.
// Edge cases: a bucket with a NaN or an infinity has a scale NaN.

const SUMS: u32 = 2u;

fn looks_twice() -> bool {
    return !of_unit();
}

// The lower and the upper half of the aligned magnitude, and a count of 1.
fn terms(value: u32, largest: vec4<u32>) -> vec4<u32> {
    let magnitude = value & MAGNITUDE;
    let exponent = magnitude >> 23u;
    let mantissa = (magnitude & FRACTION) | select(IMPLIED, 0u, exponent == 0u);
    let by = alignment(largest.x) - max(exponent, 1u);
    let aligned = select(0u, (mantissa << 8u) >> (by & 31u), by < 32u);
    return vec4<u32>(aligned & 0xffffu, aligned >> 16u, 1u, 0u);
}

fn sums(added: vec4<u32>) -> Sums {
    let sum = add64(vec2<u32>(added.x, 0u), vec2<u32>(added.y << 16u, added.y >> 16u));
    return Sums(vec3<u32>(sum, 0u), vec3<u32>(added.z, 0u, 0u), vec3<u32>(0u));
}

fn shifts(largest: vec4<u32>, own: vec4<u32>) -> vec3<u32> {
    return vec3<u32>(min(alignment(largest.x) - alignment(own.x), 62u), 0u, 0u);
}

fn statistic(largest: vec4<u32>, total: Sums, factor: u32) -> vec2<u32> {
    if largest.x >= INF {
        return vec2<u32>(NAN, 0u);
    }
    if of_unit() {
        return vec2<u32>(0x3f800000u, 0u);
    }
    return vec2<u32>(mean(total.a.xy, total.b.x, alignment(largest.x)), 0u);
}
