// Ternary codes: `kernels-gpu/src/arith/ternary.rs`. `bucketed/codec.wgsl` says what each function is for.
// The statistic is the largest magnitude and, with clipping, the sum of the squares of magnitudes aligned to it, and their
// count; then it is the scale.
// Edge cases: a bucket with a NaN or an infinity has a scale NaN. A scale on the wire that is negative, infinite or NaN decodes
//   to NaN.

const SCALARS: u32 = 1u;
const MAXIMA: u32 = 1u;
const SUMS: u32 = 2u;

// 2^-60: what is smaller is lifted by 2^64.
const TINY: u32 = 0x21800000u;
const UP: u32 = 0x5f800000u;

fn maxima(value: u32) -> vec4<u32> {
    return vec4<u32>(value & MAGNITUDE, 0u, 0u, 0u);
}

fn looks_twice() -> bool {
    return clipped();
}

// A square of 24 bits, from two halves of 12: high * high, high * low, low * low; and a count of 1.
fn terms(value: u32, largest: vec4<u32>) -> vec4<u32> {
    let m = aligned(value & MAGNITUDE, alignment(largest.x));
    let high = m >> 12u;
    let low = m & 0xfffu;
    return vec4<u32>(high * high, high * low, low * low, 1u);
}

fn sums(added: vec4<u32>) -> Sums {
    let lower = add64(vec2<u32>(added.z, 0u), vec2<u32>(added.y << 13u, added.y >> 19u));
    let sum = add64(lower, vec2<u32>(added.x << 24u, added.x >> 8u));
    return Sums(vec3<u32>(sum, 0u), vec3<u32>(added.w, 0u, 0u), vec3<u32>(0u));
}

fn shifts(largest: vec4<u32>, own: vec4<u32>) -> vec3<u32> {
    return vec3<u32>(2u * min(alignment(largest.x) - alignment(own.x), 31u), 0u, 0u);
}

// The scale.
fn statistic(largest: vec4<u32>, total: Sums, factor: u32) -> vec2<u32> {
    if largest.x >= INF {
        return vec2<u32>(NAN, 0u);
    }
    if clipped() {
        return vec2<u32>(min(deviations(total.a, total.b.x, alignment(largest.x), factor), largest.x), 0u);
    }
    if to_nearest() {
        return vec2<u32>(min(f_mul1(largest.x, factor), FINITE), 0u);
    }
    return vec2<u32>(largest.x, 0u);
}

// A factor that went into the scale is none of the wire's.
fn wire(scale: vec2<u32>, factor: u32) -> vec2<u32> {
    let sent = select(f_mul1(scale.x, factor), scale.x, clipped() || to_nearest());
    return vec2<u32>(select(sent, NAN, scale.x >= INF), 0u);
}

// Fixed-point levels per unit of lifted magnitude; the exponent that lifts; all ones, or zero for a poisoned bucket; the scale.
fn encoder(scale: vec2<u32>) -> vec4<u32> {
    if scale.x >= INF || scale.x == 0u {
        return vec4<u32>(0u, 0u, select(0u, 0xffffffffu, scale.x == 0u), 0u);
    }
    let lifted = select(scale.x, f_mul1(scale.x, UP), scale.x < TINY);
    let inverse = f_div1(f_from_u32(1u << fraction()), lifted);
    return vec4<u32>(inverse, select(0u, 64u, scale.x < TINY), 0xffffffffu, scale.x);
}

// The scale; 1 if the bucket is poisoned.
fn decoder(scalars: vec2<u32>) -> vec4<u32> {
    if scalars.x >= INF {
        return vec4<u32>(0u, 1u, 0u, 0u);
    }
    return vec4<u32>(scalars.x, 0u, 0u, 0u);
}

// A magnitude above the scale counts as the scale.
fn code(e: Columns, v: vec4<u32>, dither: vec4<u32>) -> vec4<u32> {
    let kept = v & e.z;
    let magnitude = min(kept & vec4<u32>(MAGNITUDE), e.w);
    let top = vec4<u32>(1u << fraction());
    var sum = min(guess(magnitude, e.x), top) + dither;
    let rare = unsure(sum) | (e.y != vec4<u32>(0u));
    if any(rare) {
        sum = min(scale_to_fixed(magnitude, vec4<i32>(e.y), e.x), top) + dither;
    }
    let level = sum >> vec4<u32>(fraction());
    return level | ((kept >> vec4<u32>(31u)) << vec4<u32>(1u));
}

fn value(d: Columns, c: vec4<u32>) -> vec4<u32> {
    let one = vec4<u32>(1u);
    let magnitude = select(vec4<u32>(0u), d.x, (c & one) == one);
    return select(magnitude | ((c << vec4<u32>(30u)) & vec4<u32>(SIGN)), vec4<u32>(NAN), poisoned(d));
}

fn poisoned(d: Columns) -> vec4<bool> {
    return d.y == vec4<u32>(1u);
}
