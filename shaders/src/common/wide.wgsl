// Integers of 64 and 96 bits: vectors of words, the lowest first.

fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

// Shifted right by `by`, 0 to 62.
fn shift64(a: vec2<u32>, by: u32) -> vec2<u32> {
    if by == 0u {
        return a;
    }
    if by >= 32u {
        return vec2<u32>(a.y >> (by - 32u), 0u);
    }
    return vec2<u32>((a.x >> by) | (a.y << (32u - by)), a.y >> by);
}

fn add96(a: vec3<u32>, b: vec3<u32>) -> vec3<u32> {
    let low = add64(a.xy, b.xy);
    // The 64 bits wrapped where they are now less than what was added.
    let wrapped = low.y < b.y || (low.y == b.y && low.x < b.x);
    return vec3<u32>(low, a.z + b.z + select(0u, 1u, wrapped));
}
