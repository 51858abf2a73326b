// What: decodes payloads of many tensors that lie in one buffer, each as uniform_decode does alone.
// Arguments: DecodeParams; scalars (minimum and maximum of each bucket), codes, output, workspace (the table).
// Thread mapping: four workgroups take an item of the table; within it as uniform_decode.
// Workgroup memory: 64 decoders, 1024 bytes.
// Launch contract: four workgroups an item from `first_item` on; no two items share an element.
// Traffic: as uniform_decode, and 16 bytes of the table a workgroup.
// Determinism: as uniform_decode.
// Edge cases: as uniform_decode.
@compute @workgroup_size(256)
fn uniform_decode_segments(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    open_item(group.x >> 2u);
    decode(group.x & 3u, thread);
}
