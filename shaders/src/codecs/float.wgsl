// Small formats, floating-point or of integers: `kernels-gpu/src/arith/minifloat.rs`. `bucketed/codec.wgsl` says what each function
// is for. The statistic is the largest magnitude, and the smallest biased exponent that a scale may have.
// Edge cases: a bucket with a NaN or an infinity has a scale NaN. Codes above the largest number decode to it. A scale on the
//   wire that is negative, infinite or NaN decodes to NaN.

const SCALARS: u32 = 1u;
const MAXIMA: u32 = 1u;

// Of the format, which goes by its levels: bits of the mantissa, and the biased exponent of the lowest normal number.
fn mantissa_bits() -> u32 {
    switch levels() {
        case 7u: { return 1u; }
        case 123u: { return 2u; }
        case 126u: { return 3u; }
        case 127u: { return 6u; }
        case 31743u: { return 10u; }
        case 32767u: { return 14u; }
        default: { return 7u; }
    }
}

fn lowest() -> u32 {
    switch levels() {
        case 7u, 127u, 32767u: { return 127u; }
        case 123u, 31743u: { return 113u; }
        case 126u: { return 121u; }
        default: { return 1u; }
    }
}

fn maxima(value: u32) -> vec4<u32> {
    return vec4<u32>(value & MAGNITUDE, 0u, 0u, 0u);
}

fn statistic(largest: vec4<u32>, none: Sums, factor: u32) -> vec2<u32> {
    return vec2<u32>(select(largest.x, NAN, largest.x >= INF), select(0u, factor >> 23u, has_least()));
}

// The biased exponent of the lowest normal number times the scale.
fn base_of(largest: u32, least: u32) -> u32 {
    if of_unit() {
        return lowest();
    }
    let dropped = 23u - mantissa_bits();
    let top = min((largest + (FRACTION - ((levels() << dropped) & FRACTION))) >> 23u, 254u);
    // From the lowest exponent to the largest number's.
    let reach = (levels() >> mantissa_bits()) - 1u;
    return u32(max(max(i32(top) - i32(reach), i32(least + lowest()) - 127), 1));
}

fn wire(largest: vec2<u32>, beta: u32) -> vec2<u32> {
    return vec2<u32>(select((base_of(largest.x, largest.y) + 127u - lowest()) << 23u, NAN, largest.x >= INF), 0u);
}

// That exponent; all ones, or zero for a poisoned bucket.
fn encoder(largest: vec2<u32>) -> vec4<u32> {
    if largest.x >= INF {
        return vec4<u32>(1u, 0u, 0u, 0u);
    }
    return vec4<u32>(base_of(largest.x, largest.y), 0xffffffffu, 0u, 0u);
}

// The scale; 1 if the bucket is poisoned.
fn decoder(scalars: vec2<u32>) -> vec4<u32> {
    if scalars.x >= INF {
        return vec4<u32>(0u, 1u, 0u, 0u);
    }
    return vec4<u32>(scalars.x, 0u, 0u, 0u);
}

fn code(e: Columns, v: vec4<u32>, dither: vec4<u32>) -> vec4<u32> {
    let kept = v & e.y;
    let magnitude = kept & vec4<u32>(MAGNITUDE);
    let one = vec4<u32>(1u);
    let field = magnitude >> vec4<u32>(23u);
    let exponent = max(field, one);
    let mantissa = (magnitude & vec4<u32>(FRACTION)) | (min(field, one) << vec4<u32>(23u));
    let above = max(exponent, e.x);
    let down = min(above - exponent, vec4<u32>(31u));
    let rest = min(mantissa & ((one << down) - one), one);
    let place = ((mantissa >> down) | rest) + ((above - e.x) << vec4<u32>(23u));
    let dropped = vec4<u32>(23u - mantissa_bits());
    let even = (one << (dropped - one)) - one + ((place >> dropped) & one);
    let up = select(dither >> (vec4<u32>(fraction()) - dropped), even, vec4<bool>(to_nearest()));
    let level = min((place + up) >> dropped, vec4<u32>(levels()));
    return level | ((kept >> vec4<u32>(31u)) << vec4<u32>(bits() - 1u));
}

fn value(d: Columns, c: vec4<u32>) -> vec4<u32> {
    let sign = (c << vec4<u32>(32u - bits())) & vec4<u32>(SIGN);
    let code = min(c & vec4<u32>((1u << (bits() - 1u)) - 1u), vec4<u32>(levels()));
    // As a number of binary32, whose exponents begin elsewhere.
    let number = code << vec4<u32>(23u - mantissa_bits());
    let magnitude = f_mul(f_mul(number, vec4<u32>((lowest() + 126u) << 23u)), d.x);
    return select(magnitude | sign, vec4<u32>(NAN), poisoned(d));
}

fn poisoned(d: Columns) -> vec4<bool> {
    return d.y == vec4<u32>(1u);
}
