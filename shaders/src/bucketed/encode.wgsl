// The statistic of the one bucket of a tensor.
fn whole_statistic() -> vec2<u32> {
    return vec2<u32>(workspace[0], workspace[1]);
}

// What: measures the buckets, writes their scalars, rounds and packs; with FEEDBACK leaves the new residual.
// Arguments: EncodeParams; input, residual (FEEDBACK), scalars (unless the tensor is one bucket), codes, workspace (if
//   it is), status (GUARDED).
// Thread mapping: a workgroup encodes 32 units, a team of 32 lanes four of them in turn; a lane its 8 slots of each.
//   Thread k makes the encoder of the span's bucket k.
// Workgroup memory: 256 encoders and 256 decoders, 8192 bytes; 256 statistics, of 4 bytes per maximum and 8 bytes per
//   sum, or in their place 1024 words of small pieces: 12288 bytes for a statistic of up to 4 words, 16384 bytes for
//   one of 8.
// Launch contract: ceil(n / 8192) workgroups, n > 0; the launch starts at a unit and at a bucket; `codes` holds whole
//   units. Buffers that the flags and the bucket do not call for are not touched.
// Traffic: input (and residual) once from memory and once more from cache for each look, up to three; codes,
//   scalars and residual written once.
// Determinism: integers only; maxima and sums of integers do not depend on their order; draws depend on the element's
//   index.
// Edge cases: a bucket with a NaN or an infinity keeps its residual, and its scalars are NaN; codes beyond n are 0;
//   nothing is written where GUARDED and the status is not zero.
fn run(group: u32, thread: u32) {
    encode(group, thread);
}
