// Step, top, state: as `decoder_of` gives them.
var<workgroup> decoders: array<vec4<u32>, 64>;

fn prepare(bucket: u32, base: u32, index: u32) {
    let decoder = decoder_of(scalars[base + index]);
    decoders[bucket] = vec4<u32>(decoder.step, decoder.top, decoder.state, 0u);
}

fn value(row: u32, shift: u32, code: vec4<u32>) -> vec4<u32> {
    let a = decoders[row >> shift];
    let b = decoders[(row + 1u) >> shift];
    let c = decoders[(row + 2u) >> shift];
    let d = decoders[(row + 3u) >> shift];
    return value_of(
        code,
        vec4<u32>(a.x, b.x, c.x, d.x),
        vec4<u32>(a.y, b.y, c.y, d.y),
        vec4<u32>(a.z, b.z, c.z, d.z),
    );
}
