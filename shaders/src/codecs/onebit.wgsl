// 1-bit SGD: `kernels-gpu/src/arith/onebit.rs`. `bucketed/codec.wgsl` says what each function is for.
// The statistic is the largest magnitude on each side of zero, the sum of those aligned to it, and their counts; then it is the
// means, the lower one first.
// Edge cases: zeros of either sign are on the upper side. A bucket with a NaN or an infinity has two means NaN. Means on the
//   wire that are not finite, or out of order, decode to NaN.

const SCALARS: u32 = 2u;
const MAXIMA: u32 = 2u;
const SUMS: u32 = 3u;

fn maxima(value: u32) -> vec4<u32> {
    let magnitude = value & MAGNITUDE;
    return select(vec4<u32>(magnitude, 0u, 0u, 0u), vec4<u32>(0u, magnitude, 0u, 0u), value > SIGN);
}

fn looks_twice() -> bool {
    return true;
}

// The lower and the upper half of the aligned magnitude, the latter with a count of 1 in bit 24; on the upper side in the first
// two words, else in the others.
fn terms(value: u32, largest: vec4<u32>) -> vec4<u32> {
    let below = value > SIGN;
    let magnitude = value & MAGNITUDE;
    let exponent = magnitude >> 23u;
    let mantissa = (magnitude & FRACTION) | select(IMPLIED, 0u, exponent == 0u);
    let by = alignment(select(largest.x, largest.y, below)) - max(exponent, 1u);
    let aligned = select(0u, (mantissa << 8u) >> (by & 31u), by < 32u);
    let halves = vec2<u32>(aligned & 0xffffu, (aligned >> 16u) | 0x1000000u);
    return select(vec4<u32>(halves, 0u, 0u), vec4<u32>(0u, 0u, halves), below);
}

fn joined(low: u32, high: u32) -> vec3<u32> {
    let upper = high & 0xffffffu;
    return vec3<u32>(add64(vec2<u32>(low, 0u), vec2<u32>(upper << 16u, upper >> 16u)), 0u);
}

fn sums(added: vec4<u32>) -> Sums {
    return Sums(joined(added.x, added.y), joined(added.z, added.w), vec3<u32>(added.y >> 24u, added.w >> 24u, 0u));
}

fn shifts(largest: vec4<u32>, own: vec4<u32>) -> vec3<u32> {
    return vec3<u32>(
        min(alignment(largest.x) - alignment(own.x), 62u),
        min(alignment(largest.y) - alignment(own.y), 62u),
        0u,
    );
}

fn statistic(largest: vec4<u32>, total: Sums, factor: u32) -> vec2<u32> {
    if max(largest.x, largest.y) >= INF {
        return vec2<u32>(NAN);
    }
    let below = mean(total.b.xy, total.c.y, alignment(largest.y));
    let above = mean(total.a.xy, total.c.x, alignment(largest.x));
    return vec2<u32>(select(below | SIGN, 0u, below == 0u), above);
}

fn wire(means: vec2<u32>, beta: u32) -> vec2<u32> {
    return means;
}

// All ones, or zero for a poisoned bucket.
fn encoder(means: vec2<u32>) -> vec4<u32> {
    return vec4<u32>(select(0xffffffffu, 0u, (means.x & MAGNITUDE) >= INF), 0u, 0u, 0u);
}

// The values of the codes 0 and 1.
fn decoder(means: vec2<u32>) -> vec4<u32> {
    let not_finite = any((means & vec2<u32>(MAGNITUDE)) >= vec2<u32>(INF));
    if not_finite || f_greater(means.xxxx, means.yyyy).x {
        return vec4<u32>(NAN);
    }
    return vec4<u32>(means, 0u, 0u);
}

fn code(e: Columns, v: vec4<u32>, dither: vec4<u32>) -> vec4<u32> {
    return select(vec4<u32>(1u), vec4<u32>(0u), v > vec4<u32>(SIGN)) & e.x;
}

fn value(d: Columns, c: vec4<u32>) -> vec4<u32> {
    return select(d.x, d.y, (c & vec4<u32>(1u)) == vec4<u32>(1u));
}

fn poisoned(d: Columns) -> vec4<bool> {
    return d.y == vec4<u32>(NAN);
}
