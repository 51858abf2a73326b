// The uniform quantizer: `kernels-gpu/src/arith/uniform.rs`. `bucketed/codec.wgsl` says what each function is for.
// The statistic is the extremes; while it is folded, as keys that order as the numbers do, the least one's
// complemented.
// Edge cases: NaN has a key beyond infinity's, on the side of its sign, so a bucket with one has an extreme that is not
//   finite, and then both scalars are NaN. Codes at or above the top level decode to the maximum. Extremes on the wire
//   that are not finite, or out of order, decode to NaN.

const SCALARS: u32 = 2u;
const MAXIMA: u32 = 2u;

// 2^-60: what is smaller is lifted by 2^64. 2^126: what is at least as large is halved.
const TINY: u32 = 0x21800000u;
const UP: u32 = 0x5f800000u;
const LOWER: u32 = 0x1f800000u;
const HUGE: u32 = 0x7e800000u;
const HALF: u32 = 0x3f000000u;
const TWO: u32 = 0x40000000u;

fn maxima(value: u32) -> vec4<u32> {
    let key = to_key(vec4<u32>(value)).x;
    return vec4<u32>(~key, key, 0u, 0u);
}

// Minimum and maximum.
fn statistic(largest: vec4<u32>, none: Sums, factor: u32) -> vec2<u32> {
    return vec2<u32>(from_key(~largest.x), from_key(largest.y));
}

fn not_finite(ends: vec2<u32>) -> bool {
    return any((ends & vec2<u32>(MAGNITUDE)) >= vec2<u32>(INF));
}

fn wire(ends: vec2<u32>, beta: u32) -> vec2<u32> {
    return select(f_mul(ends.xyxy, vec4<u32>(beta)).xy, vec2<u32>(NAN), not_finite(ends));
}

// The scale that keeps a range's arithmetic normal and finite, and its inverse.
fn range_lift(ends: vec2<u32>) -> vec2<u32> {
    let largest = max(ends.x & MAGNITUDE, ends.y & MAGNITUDE);
    if largest >= HUGE {
        return vec2<u32>(HALF, TWO);
    }
    return select(vec2<u32>(ONE, ONE), vec2<u32>(UP, LOWER), largest < TINY);
}

// Lift; lifted minimum; fixed-point levels per unit of lifted distance from it; all ones, or zero for a poisoned
// bucket.
fn encoder(ends: vec2<u32>) -> vec4<u32> {
    if not_finite(ends) {
        return vec4<u32>(ONE, 0u, 0u, 0u);
    }
    let up = range_lift(ends).x;
    let lifted = f_mul(ends.xyxy, vec4<u32>(up));
    let range = f_sub1(lifted.y, lifted.x);
    var inverse = 0u;
    // A range is not negative: more than zero is not zero.
    if range != 0u {
        let full = f_from_u32(levels() << fraction());
        inverse = f_div1(full, range);
        // A quotient that was rounded down may leave the maximum just below the top level. All are positive: bits order
        // as the numbers do.
        inverse = inverse + select(0u, 1u, f_mul1(range, inverse) < full);
    }
    return vec4<u32>(up, lifted.x, inverse, 0xffffffffu);
}

// Lifted minimum; lifted maximum; the lifted distance of two levels; what undoes the lift, or zero for a poisoned
// bucket.
fn decoder(ends: vec2<u32>) -> vec4<u32> {
    if not_finite(ends) || f_greater(ends.xxxx, ends.yyyy).x {
        return vec4<u32>(0u);
    }
    let lift = range_lift(ends);
    let lifted = f_mul(ends.xyxy, vec4<u32>(lift.x));
    let step = f_div1(f_sub1(lifted.y, lifted.x), f_from_u32(levels()));
    return vec4<u32>(lifted.xy, step, lift.y);
}

fn code(e: Columns, v: vec4<u32>, dither: vec4<u32>) -> vec4<u32> {
    var kept = v & e.w;
    if any(e.x != vec4<u32>(ONE)) {
        kept = f_mul(kept, e.x);
    }
    let magnitude = vec4<u32>(MAGNITUDE);
    // Both operations of f32 stand alone: what is between them is of integers, so that no compiler makes one of them.
    let about = bitcast<vec4<u32>>(bitcast<vec4<f32>>(kept) - bitcast<vec4<f32>>(e.y)) & magnitude;
    let top = vec4<u32>(levels() << fraction());
    var sum = min(guess(about, e.z), top) + dither;
    let rare = unsure(sum);
    if any(rare) {
        // Not negative; and where it is subnormal the product is below 1.
        let above = f_sub(kept, e.y) & magnitude;
        sum = min(scale_to_fixed(above, vec4<i32>(0), e.z), top) + dither;
    }
    return sum >> vec4<u32>(fraction());
}

fn value(d: Columns, c: vec4<u32>) -> vec4<u32> {
    let between = f_add(d.x, scale_by_code(d.z, c));
    var v = select(between, d.y, (c >= vec4<u32>(levels())) | f_greater(between, d.y));
    if any(d.w != vec4<u32>(ONE)) {
        v = f_mul(v, d.w);
    }
    return select(v, vec4<u32>(NAN), poisoned(d));
}

fn poisoned(d: Columns) -> vec4<bool> {
    return d.w == vec4<u32>(0u);
}
