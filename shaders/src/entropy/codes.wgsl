// Codes of fixed width, and their levels.

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

// The exponents of four codes.
fn exponents(c: vec4<u32>) -> vec4<u32> {
    let levels = c & vec4<u32>((1u << (params.bits - 1u)) - 1u);
    return firstLeadingBit(levels + vec4<u32>(1u));
}

// Their classes: the exponents of the exponents.
fn classes(q: vec4<u32>) -> vec4<u32> {
    return firstLeadingBit(q + vec4<u32>(1u));
}

fn sum4(v: vec4<u32>) -> u32 {
    return (v.x + v.y) + (v.z + v.w);
}

// Bits behind the unary parts that codes of these exponents take.
fn rest_bits(q: vec4<u32>) -> vec4<u32> {
    return q + min(q, vec4<u32>(1u));
}
