// What: encodes with QSGD: measures the buckets, writes their norms, rounds and packs; with FEEDBACK leaves the new residual.
// Arguments: EncodeParams; input, residual (FEEDBACK), scalars (unless the tensor is one bucket), codes, workspace (if it is),
//   status (GUARDED).
// Thread mapping: a workgroup encodes 32 units, a team of 32 lanes four of them in turn; a lane its 8 slots of each. Thread k
//   makes the encoder of the span's bucket k.
// Workgroup memory: 256 largest magnitudes, 3 * 256 words of sums, 256 encoders, 1024 words of small pieces: 12288 bytes.
// Launch contract: ceil(n / 8192) workgroups, n > 0; the launch starts at a unit and at a bucket; `codes` holds whole units.
//   Buffers that the flags and the bucket do not call for are not touched.
// Traffic: input (and residual) once from memory and one or two times more from cache; codes, scalars and residual written once.
// Determinism: integers only; maxima and sums of integers do not depend on their order; draws depend on the element's index.
// Edge cases: a bucket with a NaN or an infinity has norm NaN, codes 0 and keeps its residual; codes beyond n are 0; nothing is
//   written where GUARDED and the status is not zero.
@compute @workgroup_size(256)
fn qsgd_encode(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    encode(group.x, thread);
}
