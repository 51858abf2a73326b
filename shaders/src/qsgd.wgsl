// QSGD's encoder and decoder: `kernels-gpu/src/arith/qsgd.rs`.

// 2^-60: what is smaller is lifted by 2^64.
const TINY: u32 = 0x21800000u;
const UP: u32 = 0x5f800000u;
const LOWER: u32 = 0x1f800000u;

fn lifted(norm: u32) -> u32 {
    return select(norm, f_mul1(norm, UP), norm < TINY);
}

// The norm on the wire, from a norm that may be poisoned.
fn wire_of(norm: u32, beta: u32) -> u32 {
    if norm >= INF {
        return NAN;
    }
    return f_mul1(norm, beta);
}

// What decoding an element of a bucket needs.
struct Decoder {
    step: u32,
    top: u32,
    // 1 if what is decoded is lifted, 2 if the bucket is poisoned.
    state: u32,
}

fn decoder_of(wire: u32) -> Decoder {
    if wire >= INF {
        return Decoder(0u, 0u, 2u);
    }
    let top = lifted(wire);
    return Decoder(f_div1(top, f_from_u32(params.levels)), top, select(0u, 1u, wire < TINY));
}

// The values of four codes, with four decoders.
fn value_of(code: vec4<u32>, step: vec4<u32>, top: vec4<u32>, state: vec4<u32>) -> vec4<u32> {
    let sign = (code << vec4<u32>(32u - params.bits)) & vec4<u32>(SIGN);
    let level = code & vec4<u32>((1u << (params.bits - 1u)) - 1u);
    var magnitude = min(scale_by_integer(step, level), top);
    let low = (state & vec4<u32>(1u)) != vec4<u32>(0u);
    if any(low) {
        magnitude = select(magnitude, f_mul(magnitude, vec4<u32>(LOWER)), low);
    }
    return select(magnitude | sign, vec4<u32>(NAN), state >= vec4<u32>(2u));
}
