@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read> residual: array<u32>;
@group(0) @binding(3) var<storage, read> workspace: array<u32>;
@group(0) @binding(4) var<storage, read_write> status: array<u32>;

// Where the partial statistic of a workgroup's item goes: `gradwire_kernels::params::whole` has the places.
fn partial_at(group: u32) -> u32 {
    return 64u + (params.partials + group) * 4u;
}
