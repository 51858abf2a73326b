// QSGD's buckets of a span, as encoding takes them.

// Inverse, state, and the decoder's step and top. State: 1 the decoder's values are lifted, 2 the bucket is poisoned (as
// `Decoder`), 4 the encoder's values are lifted.
var<workgroup> buckets: array<vec4<u32>, 256>;

// Makes the bucket that has this norm, and gives the scalar on the wire.
fn make(bucket: u32, norm: u32) -> u32 {
    let wire = wire_of(norm, beta());
    if norm >= INF {
        buckets[bucket] = vec4<u32>(0u, 2u, 0u, 0u);
        return wire;
    }
    var inverse = 0u;
    if norm != 0u {
        inverse = f_div1(f_from_u32(params.levels << params.fraction), lifted(norm));
    }
    let state = select(0u, 4u, norm < TINY);
    if has(FLAG_FEEDBACK) {
        let decoder = decoder_of(wire);
        buckets[bucket] = vec4<u32>(inverse, state | decoder.state, decoder.step, decoder.top);
    } else {
        buckets[bucket] = vec4<u32>(inverse, state, 0u, 0u);
    }
    return wire;
}

// Makes a bucket from its statistics, and writes its scalars where `exists`.
fn settle(bucket: u32, index: u32, exists: bool) {
    var norm = atomicLoad(&largest[bucket]);
    if has(FLAG_L2) && norm != 0u && norm < INF {
        norm = norm_from_sum(sum_of(bucket), 0u, alignment(norm));
    }
    let wire = make(bucket, norm);
    if exists {
        scalars[first_scalar() + index] = wire;
    }
}

// Makes the one bucket of a tensor.
fn settle_whole() {
    _ = make(0u, statistic(0u));
}

// What four rows' elements need: the columns are rows' buckets.
struct Fields {
    inverse: vec4<u32>,
    state: vec4<u32>,
    step: vec4<u32>,
    top: vec4<u32>,
}

fn fields(row: u32, shift: u32) -> Fields {
    let a = buckets[row >> shift];
    let b = buckets[(row + 1u) >> shift];
    let c = buckets[(row + 2u) >> shift];
    let d = buckets[(row + 3u) >> shift];
    return Fields(
        vec4<u32>(a.x, b.x, c.x, d.x),
        vec4<u32>(a.y, b.y, c.y, d.y),
        vec4<u32>(a.z, b.z, c.z, d.z),
        vec4<u32>(a.w, b.w, c.w, d.w),
    );
}

fn poisoned(f: Fields) -> vec4<bool> {
    return (f.state & vec4<u32>(2u)) != vec4<u32>(0u);
}

// The codes of four values.
fn code(f: Fields, value: vec4<u32>, dither: vec4<u32>) -> vec4<u32> {
    let kept = select(value, vec4<u32>(0u), poisoned(f));
    let lift = vec4<i32>((f.state & vec4<u32>(4u)) << vec4<u32>(4u));
    let fixed = scale_to_fixed(kept & vec4<u32>(MAGNITUDE), lift, f.inverse);
    let level = (min(fixed, vec4<u32>(params.levels << params.fraction)) + dither) >> vec4<u32>(params.fraction);
    return level | ((kept >> vec4<u32>(31u)) << vec4<u32>(params.bits - 1u));
}

// The values of four codes.
fn value(f: Fields, code: vec4<u32>) -> vec4<u32> {
    return value_of(code, f.step, f.top, f.state & vec4<u32>(3u));
}
