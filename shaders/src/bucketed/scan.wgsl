// What both scans do: `base` is the index of the first element.
fn scan(group: u32, thread: u32, base: u32) {
    let first = group * SPAN + (thread >> 5u) * TEAM_ELEMENTS + (thread & 31u);
    for (var q = 0u; q < 8u; q++) {
        let e = elements(first + q * 128u);
        let bad = exist(e) & ((load(e) & vec4<u32>(MAGNITUDE)) >= vec4<u32>(INF));
        if any(bad) {
            let found = select(vec4<u32>(0u), ~(e + vec4<u32>(base)), bad);
            atomicMax(&status[0], max(max(found.x, found.y), max(found.z, found.w)));
        }
    }
}
