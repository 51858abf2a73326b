// The codes of a unit, and what becomes of their values, whatever the formula.

@group(0) @binding(1) var<storage, read> scalars: array<u32>;
@group(0) @binding(2) var<storage, read> codes: array<u32>;
@group(0) @binding(3) var<storage, read_write> output: array<u32>;

const UNIT: u32 = 256u;
// Elements of a workgroup.
const DECODE_SPAN: u32 = 2048u;

// The codes of the four slots of half `half` of a lane. `unit` is the unit's first word.
fn unpack(unit: u32, lane: u32, half: u32) -> vec4<u32> {
    let bits = params.bits;
    if bits == 16u {
        let a = codes[unit + half * 64u + lane];
        let b = codes[unit + half * 64u + 32u + lane];
        return vec4<u32>(a & 0xffffu, a >> 16u, b & 0xffffu, b >> 16u);
    }
    let slots = vec4<u32>(0u, 1u, 2u, 3u);
    if bits == 8u {
        return (vec4<u32>(codes[unit + half * 32u + lane]) >> (slots * 8u)) & vec4<u32>(0xffu);
    }
    var c = vec4<u32>(0u);
    if (bits & 4u) != 0u {
        let w = codes[unit + lane] >> (half * 16u);
        c = (vec4<u32>(w) >> (slots * 4u)) & vec4<u32>(15u);
    }
    if (bits & 2u) != 0u {
        let w = codes[unit + (bits & 4u) * 8u + (lane >> 1u)] >> ((lane & 1u) * 16u + half * 8u);
        c = c | (((vec4<u32>(w) >> (slots * 2u)) & vec4<u32>(3u)) << vec4<u32>(bits & 4u));
    }
    if (bits & 1u) != 0u {
        let w = codes[unit + (bits & 6u) * 8u + (lane >> 2u)] >> ((lane & 3u) * 8u + half * 4u);
        c = c | (((vec4<u32>(w) >> slots) & vec4<u32>(1u)) << vec4<u32>(bits & 6u));
    }
    return c;
}

// Values times the payloads' weight, if they have one.
fn weighted(v: vec4<u32>) -> vec4<u32> {
    // A product with 1 is the number itself, bit for bit: there is one NaN.
    if !has(FLAG_WEIGHTED) || params.weight == ONE {
        return v;
    }
    return f_mul(vec4<u32>(params.weight), v);
}

// Adds weighted values to what is there, or puts them in its place.
fn merge(before: vec4<u32>, v: vec4<u32>) -> vec4<u32> {
    if !has(FLAG_WEIGHTED) {
        return v;
    }
    return f_add(before, v);
}

// What the output holds, or zero.
fn before(first: u32) -> vec4<u32> {
    var v = vec4<u32>(0u);
    if !has(FLAG_ACCUMULATE) {
        return v;
    }
    // An element beyond the last is not read as the last one, which another invocation writes.
    if first < extent() {
        v.x = output[first_element() + first];
    }
    if first + 32u < extent() {
        v.y = output[first_element() + first + 32u];
    }
    if first + 64u < extent() {
        v.z = output[first_element() + first + 64u];
    }
    if first + 96u < extent() {
        v.w = output[first_element() + first + 96u];
    }
    return v;
}

fn put(first: u32, v: vec4<u32>) {
    if first < extent() {
        output[first_element() + first] = v.x;
    }
    if first + 32u < extent() {
        output[first_element() + first + 32u] = v.y;
    }
    if first + 64u < extent() {
        output[first_element() + first + 64u] = v.z;
    }
    if first + 96u < extent() {
        output[first_element() + first + 96u] = v.w;
    }
}
