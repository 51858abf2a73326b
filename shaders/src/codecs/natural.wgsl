// Natural compression and dithering: `kernels-gpu/src/arith/natural.rs`. `bucketed/codec.wgsl` says what each function is for.
// The statistic is the largest magnitude.
// Edge cases: a bucket with a NaN or an infinity has a scale NaN. Codes above the top level decode to the scale. A scale on
//   the wire that is negative, infinite or NaN decodes to NaN.

const SCALARS: u32 = 1u;
const MAXIMA: u32 = 1u;

// Levels of natural compression; fewer are natural dithering.
const COMPRESSION: u32 = 127u;
// What natural dithering scales the largest magnitude to, 2^23, and its biased exponent.
const PARTS: u32 = 0x4b000000u;
const PARTS_EXPONENT: u32 = 150u;
// 2^-60: what is smaller is lifted by 2^64.
const TINY: u32 = 0x21800000u;
const UP: u32 = 0x5f800000u;

fn maxima(value: u32) -> vec4<u32> {
    return vec4<u32>(value & MAGNITUDE, 0u, 0u, 0u);
}

fn statistic(largest: vec4<u32>, none: Sums, factor: u32) -> vec2<u32> {
    return vec2<u32>(select(largest.x, NAN, largest.x >= INF), 0u);
}

// The biased exponent of the scale, which no magnitude passes.
fn top_of(largest: u32) -> u32 {
    return min((largest + FRACTION) >> 23u, 254u);
}

fn wire(largest: vec2<u32>, beta: u32) -> vec2<u32> {
    let scale = select(largest.x, top_of(largest.x) << 23u, levels() == COMPRESSION);
    return vec2<u32>(select(f_mul1(scale, beta), NAN, largest.x >= INF), 0u);
}

// All ones in z, or zero for a poisoned bucket. Of natural compression the exponent of the lowest level that is used, and
// levels below it that are not; of natural dithering what a magnitude is multiplied by, after a power of two that lifts it.
fn encoder(largest: vec2<u32>) -> vec4<u32> {
    if largest.x >= INF {
        return vec4<u32>(1u, 0u, 0u, 0u);
    }
    if levels() < COMPRESSION {
        let tiny = largest.x < TINY;
        let lifted = select(largest.x, f_mul1(largest.x, UP), tiny);
        return vec4<u32>(select(f_div1(PARTS, lifted), 0u, largest.x == 0u), select(ONE, UP, tiny), 0xffffffffu, 0u);
    }
    let lowest = i32(top_of(largest.x)) - i32(levels()) + 1;
    let base = max(lowest, 1);
    return vec4<u32>(u32(base), u32(base - lowest), 0xffffffffu, 0u);
}

// The value of the highest level; 1 if the bucket is poisoned.
fn decoder(scalars: vec2<u32>) -> vec4<u32> {
    if scalars.x >= INF {
        return vec4<u32>(0u, 1u, 0u, 0u);
    }
    return vec4<u32>(scalars.x, 0u, 0u, 0u);
}

fn code(e: Columns, v: vec4<u32>, dither: vec4<u32>) -> vec4<u32> {
    let kept = v & e.z;
    var magnitude = kept & vec4<u32>(MAGNITUDE);
    var base = e.x;
    var gap = e.y;
    if levels() < COMPRESSION {
        if any(e.y != vec4<u32>(ONE)) {
            magnitude = f_mul(magnitude, e.y);
        }
        magnitude = f_mul(magnitude, e.x);
        base = vec4<u32>(PARTS_EXPONENT + 1u - levels());
        gap = vec4<u32>(0u);
    }
    let one = vec4<u32>(1u);
    let field = magnitude >> vec4<u32>(23u);
    let exponent = max(field, one);
    let mantissa = (magnitude & vec4<u32>(FRACTION)) | (min(field, one) << vec4<u32>(23u));
    let above = max(exponent, base);
    let place = (mantissa >> min(above - exponent, vec4<u32>(31u))) + ((above - base) << vec4<u32>(23u));
    let used = (place + (dither >> vec4<u32>(fraction() - 23u))) >> vec4<u32>(23u);
    let level = min(used + select(gap, vec4<u32>(0u), used == vec4<u32>(0u)), vec4<u32>(levels()));
    return level | ((kept >> vec4<u32>(31u)) << vec4<u32>(bits() - 1u));
}

fn value(d: Columns, c: vec4<u32>) -> vec4<u32> {
    let sign = (c << vec4<u32>(32u - bits())) & vec4<u32>(SIGN);
    let level = min(c & vec4<u32>((1u << (bits() - 1u)) - 1u), vec4<u32>(levels()));
    let down = vec4<u32>(levels()) - level;
    // A power of two changes the exponent alone, but where that ends below the smallest normal number.
    var magnitude = d.x - (down << vec4<u32>(23u));
    let low = (d.x >> vec4<u32>(23u)) <= down;
    if any(low) {
        magnitude = select(magnitude, f_mul(d.x, (vec4<u32>(127u) - down) << vec4<u32>(23u)), low);
    }
    magnitude = select(magnitude, vec4<u32>(0u), level == vec4<u32>(0u));
    return select(magnitude | sign, vec4<u32>(NAN), poisoned(d));
}

fn poisoned(d: Columns) -> vec4<bool> {
    return d.y == vec4<u32>(1u);
}
