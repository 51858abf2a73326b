// An element of the gradient as bits of binary32: the one at `at` of what is bound.
fn gradient(at: u32) -> u32 {
    if params.dtype == 0u {
        return input[at];
    }
    let half = (input[at >> 1u] >> ((at & 1u) << 4u)) & 0xffffu;
    if params.dtype == 1u {
        return from_f16(vec4<u32>(half)).x;
    }
    return half << 16u;
}
