// What: folds the uniform statistics of many tensors that are one bucket each, and writes the scalars on the wire.
// Arguments: EncodeParams; scalars (2 words per tensor), workspace (the table), status (what uniform_stats_segments left, and behind it
//   two words per tensor).
// Thread mapping: a workgroup takes a tensor of the table; within it as uniform_combine.
// Workgroup memory: 2 words, 8 bytes.
// Launch contract: as many workgroups as tensors from `partials` on, which begin at word `base` of the table.
// Traffic: as uniform_combine, and 32 bytes of the table a tensor.
// Determinism: as uniform_combine.
// Edge cases: as uniform_combine; tensors without elements are not in the table.
@compute @workgroup_size(256)
fn uniform_combine_segments(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    open_tensor(group.x);
    combine(thread);
}
