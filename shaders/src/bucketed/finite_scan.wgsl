@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read> residual: array<u32>;
@group(0) @binding(3) var<storage, read_write> status: array<atomic<u32>>;

// What: leaves in the status word where the first element is that is not finite: the complement of its index, 0 if none
//   is.
// Arguments: EncodeParams; input, residual (FEEDBACK), status (the first word).
// Thread mapping: a team of 32 lanes takes 1024 elements, a lane 32 of them.
// Workgroup memory: none.
// Launch contract: ceil(n / 8192) workgroups, n > 0; the status was zeroed before the tensor's first launch.
// Traffic: input (and residual) once.
// Determinism: a maximum of integers does not depend on its order.
// Edge cases: elements beyond n are not looked at; gradient + residual may be infinite where neither is.
@compute @workgroup_size(256)
fn finite_scan(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    scan(group.x, thread, params.first_unit * UNIT);
}
