// QSGD: `kernels-gpu/src/arith/qsgd.rs`. `bucketed/codec.wgsl` says what each function is for.
// The statistic is the largest magnitude and, with L2, the sum of the squares of magnitudes aligned to it; then it is
// the norm.
// Edge cases: a bucket with a NaN or an infinity has norm NaN. Codes above the top level decode to the norm. A norm on
//   the wire that is negative, infinite or NaN decodes to NaN.

const SCALARS: u32 = 1u;
const MAXIMA: u32 = 1u;
const SUMS: u32 = 1u;

// 2^-60: what is smaller is lifted by 2^64.
const TINY: u32 = 0x21800000u;
const UP: u32 = 0x5f800000u;
const LOWER: u32 = 0x1f800000u;

fn maxima(value: u32) -> vec4<u32> {
    return vec4<u32>(value & MAGNITUDE, 0u, 0u, 0u);
}

fn looks_twice() -> bool {
    return by_l2();
}

// A square of 24 bits, from two halves of 12: high * high, high * low, low * low.
fn terms(value: u32, largest: vec4<u32>) -> vec4<u32> {
    let m = aligned(value & MAGNITUDE, alignment(largest.x));
    let high = m >> 12u;
    let low = m & 0xfffu;
    return vec4<u32>(high * high, high * low, low * low, 0u);
}

fn sums(added: vec4<u32>) -> Sums {
    let lower = add64(vec2<u32>(added.z, 0u), vec2<u32>(added.y << 13u, added.y >> 19u));
    let sum = add64(lower, vec2<u32>(added.x << 24u, added.x >> 8u));
    return Sums(vec3<u32>(sum, 0u), vec3<u32>(0u), vec3<u32>(0u));
}

fn shifts(largest: vec4<u32>, own: vec4<u32>) -> vec3<u32> {
    return vec3<u32>(2u * min(alignment(largest.x) - alignment(own.x), 31u), 0u, 0u);
}

// The norm.
fn statistic(largest: vec4<u32>, total: Sums, factor: u32) -> vec2<u32> {
    if largest.x >= INF {
        return vec2<u32>(NAN, 0u);
    }
    if by_l2() {
        return vec2<u32>(norm_from_sum(total.a, alignment(largest.x)), 0u);
    }
    return vec2<u32>(largest.x, 0u);
}

fn wire(norm: vec2<u32>, beta: u32) -> vec2<u32> {
    return vec2<u32>(select(f_mul1(norm.x, beta), NAN, norm.x >= INF), 0u);
}

fn lifted(norm: u32) -> u32 {
    return select(norm, f_mul1(norm, UP), norm < TINY);
}

// Fixed-point levels per unit of lifted magnitude; the exponent that lifts; all ones, or zero for a poisoned bucket.
fn encoder(norm: vec2<u32>) -> vec4<u32> {
    if norm.x >= INF || norm.x == 0u {
        return vec4<u32>(0u, 0u, select(0u, 0xffffffffu, norm.x == 0u), 0u);
    }
    let inverse = f_div1(f_from_u32(levels() << fraction()), lifted(norm.x));
    return vec4<u32>(inverse, select(0u, 64u, norm.x < TINY), 0xffffffffu, 0u);
}

// The lifted value of one level; the lifted norm; 1 if what is decoded is lifted, 2 if the bucket is poisoned.
fn decoder(scalars: vec2<u32>) -> vec4<u32> {
    if scalars.x >= INF {
        return vec4<u32>(0u, 0u, 2u, 0u);
    }
    let top = lifted(scalars.x);
    return vec4<u32>(f_div1(top, f_from_u32(levels())), top, select(0u, 1u, scalars.x < TINY), 0u);
}

// The level, and the sign in the top bit.
fn code(e: Columns, v: vec4<u32>, dither: vec4<u32>) -> vec4<u32> {
    let kept = v & e.z;
    let magnitude = kept & vec4<u32>(MAGNITUDE);
    let top = vec4<u32>(levels() << fraction());
    var sum = min(guess(magnitude, e.x), top) + dither;
    let rare = unsure(sum) | (e.y != vec4<u32>(0u));
    if any(rare) {
        sum = min(scale_to_fixed(magnitude, vec4<i32>(e.y), e.x), top) + dither;
    }
    let level = sum >> vec4<u32>(fraction());
    return level | ((kept >> vec4<u32>(31u)) << vec4<u32>(bits() - 1u));
}

fn value(d: Columns, c: vec4<u32>) -> vec4<u32> {
    let sign = (c << vec4<u32>(32u - bits())) & vec4<u32>(SIGN);
    let level = c & vec4<u32>((1u << (bits() - 1u)) - 1u);
    var magnitude = min(scale_by_code(d.x, level), d.y);
    let low = d.z == vec4<u32>(1u);
    if any(low) {
        magnitude = select(magnitude, f_mul(magnitude, vec4<u32>(LOWER)), low);
    }
    return select(magnitude | sign, vec4<u32>(NAN), poisoned(d));
}

fn poisoned(d: Columns) -> vec4<bool> {
    return d.z == vec4<u32>(2u);
}
