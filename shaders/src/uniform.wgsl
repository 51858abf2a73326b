// The uniform quantizer's encoder and decoder: `kernels-gpu/src/arith/uniform.rs`.

const TINY: u32 = 0x21800000u;
const UP: u32 = 0x5f800000u;
const LOWER: u32 = 0x1f800000u;
// 2^126: what is at least as large is halved.
const HUGE: u32 = 0x7e800000u;
const HALF: u32 = 0x3f000000u;
const TWO: u32 = 0x40000000u;

fn not_finite(x: u32) -> bool {
    return (x & MAGNITUDE) >= INF;
}

// The scale that keeps a range's arithmetic normal and finite, and its inverse.
fn range_lift(low: u32, high: u32) -> vec2<u32> {
    let largest = max(low & MAGNITUDE, high & MAGNITUDE);
    if largest >= HUGE {
        return vec2<u32>(HALF, TWO);
    }
    if largest < TINY {
        return vec2<u32>(UP, LOWER);
    }
    return vec2<u32>(ONE, ONE);
}

// The scalars on the wire, from extremes that may be poisoned.
fn wire_of(low: u32, high: u32, beta: u32) -> vec2<u32> {
    if not_finite(low) || not_finite(high) {
        return vec2<u32>(NAN);
    }
    return f_mul(vec4<u32>(low, high, low, high), vec4<u32>(beta)).xy;
}

// Lifted minimum, lifted maximum, the lifted distance of two levels, and what undoes the lift: zero for a poisoned bucket.
fn decoder_of(low: u32, high: u32) -> vec4<u32> {
    if not_finite(low) || not_finite(high) || f_greater(vec4<u32>(low), vec4<u32>(high)).x {
        return vec4<u32>(0u);
    }
    let lift = range_lift(low, high);
    let ends = f_mul(vec4<u32>(low, high, low, high), vec4<u32>(lift.x));
    let step = f_div1(f_sub1(ends.y, ends.x), f_from_u32(params.levels));
    return vec4<u32>(ends.x, ends.y, step, lift.y);
}

// The values of four codes, with four decoders.
fn value_of(code: vec4<u32>, low: vec4<u32>, high: vec4<u32>, step: vec4<u32>, lower: vec4<u32>) -> vec4<u32> {
    let between = f_add(low, scale_by_integer(step, code));
    var v = select(between, high, (code >= vec4<u32>(params.levels)) | f_greater(between, high));
    if any(lower != vec4<u32>(ONE)) {
        v = f_mul(v, lower);
    }
    return select(v, vec4<u32>(NAN), lower == vec4<u32>(0u));
}
