@group(0) @binding(1) var<storage, read> values: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;

// What: puts entries in the places that a seed draws (`kernels/random.rs`).
// Arguments: RandomParams; values (a word per entry), output (`n` words).
// Thread mapping: an invocation an entry.
// Workgroup memory: none.
// Launch contract: ceil(entries / 256) workgroups.
// Traffic: 4 bytes per entry, and a sector of the output where they are sparse; twice with ACCUMULATE.
// Determinism: no two entries have one place.
// Edge cases: a NaN is written as the one NaN.
@compute @workgroup_size(256)
fn random_scatter(@builtin(global_invocation_id) invocation: vec3<u32>) {
    let entry = invocation.x;
    if entry >= params.entries {
        return;
    }
    let at = place(params.first + entry);
    let value = values[entry];
    if (params.flags & FLAG_ACCUMULATE) != 0u {
        let product = f_mul1(params.factor, value);
        output[at] = f_add(vec4<u32>(output[at]), vec4<u32>(product)).x;
    } else {
        output[at] = scaled(value);
    }
}
