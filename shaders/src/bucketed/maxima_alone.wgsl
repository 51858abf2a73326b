// What a codec says whose statistic is maxima alone.

const SUMS: u32 = 0u;

fn looks_twice() -> bool {
    return false;
}

fn terms(value: u32, largest: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(0u);
}

fn sums(added: vec4<u32>) -> Sums {
    return Sums(vec3<u32>(0u), vec3<u32>(0u), vec3<u32>(0u));
}

fn shifts(largest: vec4<u32>, own: vec4<u32>) -> vec3<u32> {
    return vec3<u32>(0u);
}
