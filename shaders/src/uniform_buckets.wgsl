// The uniform quantizer's buckets of a span, as encoding takes them.

// Lift, lifted minimum, inverse, and 1 for a poisoned bucket.
var<workgroup> encoders: array<vec4<u32>, 256>;
// As `decoder_of` gives them.
var<workgroup> decoders: array<vec4<u32>, 256>;

// Makes the bucket that has these extremes, and gives the scalars on the wire.
fn make(bucket: u32, low: u32, high: u32) -> vec2<u32> {
    let wire = wire_of(low, high, beta());
    if not_finite(low) || not_finite(high) {
        encoders[bucket] = vec4<u32>(ONE, 0u, 0u, 1u);
        decoders[bucket] = vec4<u32>(0u);
        return wire;
    }
    let up = range_lift(low, high).x;
    let ends = f_mul(vec4<u32>(low, high, low, high), vec4<u32>(up));
    let range = f_sub1(ends.y, ends.x);
    var inverse = 0u;
    // A range is not negative: more than zero is not zero.
    if range != 0u {
        let full = f_from_u32(params.levels << params.fraction);
        inverse = f_div1(full, range);
        // A quotient that was rounded down may leave the maximum just below the top level. All are positive: bits order
        // as the numbers do.
        inverse = inverse + select(0u, 1u, f_mul1(range, inverse) < full);
    }
    encoders[bucket] = vec4<u32>(up, ends.x, inverse, 0u);
    if has(FLAG_FEEDBACK) {
        decoders[bucket] = decoder_of(wire.x, wire.y);
    }
    return wire;
}

// Makes a bucket from its statistics, and writes its scalars where `exists`.
fn settle(bucket: u32, index: u32, exists: bool) {
    let keys = extremes_of(bucket);
    let wire = make(bucket, from_key(keys.x), from_key(keys.y));
    if exists {
        scalars[first_scalar() + index * 2u] = wire.x;
        scalars[first_scalar() + index * 2u + 1u] = wire.y;
    }
}

// Makes the one bucket of a tensor.
fn settle_whole() {
    _ = make(0u, statistic(0u), statistic(1u));
}

// What four rows' elements need: the columns are rows' buckets.
struct Fields {
    up: vec4<u32>,
    low: vec4<u32>,
    inverse: vec4<u32>,
    poison: vec4<u32>,
    rows: vec4<u32>,
}

fn fields(row: u32, shift: u32) -> Fields {
    let rows = (vec4<u32>(row) + vec4<u32>(0u, 1u, 2u, 3u)) >> vec4<u32>(shift);
    let a = encoders[rows.x];
    let b = encoders[rows.y];
    let c = encoders[rows.z];
    let d = encoders[rows.w];
    return Fields(
        vec4<u32>(a.x, b.x, c.x, d.x),
        vec4<u32>(a.y, b.y, c.y, d.y),
        vec4<u32>(a.z, b.z, c.z, d.z),
        vec4<u32>(a.w, b.w, c.w, d.w),
        rows,
    );
}

fn poisoned(f: Fields) -> vec4<bool> {
    return f.poison != vec4<u32>(0u);
}

// The codes of four values.
fn code(f: Fields, value: vec4<u32>, dither: vec4<u32>) -> vec4<u32> {
    var v = select(value, vec4<u32>(0u), poisoned(f));
    if any(f.up != vec4<u32>(ONE)) {
        v = f_mul(v, f.up);
    }
    // Not negative; and where it is subnormal the product is below 1.
    let above = f_sub(v, f.low) & vec4<u32>(MAGNITUDE);
    let fixed = scale_to_fixed(above, vec4<i32>(0), f.inverse);
    return (min(fixed, vec4<u32>(params.levels << params.fraction)) + dither) >> vec4<u32>(params.fraction);
}

// The values of four codes.
fn value(f: Fields, code: vec4<u32>) -> vec4<u32> {
    let a = decoders[f.rows.x];
    let b = decoders[f.rows.y];
    let c = decoders[f.rows.z];
    let d = decoders[f.rows.w];
    return value_of(
        code,
        vec4<u32>(a.x, b.x, c.x, d.x),
        vec4<u32>(a.y, b.y, c.y, d.y),
        vec4<u32>(a.z, b.z, c.z, d.z),
        vec4<u32>(a.w, b.w, c.w, d.w),
    );
}
