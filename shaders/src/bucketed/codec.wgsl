// What a bucketed codec is. The kernels in this folder are all of a codec's kernels; the codec's own file (`codecs/`)
// brings its formula as constants and pure functions:
//
//   SCALARS                        Scalars per bucket on the wire: 1 or 2.
//   MAXIMA                         Words of a bucket's statistic that are maxima: 1 to 4.
//   SUMS                           Sums of a bucket's statistic, 64 bits each: 0 to 3.
//   maxima(value)                  A value's words, of which a bucket takes the maxima; zeros are below every value's.
//   looks_twice()                  Whether a bucket's values are looked at again, for sums that need the maxima.
//   terms(value, largest)          A value's terms, given its bucket's maxima: below 2^27, since a lane adds up 32.
//   sums(terms)                    The sums that a lane's added terms stand for.
//   shifts(largest, own)           How many bits to the right, 0 to 62, sums made with the maxima `own` are shifted to
//                                  fit the maxima `largest`.
//   statistic(largest, sums, factor)  What an encoder is made from, in up to 2 words. A whole tensor's sums have 96 bits.
//   wire(statistic, factor)        The scalars on the wire; the factor makes the codec a contraction, or is the scale's own.
//   encoder(statistic)             What encoding a bucket's values needs, in up to 4 words.
//   decoder(wire)                  What decoding a bucket's codes needs, in up to 4 words.
//   code(encoders, value, dither)  The codes of four values.
//   value(decoders, code)          The values of four codes.
//   poisoned(decoders)             Whether the buckets hold a NaN or an infinity.
//
// A codec whose scale is of its codes has a third look (`three_looks.wgsl`), no tensor that is one bucket, and in the
// place of `shifts`
//   products(encoders, value)      What the second sum adds up for each of four values, which need an encoder: made of
//                                  the statistic without that sum.
//
// A codec asks `bits()`, `levels()`, `fraction()`, `by_l2()`, `of_unit()`, `clipped()`, `has_least()` and `to_nearest()` for the
// parameters. One without sums takes `maxima_alone.wgsl`. Values are the bits of binary32. What is made of a value that does not exist is dropped, so
// there is no padding. No function of a codec touches memory or waits for other threads: how a workgroup holds, folds
// and hands on words is written in this folder, once.
//
// A workgroup that encodes holds 256 statistics of MAXIMA + 2 * SUMS words: 8 words are the most that 16384 bytes have
// room for. A partial statistic between launches has PARTIAL_WORDS words, 4 or 8, which the host must know.

// Up to three sums, lowest word first.
struct Sums {
    a: vec3<u32>,
    b: vec3<u32>,
    c: vec3<u32>,
}

// Four buckets' encoders or decoders: `x` has the first words of all four, and so on.
struct Columns {
    x: vec4<u32>,
    y: vec4<u32>,
    z: vec4<u32>,
    w: vec4<u32>,
}

fn columns(a: vec4<u32>, b: vec4<u32>, c: vec4<u32>, d: vec4<u32>) -> Columns {
    return Columns(
        vec4<u32>(a.x, b.x, c.x, d.x),
        vec4<u32>(a.y, b.y, c.y, d.y),
        vec4<u32>(a.z, b.z, c.z, d.z),
        vec4<u32>(a.w, b.w, c.w, d.w),
    );
}

// The columns of one bucket.
fn repeated(a: vec4<u32>) -> Columns {
    return Columns(a.xxxx, a.yyyy, a.zzzz, a.wwww);
}

// step * k, as `scale_by_integer`, for a code k.
fn scale_by_code(step: vec4<u32>, k: vec4<u32>) -> vec4<u32> {
    if bits() <= 8u {
        return scale_by_byte(step, k);
    }
    return scale_by_integer(step, k);
}

// About the integer part of magnitude * inverse, where that is below 2^31, from the product that f32 gives. WGSL lets it
// be either neighbour of the exact one in f32, and lets a subnormal number count as zero. So this differs from
// `scale_to_fixed` by less than 2^9, and by less than 2^10 where the magnitude is such a difference of two numbers; what
// a subnormal magnitude comes to is below 1, but in a bucket that QSGD lifts. It is never a level without `unsure`, which
// is of integers.
fn guess(magnitude: vec4<u32>, inverse: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(bitcast<vec4<f32>>(magnitude) * bitcast<vec4<f32>>(inverse));
}

// Whether a guess plus its dither might be on another side of a level than the exact sum: the level is less than 2^10 away.
// With few bits of fraction that is so for many elements, and then this says so of all.
fn unsure(sum: vec4<u32>) -> vec4<bool> {
    let near = (sum + vec4<u32>(1024u)) & vec4<u32>((1u << fraction()) - 1u);
    return near < vec4<u32>(select(2048u, 0xffffffffu, fraction() < 20u));
}
