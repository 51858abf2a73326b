// Dynamic trees: `kernels-gpu/src/arith/tree.rs`. `bucketed/codec.wgsl` says what each function is for.
// The statistic is the largest magnitude.
// Edge cases: a bucket with a NaN or an infinity has a scale NaN. A scale on the wire that is negative, infinite or NaN
//   decodes to NaN.

const SCALARS: u32 = 1u;
const MAXIMA: u32 = 1u;

// 2^-60: what is smaller is lifted by 2^64.
const TINY: u32 = 0x21800000u;
const UP: u32 = 0x5f800000u;
const LOWER: u32 = 0x1f800000u;

// The highest level, in halves of a millionth of the scale.
const HIGHEST: u32 = 2000000u;

fn maxima(value: u32) -> vec4<u32> {
    return vec4<u32>(value & MAGNITUDE, 0u, 0u, 0u);
}

fn statistic(largest: vec4<u32>, none: Sums, factor: u32) -> vec2<u32> {
    return vec2<u32>(select(largest.x, NAN, largest.x >= INF), 0u);
}

fn wire(largest: vec2<u32>, beta: u32) -> vec2<u32> {
    return vec2<u32>(select(f_mul1(largest.x, beta), NAN, largest.x >= INF), 0u);
}

fn lifted(largest: u32) -> u32 {
    return select(largest, f_mul1(largest, UP), largest < TINY);
}

// Halves of a millionth per unit of lifted magnitude; whether it is lifted; all ones, or zero for a poisoned bucket.
fn encoder(largest: vec2<u32>) -> vec4<u32> {
    if largest.x >= INF || largest.x == 0u {
        return vec4<u32>(0u, 0u, select(0u, 0xffffffffu, largest.x == 0u), 0u);
    }
    let inverse = f_div1(f_from_u32(HIGHEST), lifted(largest.x));
    return vec4<u32>(inverse, select(0u, 1u, largest.x < TINY), 0xffffffffu, 0u);
}

// The lifted value of half a millionth; the lifted scale; 1 if what is decoded is lifted, 2 if the bucket is poisoned.
fn decoder(scalars: vec2<u32>) -> vec4<u32> {
    if scalars.x >= INF {
        return vec4<u32>(0u, 0u, 2u, 0u);
    }
    let top = lifted(scalars.x);
    return vec4<u32>(f_div1(top, f_from_u32(HIGHEST)), top, select(0u, 1u, scalars.x < TINY), 0u);
}

// A decade's line: the code is the magnitude times the one, plus the other. Binary32 without signs, whose bits rise with them.
fn slope(magnitude: vec4<u32>) -> vec4<u32> {
    var at = vec4<u32>(0x3f000000u);
    at = select(vec4<u32>(0x3de38e39u), at, magnitude < vec4<u32>(0x40000000u));
    at = select(vec4<u32>(0x3cb60b61u), at, magnitude < vec4<u32>(0x41a00000u));
    at = select(vec4<u32>(0x3b91a2b4u), at, magnitude < vec4<u32>(0x43480000u));
    at = select(vec4<u32>(0x3a690453u), at, magnitude < vec4<u32>(0x44fa0000u));
    at = select(vec4<u32>(0x393a69dcu), at, magnitude < vec4<u32>(0x469c4000u));
    at = select(vec4<u32>(0x3815217du), at, magnitude < vec4<u32>(0x48435000u));
    return at;
}

fn offset(magnitude: vec4<u32>) -> vec4<u32> {
    var at = vec4<u32>(0x00000000u);
    at = select(vec4<u32>(0x3f471c72u), at, magnitude < vec4<u32>(0x40000000u));
    at = select(vec4<u32>(0x40238e39u), at, magnitude < vec4<u32>(0x41a00000u));
    at = select(vec4<u32>(0x40c38e39u), at, magnitude < vec4<u32>(0x43480000u));
    at = select(vec4<u32>(0x41538e39u), at, magnitude < vec4<u32>(0x44fa0000u));
    at = select(vec4<u32>(0x41db8e39u), at, magnitude < vec4<u32>(0x469c4000u));
    at = select(vec4<u32>(0x425f8e39u), at, magnitude < vec4<u32>(0x48435000u));
    return at;
}

// The place between levels, with 24 bits of fraction.
fn place(magnitude: vec4<u32>) -> vec4<u32> {
    let sum = f_add(f_mul(magnitude, slope(magnitude)), offset(magnitude));
    return scale_to_fixed(sum, vec4<i32>(0), vec4<u32>(pow2(24)));
}

// The same by the GPU's own arithmetic, which need not round as binary32 says: beside it by less than 2^10.
fn guessed_place(magnitude: vec4<u32>, inverse: vec4<u32>) -> vec4<u32> {
    let near = bitcast<vec4<u32>>(bitcast<vec4<f32>>(magnitude) * bitcast<vec4<f32>>(inverse));
    let sum = bitcast<vec4<f32>>(near) * bitcast<vec4<f32>>(slope(near)) + bitcast<vec4<f32>>(offset(near));
    return vec4<u32>(sum * 16777216.0);
}

// The level, and the sign in the top bit.
fn code(e: Columns, v: vec4<u32>, dither: vec4<u32>) -> vec4<u32> {
    let kept = v & e.z;
    let magnitude = kept & vec4<u32>(MAGNITUDE);
    let top = vec4<u32>(127u << 24u);
    var sum = min(guessed_place(magnitude, e.x), top) + dither;
    let rare = unsure(sum) | (e.y != vec4<u32>(0u));
    if any(rare) {
        let up = select(vec4<u32>(0x3f800000u), vec4<u32>(UP), e.y != vec4<u32>(0u));
        sum = min(place(f_mul(f_mul(magnitude, up), e.x)), top) + dither;
    }
    return (sum >> vec4<u32>(24u)) | ((kept >> vec4<u32>(31u)) << vec4<u32>(7u));
}

fn value(d: Columns, c: vec4<u32>) -> vec4<u32> {
    let sign = (c << vec4<u32>(24u)) & vec4<u32>(SIGN);
    let k = c & vec4<u32>(0x7fu);
    // With 2^e the code's highest bit, the decade ends in 2 10^(e-1) below, and has steps of 9 5^(e-1) above.
    let e = firstLeadingBit(k | vec4<u32>(1u));
    var five = select(vec4<u32>(5u), vec4<u32>(1u), ((e - 1u) & vec4<u32>(1u)) == vec4<u32>(0u));
    five *= select(vec4<u32>(25u), vec4<u32>(1u), ((e - 1u) & vec4<u32>(2u)) == vec4<u32>(0u));
    five *= select(vec4<u32>(625u), vec4<u32>(1u), ((e - 1u) & vec4<u32>(4u)) == vec4<u32>(0u));
    let level = select(five * (9u * k + 9u - (vec4<u32>(8u) << e)), 2u * k, k < vec4<u32>(2u));
    var magnitude = select(scale_by_integer(d.x, level), d.y, k == vec4<u32>(127u));
    let low = d.z == vec4<u32>(1u);
    if any(low) {
        magnitude = select(magnitude, f_mul(magnitude, vec4<u32>(LOWER)), low);
    }
    return select(magnitude | sign, vec4<u32>(NAN), poisoned(d));
}

fn poisoned(d: Columns) -> vec4<bool> {
    return d.z == vec4<u32>(2u);
}
