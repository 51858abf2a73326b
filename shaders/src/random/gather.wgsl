@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> residual: array<u32>;
@group(0) @binding(3) var<storage, read_write> output: array<u32>;

// What: takes the entries that a seed draws, or with ADD adds the input to the residual (`kernels/random.rs`).
// Arguments: RandomParams; input, or with TAKE residual, or with ADD both, `n` words; output (a word per entry).
// Thread mapping: an invocation an entry.
// Workgroup memory: none.
// Launch contract: ceil(entries / 256) workgroups.
// Traffic: a sector of the input per entry where they are sparse, and 4 bytes; with TAKE another sector. With ADD 12
// bytes per element.
// Determinism: no two entries have one place.
// Edge cases: a factor of 1 leaves the bits; a NaN is written as the one NaN.
@compute @workgroup_size(256)
fn random_gather(@builtin(global_invocation_id) invocation: vec3<u32>) {
    let entry = invocation.x;
    if entry >= params.entries {
        return;
    }
    if (params.flags & FLAG_ADD) != 0u {
        let at = params.first + entry;
        residual[at] = f_add(vec4<u32>(residual[at]), vec4<u32>(scaled(input[at]))).x;
        return;
    }
    let at = place(params.first + entry);
    if (params.flags & FLAG_TAKE) != 0u {
        let value = residual[at];
        let sent = scaled(value);
        output[entry] = sent;
        let rest = f_add(vec4<u32>(value), vec4<u32>(sent ^ SIGN)).x;
        residual[at] = select(rest, 0u, params.factor == 0x3f800000u);
    } else {
        output[entry] = scaled(input[at]);
    }
}
