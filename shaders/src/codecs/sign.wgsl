// Signs with a scale: `kernels-gpu/src/arith/sign.rs`. `bucketed/codec.wgsl` says what each function is for.
// The statistic is the largest magnitude, the sum of all aligned to it, and their count; then it is the scale.
// Edge cases: zeros of either sign are above zero. A bucket with a NaN or an infinity has a scale NaN. A scale on the wire that
//   is negative, infinite or NaN decodes to NaN.

const SCALARS: u32 = 1u;
const MAXIMA: u32 = 1u;
const SUMS: u32 = 2u;

fn maxima(value: u32) -> vec4<u32> {
    return vec4<u32>(value & MAGNITUDE, 0u, 0u, 0u);
}

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

fn wire(scale: vec2<u32>, beta: u32) -> vec2<u32> {
    return scale;
}

// All ones, or zero for a poisoned bucket.
fn encoder(scale: vec2<u32>) -> vec4<u32> {
    return vec4<u32>(select(0xffffffffu, 0u, scale.x >= INF), 0u, 0u, 0u);
}

// The magnitude of every element.
fn decoder(scalars: vec2<u32>) -> vec4<u32> {
    return vec4<u32>(select(scalars.x, NAN, scalars.x >= INF), 0u, 0u, 0u);
}

fn code(e: Columns, v: vec4<u32>, dither: vec4<u32>) -> vec4<u32> {
    return select(vec4<u32>(1u), vec4<u32>(0u), v > vec4<u32>(SIGN)) & e.x;
}

fn value(d: Columns, c: vec4<u32>) -> vec4<u32> {
    let above = ((c & vec4<u32>(1u)) == vec4<u32>(1u)) | poisoned(d);
    return d.x | select(vec4<u32>(SIGN), vec4<u32>(0u), above);
}

fn poisoned(d: Columns) -> vec4<bool> {
    return d.x == vec4<u32>(NAN);
}
