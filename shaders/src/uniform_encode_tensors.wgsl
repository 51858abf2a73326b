// What: encodes many tensors that lie in one buffer and are one bucket each, each as uniform_encode does alone.
// Arguments: EncodeParams; input, residual (FEEDBACK), codes, workspace (the table), status (what uniform_combine_segments left, and
//   with GUARDED what the scan found).
// Thread mapping: a workgroup takes an item of the table; within it as uniform_encode.
// Workgroup memory: as uniform_encode, 14336 bytes.
// Launch contract: as many workgroups as items from `partials` on; every bucket is a whole tensor; no two items share an element.
// Traffic: as uniform_encode, and 32 bytes of the table an item.
// Determinism: as uniform_encode.
// Edge cases: as uniform_encode.
@compute @workgroup_size(256)
fn uniform_encode_tensors(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    open_item(group.x);
    encode(0u, thread);
}
