// Philox4x32 with 7 rounds, and the dither that rounding adds: `kernels-gpu/src/arith/{philox,round}.rs`.

// Products of 64 bits: the upper halves, and the lower ones.
struct Products {
    high: vec2<u32>,
    low: vec2<u32>,
}

// From products of 16 bits, which are fast where those of 32 bits are not.
fn multiply(a: vec2<u32>, b: vec2<u32>) -> Products {
    let mask = vec2<u32>(0xffffu);
    let half = vec2<u32>(16u);
    let al = a & mask;
    let ah = a >> half;
    let bl = b & mask;
    let bh = b >> half;
    let lowest = al * bl;
    let t = ah * bl + (lowest >> half);
    let u = al * bh + (t & mask);
    return Products(ah * bh + (t >> half) + (u >> half), (u << half) | (lowest & mask));
}

// The `call`-th block of 128 random bits.
fn draw(call: u32) -> vec4<u32> {
    let factors = vec2<u32>(0xd2511f53u, 0xcd9e8d57u);
    var even = vec2<u32>(call, step().x);
    var odd = vec2<u32>(tensor(), step().y);
    var key = vec2<u32>(params.key_low, params.key_high);
    for (var round = 0u; round < 7u; round++) {
        let product = multiply(even, factors);
        even = product.high.yx ^ odd ^ key;
        odd = product.low.yx;
        key = key + vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return vec4<u32>(even.x, odd.x, even.y, odd.y);
}

// Whether an element takes 16 random bits.
fn is_narrow() -> bool {
    return (params.flags & (FLAG_NEAREST | FLAG_WIDE)) == 0u;
}

// The dithers of four slots of a lane: those of half `half` of its 8. `call` is 32 times the unit's index in the
//   tensor,
// plus the lane; `narrow` is that block, where `is_narrow`.
fn dithers(call: u32, half: u32, narrow: vec4<u32>) -> vec4<u32> {
    let fraction = params.fraction;
    if is_narrow() {
        let pair = select(narrow.xy, narrow.zw, half == 1u);
        let bits = vec4<u32>(pair.x, pair.x >> 16u, pair.y, pair.y >> 16u) & vec4<u32>(0xffffu);
        return (bits << vec4<u32>(fraction - 16u)) | vec4<u32>((1u << fraction) >> 17u);
    }
    if has(FLAG_NEAREST) {
        return vec4<u32>(1u << (fraction - 1u));
    }
    return draw(call * 2u + half) >> vec4<u32>(32u - fraction);
}
