@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read> residual: array<u32>;
@group(0) @binding(3) var<storage, read_write> status: array<atomic<u32>>;
@group(0) @binding(4) var<storage, read> workspace: array<u32>;

// What: as finite_scan, of many tensors that lie in one buffer; the index is counted there.
// Arguments: EncodeParams; input, residual (FEEDBACK), status (the first word), workspace (the table).
// Thread mapping: a workgroup takes an item; within it as finite_scan.
// Workgroup memory: none.
// Launch contract: as many workgroups as items from `partials` on; the status was zeroed before the model's first
//   launch.
// Traffic: input (and residual) once, 32 bytes of the table an item.
// Determinism: a maximum of integers does not depend on its order.
// Edge cases: as finite_scan; what lies between tensors is not looked at.
@compute @workgroup_size(256)
fn finite_scan_segments(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    open_item(group.x);
    scan(0u, thread, params.base + first_element());
}
