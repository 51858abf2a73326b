// What: decodes one QSGD payload, or the sum of several, over or onto the output.
// Arguments: DecodeParams; scalars (a norm a bucket), codes, output.
// Thread mapping: a workgroup decodes 8 units, a team of 32 lanes one each; a lane its 8 slots. Thread k makes the decoder of
//   the span's bucket k.
// Workgroup memory: 64 decoders, 1024 bytes.
// Launch contract: ceil(n / 2048) workgroups; `codes` holds whole units; payloads lie `scalar_stride` and `code_stride`
//   words apart; at least one payload.
// Traffic: codes and scalars once, output written once (and read once with ACCUMULATE).
// Determinism: integers only; payloads are added in order by the one thread that has the element.
// Edge cases: codes above the top level decode to the norm; a norm that is negative, infinite or NaN decodes to NaN; buckets
//   beyond n are not read.
@compute @workgroup_size(256)
fn qsgd_decode(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    decode(group.x, thread);
}
