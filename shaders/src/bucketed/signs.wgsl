// What codecs of signs with a scale have in common: all but the scale.
// Edge cases: zeros of either sign are above zero. A scale on the wire that is negative, infinite or NaN decodes to
//   NaN.

const SCALARS: u32 = 1u;
const MAXIMA: u32 = 1u;

fn maxima(value: u32) -> vec4<u32> {
    return vec4<u32>(value & MAGNITUDE, 0u, 0u, 0u);
}

fn wire(scale: vec2<u32>, beta: u32) -> vec2<u32> {
    return scale;
}

// All ones, or zero for a poisoned bucket.
fn encoder(scale: vec2<u32>) -> vec4<u32> {
    return vec4<u32>(select(0xffffffffu, 0u, scale.x >= INF), 0u, 0u, 0u);
}

// The magnitude of every element.
fn decoder(scalars: vec2<u32>) -> vec4<u32> {
    return vec4<u32>(select(scalars.x, NAN, scalars.x >= INF), 0u, 0u, 0u);
}

fn code(e: Columns, v: vec4<u32>, dither: vec4<u32>) -> vec4<u32> {
    return select(vec4<u32>(1u), vec4<u32>(0u), v > vec4<u32>(SIGN)) & e.x;
}

fn value(d: Columns, c: vec4<u32>) -> vec4<u32> {
    let above = ((c & vec4<u32>(1u)) == vec4<u32>(1u)) | poisoned(d);
    return d.x | select(vec4<u32>(SIGN), vec4<u32>(0u), above);
}

fn poisoned(d: Columns) -> vec4<bool> {
    return d.x == vec4<u32>(NAN);
}
