// `gradwire_kernels::params::ScatterParams`, word for word.
struct ScatterParams {
    entries: u32,
    first: u32,
    bound: u32,
    flags: u32,
    weight: u32,
    reserved_0: u32,
    reserved_1: u32,
    reserved_2: u32,
}

@group(0) @binding(0) var<uniform> params: ScatterParams;
@group(0) @binding(1) var<storage, read> indices: array<u32>;
@group(0) @binding(2) var<storage, read> values: array<u32>;
@group(0) @binding(3) var<storage, read_write> output: array<u32>;

const FLAG_ACCUMULATE: u32 = 1u;

// What: puts the entries of a sparse payload in their places (`kernels/sparse.rs`).
// Arguments: ScatterParams; indices and values (a word per entry), output (the elements from `first` on).
// Thread mapping: an invocation an entry.
// Workgroup memory: none.
// Launch contract: ceil(entries / 256) workgroups; no index twice.
// Traffic: 8 bytes per entry, and its place in the output.
// Determinism: no two entries have one place.
// Edge cases: entries outside of what is bound are another launch's; a NaN is written as the one NaN.
@compute @workgroup_size(256)
fn sparse_scatter(@builtin(global_invocation_id) invocation: vec3<u32>) {
    let entry = invocation.x;
    if entry >= params.entries {
        return;
    }
    // What lies before the first wraps around, and is not below either.
    let at = indices[entry] - params.first;
    if at >= params.bound {
        return;
    }
    let value = values[entry];
    if (params.flags & FLAG_ACCUMULATE) != 0u {
        let product = f_mul1(params.weight, value);
        output[at] = f_add(vec4<u32>(output[at]), vec4<u32>(product)).x;
    } else {
        output[at] = select(value, NAN, (value & MAGNITUDE) > INF);
    }
}
