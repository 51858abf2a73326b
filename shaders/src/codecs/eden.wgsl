// EDEN: `kernels-gpu/src/arith/eden.rs`. `bucketed/codec.wgsl` says what each function is for.
// The statistic is the largest magnitude, and the sums of the squares of all aligned to it, of their products with the
// centroids of their codes, and of the elements; then it is what makes a code, and the scale.
// Edge cases: zeros of either sign are above zero. A bucket with a NaN or an infinity has a scale NaN. A scale on the
//   wire that is negative, infinite or NaN decodes to NaN. No tensor is one bucket, so there is no `shifts`.

const SCALARS: u32 = 1u;
const MAXIMA: u32 = 1u;
const SUMS: u32 = 3u;

// What makes a code in a bucket with a NaN or an infinity is this or more.
const POISONED: u32 = 0xff000000u;
const LEAST: u32 = 112u << 18u;

fn maxima(value: u32) -> vec4<u32> {
    return vec4<u32>(value & MAGNITUDE, 0u, 0u, 0u);
}

fn looks_twice() -> bool {
    return true;
}

// A square of 24 bits, from two halves of 12: high * high, high * low, low * low; and the element.
fn terms(value: u32, largest: vec4<u32>) -> vec4<u32> {
    let m = aligned(value & MAGNITUDE, alignment(largest.x));
    let high = m >> 12u;
    let low = m & 0xfffu;
    return vec4<u32>(high * high, high * low, low * low, 1u);
}

fn sums(added: vec4<u32>) -> Sums {
    let lower = add64(vec2<u32>(added.z, 0u), vec2<u32>(added.y << 13u, added.y >> 19u));
    let squares = add64(lower, vec2<u32>(added.x << 24u, added.x >> 8u));
    return Sums(vec3<u32>(squares, 0u), vec3<u32>(0u), vec3<u32>(added.w, 0u, 0u));
}

fn statistic(largest: vec4<u32>, total: Sums, factor: u32) -> vec2<u32> {
    if largest.x >= INF {
        return vec2<u32>(POISONED, NAN);
    }
    let to = alignment(largest.x);
    let squares = total.a.xy;
    // 2^18 times the root of the elements over that of the squares.
    let root = f_from_u32(isqrt(squares));
    let inverse = f_div1(f_from_u32(isqrt(vec2<u32>(0u, total.c.x << 4u))), select(root, ONE, root == 0u));
    let measure = (to << 24u) | (((inverse >> 5u) - LEAST) & 0xffffffu);
    // Bits of the sum of products beyond 31: they are cut off both sums. The quotient has units of 2^-6.
    let whole = total.b.xy;
    let long = 64u - select(32u + countLeadingZeros(whole.x), countLeadingZeros(whole.y), whole.y != 0u);
    let by = min(max(long, 31u) - 31u, 31u);
    let up = 19u - min(by, 19u);
    let lifted = vec2<u32>(squares.x << up, (squares.y << up) | select(squares.x >> (32u - up), 0u, up == 0u));
    let dividend = shift64(lifted, max(by, 19u) - 19u);
    return vec2<u32>(measure, min(mean(dividend, shift64(whole, by).x, to + 2u), FINITE));
}

fn wire(found: vec2<u32>, beta: u32) -> vec2<u32> {
    return vec2<u32>(found.y, 0u);
}

// 2^18 sqrt(B) / |y|_2 in units of the alignment; the alignment; all ones, or zero for a poisoned bucket.
fn encoder(found: vec2<u32>) -> vec4<u32> {
    let inverse = ((found.x & 0xffffffu) + LEAST) << 5u;
    return vec4<u32>(inverse, found.x >> 24u, select(0xffffffffu, 0u, found.x >= POISONED), 0u);
}

// The scale; 1 if the bucket is poisoned.
fn decoder(scalars: vec2<u32>) -> vec4<u32> {
    if scalars.x >= INF {
        return vec4<u32>(0u, 1u, 0u, 0u);
    }
    return vec4<u32>(scalars.x, 0u, 0u, 0u);
}

// The magnitudes of four values as integers of their buckets' alignments.
fn aligned_all(e: Columns, v: vec4<u32>) -> vec4<u32> {
    let magnitude = v & vec4<u32>(MAGNITUDE) & e.z;
    let exponent = magnitude >> vec4<u32>(23u);
    let implied = min(exponent, vec4<u32>(1u)) << vec4<u32>(23u);
    let mantissa = (magnitude & vec4<u32>(FRACTION)) | implied;
    return mantissa >> min(e.y - max(exponent, vec4<u32>(1u)), vec4<u32>(31u));
}

// The one of four that codes of this width have.
fn of_width(one: u32, two: u32, three: u32, four: u32) -> u32 {
    return select(select(two, select(one, three, bits() == 3u), (bits() & 1u) != 0u), four, bits() == 4u);
}

// The midpoint below centroid j of those above zero, in units of 2^-18, as the bits of binary32; infinity where there
// are not so many.
fn midpoint(j: u32) -> vec4<u32> {
    switch j {
        case 1u: {
            return vec4<u32>(of_width(INF, 0x487b4a00u, 0x48002400u, 0x47843580u));
        }
        case 2u: {
            return vec4<u32>(of_width(INF, INF, 0x48866500u, 0x4805bc40u));
        }
        case 3u: {
            return vec4<u32>(of_width(INF, INF, 0x48dfbc20u, 0x484caf40u));
        }
        case 4u: {
            return vec4<u32>(of_width(INF, INF, INF, 0x488cb560u));
        }
        case 5u: {
            return vec4<u32>(of_width(INF, INF, INF, 0x48b7f420u));
        }
        case 6u: {
            return vec4<u32>(of_width(INF, INF, INF, 0x48ebf8e0u));
        }
        default: {
            return vec4<u32>(of_width(INF, INF, INF, 0x4919a6c0u));
        }
    }
}

// Centroid j of those above zero, in units of 2^-13; zero where there are not so many.
fn centroid(j: u32) -> vec4<u32> {
    switch j {
        case 0u: {
            return vec4<u32>(of_width(6536u, 3709u, 2008u, 1052u));
        }
        case 1u: {
            return vec4<u32>(of_width(0u, 12373u, 6193u, 3179u));
        }
        case 2u: {
            return vec4<u32>(of_width(0u, 0u, 11009u, 5380u));
        }
        case 3u: {
            return vec4<u32>(of_width(0u, 0u, 17629u, 7720u));
        }
        case 4u: {
            return vec4<u32>(of_width(0u, 0u, 0u, 10291u));
        }
        case 5u: {
            return vec4<u32>(of_width(0u, 0u, 0u, 13255u));
        }
        case 6u: {
            return vec4<u32>(of_width(0u, 0u, 0u, 16949u));
        }
        default: {
            return vec4<u32>(of_width(0u, 0u, 0u, 22385u));
        }
    }
}

// Four products, each as upper * 2^12 + lower.
struct Weighted {
    upper: vec4<u32>,
    lower: vec4<u32>,
}

// The centroids of four values, times the values as integers: halves below 2^27.
fn products(e: Columns, v: vec4<u32>) -> Weighted {
    let m = aligned_all(e, v);
    let place = scale_by_integer(e.x, m);
    var found = centroid(0u);
    for (var j = 1u; j < 8u; j++) {
        found = select(found, centroid(j), place >= midpoint(j));
    }
    return Weighted((m >> vec4<u32>(12u)) * found, (m & vec4<u32>(0xfffu)) * found);
}

fn code(e: Columns, v: vec4<u32>, dither: vec4<u32>) -> vec4<u32> {
    let place = scale_by_integer(e.x, aligned_all(e, v));
    let half = 1u << (bits() - 1u);
    var level = vec4<u32>(half);
    for (var j = 1u; j < 8u; j++) {
        level += ones(place >= midpoint(j));
    }
    let below = v > vec4<u32>(SIGN);
    return (level ^ select(vec4<u32>(0u), vec4<u32>(2u * half - 1u), below)) & e.z;
}

fn value(d: Columns, c: vec4<u32>) -> vec4<u32> {
    let half = 1u << (bits() - 1u);
    let above = (c & vec4<u32>(half)) != vec4<u32>(0u);
    let level = select(~c, c, above) & vec4<u32>(half - 1u);
    var found = centroid(0u);
    for (var j = 1u; j < 8u; j++) {
        found = select(found, centroid(j), level == vec4<u32>(j));
    }
    // 2^-13 times the centroid is a number of its bits.
    let zeros = countLeadingZeros(found);
    let number = ((vec4<u32>(144u) - zeros) << vec4<u32>(23u)) + ((found << zeros) >> vec4<u32>(8u));
    let magnitude = min(f_mul(d.x, number), vec4<u32>(FINITE));
    return select(magnitude | select(vec4<u32>(SIGN), vec4<u32>(0u), above), vec4<u32>(NAN), poisoned(d));
}

fn poisoned(d: Columns) -> vec4<bool> {
    return d.y == vec4<u32>(1u);
}
