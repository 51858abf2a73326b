@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> residual: array<u32>;
@group(0) @binding(3) var<storage, read_write> output: array<u32>;

// What: takes the entries that a seed draws (`kernels/random.rs`).
// Arguments: RandomParams; input, or with TAKE residual, `n` words; output (a word per entry).
// Thread mapping: an invocation an entry.
// Workgroup memory: none.
// Launch contract: ceil(entries / 256) workgroups.
// Traffic: a sector of the input per entry where they are sparse, and 4 bytes; with TAKE another sector.
// Determinism: no two entries have one place.
// Edge cases: a factor of 1 leaves the bits; a NaN is written as the one NaN.
@compute @workgroup_size(256)
fn random_gather(@builtin(global_invocation_id) invocation: vec3<u32>) {
    let entry = invocation.x;
    if entry >= params.entries {
        return;
    }
    let at = place(params.first + entry);
    if (params.flags & FLAG_TAKE) != 0u {
        output[entry] = scaled(residual[at]);
        residual[at] = 0u;
    } else {
        output[entry] = scaled(input[at]);
    }
}
