@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> residual: array<u32>;
@group(0) @binding(3) var<storage, read_write> workspace: array<u32>;
@group(0) @binding(4) var<storage, read_write> status: array<atomic<u32>>;
