// A binary16 as binary32, exactly, with a NaN's bits kept.
fn from_f16(half: vec4<u32>) -> vec4<u32> {
    let magnitude = half & vec4<u32>(0x7fffu);
    let sign = (half & vec4<u32>(0x8000u)) << vec4<u32>(16u);
    let places = magnitude << vec4<u32>(13u);
    // A subnormal one is an integer times 2^-24.
    let zeros = countLeadingZeros(magnitude);
    let mantissa = (magnitude << (zeros & vec4<u32>(31u))) >> vec4<u32>(8u);
    let tiny = ((vec4<u32>(133u) - zeros) << vec4<u32>(23u)) + mantissa;
    var bits = places + vec4<u32>(112u << 23u);
    bits = select(bits, tiny, magnitude < vec4<u32>(0x400u));
    bits = select(bits, vec4<u32>(0u), magnitude == vec4<u32>(0u));
    bits = select(bits, places | vec4<u32>(INF), magnitude >= vec4<u32>(0x7c00u));
    return bits | sign;
}
