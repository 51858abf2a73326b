// What: decodes payloads of many tensors that lie in one buffer, each as qsgd_decode does alone.
// Arguments: DecodeParams; scalars (a norm a bucket), codes, output, workspace (the table).
// Thread mapping: four workgroups take an item of the table; within it as qsgd_decode.
// Workgroup memory: 64 decoders, 1024 bytes.
// Launch contract: four workgroups an item from `first_item` on; no two items share an element.
// Traffic: as qsgd_decode, and 16 bytes of the table a workgroup.
// Determinism: as qsgd_decode.
// Edge cases: as qsgd_decode.
@compute @workgroup_size(256)
fn qsgd_decode_segments(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    open_item(group.x >> 2u);
    decode(group.x & 3u, thread);
}
