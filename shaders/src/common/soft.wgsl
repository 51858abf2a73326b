// IEEE 754 binary32 in integers.
//
// WGSL fixes neither how f32 operations round nor what they do with subnormal numbers, may contract them, and lets a
// compiler assume that no NaN or infinity occurs. So a number is the u32 of its bits, four at a time, and every operation
// is here, rounded to nearest, ties to even, with subnormal numbers kept. A value of type f32 is a guess, which integers
// check (`bucketed/codec.wgsl`).
// A result that is not a number is NAN. The twin is what a CPU does for `+`, `*` and `/` in `kernels-gpu/src/arith`.

const NAN: u32 = 0x7fc00000u;
const INF: u32 = 0x7f800000u;
const MAGNITUDE: u32 = 0x7fffffffu;
const SIGN: u32 = 0x80000000u;
const FRACTION: u32 = 0x007fffffu;
const IMPLIED: u32 = 0x00800000u;
const ONE: u32 = 0x3f800000u;
const FINITE: u32 = 0x7f7fffffu;

// 1 where true.
fn ones(condition: vec4<bool>) -> vec4<u32> {
    return select(vec4<u32>(0u), vec4<u32>(1u), condition);
}

// `s` shifted right by `by`, 0 to 31, with the lowest bit set if a bit was lost.
fn shift_sticky(s: vec4<u32>, by: vec4<u32>) -> vec4<u32> {
    return (s >> by) | ones((s & ((vec4<u32>(1u) << by) - 1u)) != vec4<u32>(0u));
}

// The magnitude of s * 2^(exponent - 153), rounded. `s` has 24 bits, two more, and a sticky one; its leading bit is bit
// 26, or below if `exponent` is 1. `exponent` is 1 to 255.
fn round_pack(s: vec4<u32>, exponent: vec4<u32>) -> vec4<u32> {
    let half = s & vec4<u32>(7u);
    let mantissa = s >> vec4<u32>(3u);
    // Up above the half, and at the half if that makes it even: (half + odd) > 4.
    let up = ones(half + (mantissa & vec4<u32>(1u)) > vec4<u32>(4u));
    // The implied bit, where there is one, adds the exponent's last unit; so does a carry out of the rounding.
    return min(((exponent - 1u) << vec4<u32>(23u)) + mantissa + up, vec4<u32>(INF));
}

// As `round_pack`, for any exponent, and a leading bit that is bit 26.
fn round_pack_any(s: vec4<u32>, exponent: vec4<i32>) -> vec4<u32> {
    let below = vec4<u32>(clamp(vec4<i32>(1) - exponent, vec4<i32>(0), vec4<i32>(31)));
    return round_pack(shift_sticky(s, below), vec4<u32>(clamp(exponent, vec4<i32>(1), vec4<i32>(255))));
}

// A magnitude as mantissa * 2^(exponent - 150), with a mantissa of 24 bits, or zero.
struct Parts {
    mantissa: vec4<u32>,
    exponent: vec4<i32>,
}

fn parts(magnitude: vec4<u32>) -> Parts {
    let tiny = magnitude < vec4<u32>(IMPLIED);
    let lift = select(vec4<u32>(0u), countLeadingZeros(magnitude) - 8u, tiny);
    let mantissa = select((magnitude & vec4<u32>(FRACTION)) | vec4<u32>(IMPLIED), magnitude << lift, tiny);
    let exponent = select(vec4<i32>(magnitude >> vec4<u32>(23u)), vec4<i32>(1) - vec4<i32>(lift), tiny);
    return Parts(mantissa, exponent);
}

// A product of two mantissas of 24 bits: leading bit 26, sticky last bit; and 1 where the product had 48 bits, not 47.
struct Product {
    s: vec4<u32>,
    long: vec4<u32>,
}

fn mantissa_product(a: vec4<u32>, b: vec4<u32>) -> Product {
    let mask = vec4<u32>(0xfffu);
    let twelve = vec4<u32>(12u);
    let ah = a >> twelve;
    let al = a & mask;
    let bh = b >> twelve;
    let bl = b & mask;
    let middle = ah * bl + al * bh;
    let low = ((middle & mask) << twelve) + al * bl;
    let top = ah * bh + (middle >> twelve) + (low >> vec4<u32>(24u));
    let rest = low & vec4<u32>(0xffffffu);
    let long = top >= vec4<u32>(IMPLIED);
    // 51 bits are `top` and `rest`; keep 27 of them from the leading one on.
    let cut = select(vec4<u32>(20u), vec4<u32>(21u), long);
    let head = select((top << vec4<u32>(4u)), (top << vec4<u32>(3u)), long);
    let lost = (rest & ((vec4<u32>(1u) << cut) - 1u)) != vec4<u32>(0u);
    return Product(head | (rest >> cut) | ones(lost), ones(long));
}

// a * b
fn f_mul(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    let ma = a & vec4<u32>(MAGNITUDE);
    let mb = b & vec4<u32>(MAGNITUDE);
    let sign = (a ^ b) & vec4<u32>(SIGN);
    let inf = vec4<u32>(INF);
    let zero = vec4<u32>(0u);
    let pa = parts(ma);
    let pb = parts(mb);
    let product = mantissa_product(pa.mantissa, pb.mantissa);
    let exponent = pa.exponent + pb.exponent - 127 + vec4<i32>(product.long);
    var magnitude = round_pack_any(product.s, exponent);
    magnitude = select(magnitude, zero, min(ma, mb) == zero);
    magnitude = select(magnitude, inf, max(ma, mb) == inf);
    let none = (max(ma, mb) > inf) | ((max(ma, mb) == inf) & (min(ma, mb) == zero));
    return select(magnitude | sign, vec4<u32>(NAN), none);
}

// a + b
fn f_add(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    // Without their signs, numbers order as these words do.
    let wa = a << vec4<u32>(1u);
    let wb = b << vec4<u32>(1u);
    let high = max(wa, wb);
    let low = min(wa, wb);
    let one = vec4<u32>(1u);
    let places = vec4<u32>(24u);
    let eh = max(high >> places, one);
    let el = max(low >> places, one);
    // The significands: the implied bit, where there is one, is bit 29; six bits are below the last place.
    let five = vec4<u32>(5u);
    let fh = (high + ((one - eh) << places)) << five;
    let fl = (low + ((one - el) << places)) << five;
    let apart = min(eh - el, vec4<u32>(31u));
    let cut = fl >> apart;
    // The lowest bit stands for all that were shifted out. No sum but one that is exact has fewer than five bits below it.
    let shifted = cut | min(fl - (cut << apart), one);
    // All ones where the signs differ.
    let minus = vec4<u32>(0u) - ((a ^ b) >> vec4<u32>(31u));
    let total = fh + (shifted ^ minus) - minus;
    // The leading bit becomes bit 30, of exponent eh + 1, but no exponent is below 1.
    let up = min(countLeadingZeros(total) - one, eh);
    let settled = total << up;
    let seven = vec4<u32>(7u);
    let rounded = (settled + vec4<u32>(63u) + ((settled >> seven) & one)) >> seven;
    // The implied bit adds the exponent's last unit; so does a carry out of the rounding.
    let magnitude = min(((eh - up) << vec4<u32>(23u)) + rounded, vec4<u32>(INF));
    let sign = vec4<u32>(SIGN);
    let larger = select(a, b, wb > wa);
    // Nothing is left of x - x, which is +0, and of -0 + -0, which is -0.
    var sum = select(magnitude | (larger & sign), a & b & sign, total == vec4<u32>(0u));
    let inf = vec4<u32>(2u * INF);
    let rare = high >= inf;
    if any(rare) {
        let none = (high > inf) | ((low == inf) & (minus != vec4<u32>(0u)));
        sum = select(sum, select(larger, vec4<u32>(NAN), none), rare);
    }
    return sum;
}

fn f_sub(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    return f_add(a, b ^ vec4<u32>(SIGN));
}

// a * b, one number.
fn f_mul1(a: u32, b: u32) -> u32 {
    return f_mul(vec4<u32>(a), vec4<u32>(b)).x;
}

// a - b, one number.
fn f_sub1(a: u32, b: u32) -> u32 {
    return f_sub(vec4<u32>(a), vec4<u32>(b)).x;
}

// a / b, one number: a digit a turn, because it is wanted once a bucket.
fn f_div1(a: u32, b: u32) -> u32 {
    let ma = a & MAGNITUDE;
    let mb = b & MAGNITUDE;
    let sign = (a ^ b) & SIGN;
    if ma > INF || mb > INF || (ma == INF && mb == INF) || (ma == 0u && mb == 0u) {
        return NAN;
    }
    if ma == INF || mb == 0u {
        return sign | INF;
    }
    if ma == 0u || mb == INF {
        return sign;
    }
    let both = parts(vec4<u32>(ma, mb, ma, mb));
    var rest = both.mantissa.x;
    let divisor = both.mantissa.y;
    var exponent = both.exponent.x - both.exponent.y + 127;
    if rest < divisor {
        rest = rest << 1u;
        exponent = exponent - 1;
    }
    var quotient = 0u;
    for (var digit = 0u; digit < 27u; digit++) {
        quotient = quotient << 1u;
        if rest >= divisor {
            rest = rest - divisor;
            quotient = quotient | 1u;
        }
        rest = rest << 1u;
    }
    if rest != 0u {
        quotient = quotient | 1u;
    }
    return sign | round_pack_any(vec4<u32>(quotient), vec4<i32>(exponent)).x;
}

// The number that an integer is, rounded.
fn f_from_u32(u: u32) -> u32 {
    if u == 0u {
        return 0u;
    }
    let zeros = countLeadingZeros(u);
    let s = shift_sticky(vec4<u32>(u << zeros), vec4<u32>(5u));
    return round_pack(s, vec4<u32>(158u - zeros)).x;
}

// Two to the power `exponent`, -126 to 127.
fn pow2(exponent: i32) -> u32 {
    return u32(exponent + 127) << 23u;
}

// The integer part of magnitude * 2^lift * inverse, the product rounded as binary32, below 2^32. `inverse` is a normal
// number or zero. `magnitude` may be subnormal; `lift` makes it normal unless the product is below 1 anyway.
fn scale_to_fixed(magnitude: vec4<u32>, lift: vec4<i32>, inverse: vec4<u32>) -> vec4<u32> {
    let a = parts(magnitude);
    let normal = inverse >= vec4<u32>(IMPLIED);
    let mantissa = select(vec4<u32>(0u), (inverse & vec4<u32>(FRACTION)) | vec4<u32>(IMPLIED), normal);
    let product = mantissa_product(a.mantissa, mantissa);
    let exponent = a.exponent + lift + vec4<i32>(inverse >> vec4<u32>(23u)) - 127 + vec4<i32>(product.long);
    let half = product.s & vec4<u32>(7u);
    let cut = product.s >> vec4<u32>(3u);
    let rounded = cut + ones(half + (cut & vec4<u32>(1u)) > vec4<u32>(4u));
    let left = vec4<u32>(clamp(exponent - 150, vec4<i32>(0), vec4<i32>(8)));
    let right = vec4<u32>(clamp(vec4<i32>(150) - exponent, vec4<i32>(0), vec4<i32>(31)));
    return (rounded << left) >> right;
}

// step * k for k below 2^24 and a `step` that is a normal number, or zero, without a sign. Where the product is too
// large for binary32, some pattern above infinity's.
fn scale_by_integer(step: vec4<u32>, k: vec4<u32>) -> vec4<u32> {
    let zeros = countLeadingZeros(k);
    let product = mantissa_product(
        (step & vec4<u32>(FRACTION)) | vec4<u32>(IMPLIED),
        (k << (zeros & vec4<u32>(31u))) >> vec4<u32>(8u),
    );
    let exponent = (step >> vec4<u32>(23u)) + product.long + 31u - zeros;
    let half = product.s & vec4<u32>(7u);
    let cut = product.s >> vec4<u32>(3u);
    let up = ones(half + (cut & vec4<u32>(1u)) > vec4<u32>(4u));
    let value = ((exponent - 1u) << vec4<u32>(23u)) + cut + up;
    return select(value, vec4<u32>(0u), (k == vec4<u32>(0u)) | (step == vec4<u32>(0u)));
}

// As `scale_by_integer`, for k below 2^8: the product of the mantissa takes 32 bits.
fn scale_by_byte(step: vec4<u32>, k: vec4<u32>) -> vec4<u32> {
    let eight = vec4<u32>(8u);
    let one = vec4<u32>(1u);
    let exact = ((step & vec4<u32>(FRACTION)) | vec4<u32>(IMPLIED)) * (k & vec4<u32>(0xffu));
    let zeros = countLeadingZeros(exact);
    let product = exact << (zeros & vec4<u32>(31u));
    let cut = product >> eight;
    // Up above the half, and at the half if that makes it even.
    let up = ((product & vec4<u32>(0xffu)) + vec4<u32>(127u) + (cut & one)) >> eight;
    // The implied bit adds the exponent's last unit.
    let exponent = (step >> vec4<u32>(23u)) + vec4<u32>(7u) - zeros;
    let value = (exponent << vec4<u32>(23u)) + cut + up;
    return select(value, vec4<u32>(0u), (exact == vec4<u32>(0u)) | (step == vec4<u32>(0u)));
}

// Whether a > b, for numbers that are not NaN.
fn f_greater(a: vec4<u32>, b: vec4<u32>) -> vec4<bool> {
    let zeros = ((a | b) & vec4<u32>(MAGNITUDE)) == vec4<u32>(0u);
    return (to_key(a) > to_key(b)) & !zeros;
}

// An integer that orders as the number does, with -0 below +0.
fn to_key(bits: vec4<u32>) -> vec4<u32> {
    return bits ^ (vec4<u32>(SIGN) | (vec4<u32>(0u) - (bits >> vec4<u32>(31u))));
}

// The bits whose key this is.
fn from_key(key: u32) -> u32 {
    return key ^ (SIGN | ((key >> 31u) - 1u));
}
