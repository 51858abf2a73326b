// What: folds the QSGD statistics of many tensors that are one bucket each, and writes the scalars on the wire.
// Arguments: EncodeParams; scalars (1 word per tensor), workspace (the table), status (what qsgd_stats_segments left, and behind it
//   two words per tensor).
// Thread mapping: a workgroup takes a tensor of the table; within it as qsgd_combine.
// Workgroup memory: 7 words, 28 bytes.
// Launch contract: as many workgroups as tensors from `partials` on, which begin at word `base` of the table.
// Traffic: as qsgd_combine, and 32 bytes of the table a tensor.
// Determinism: as qsgd_combine.
// Edge cases: as qsgd_combine; tensors without elements are not in the table.
@compute @workgroup_size(256)
fn qsgd_combine_segments(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    open_tensor(group.x);
    combine(thread);
}
