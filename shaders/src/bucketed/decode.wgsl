// What: decodes one payload, or the sum of several, over or onto the output.
// Arguments: DecodeParams; scalars (SCALARS words per bucket), codes, output.
// Thread mapping: a workgroup decodes 8 units, a team of 32 lanes one each; a lane its 8 slots. Thread k makes the
//   decoder of the span's bucket k, and for codes of up to 4 bits words 4 k to 4 k + 3 of the table of values.
// Workgroup memory: 64 decoders, 1024 bytes; for codes of up to 4 bits, the values of the buckets' codes, up to 4096 bytes.
// Launch contract: ceil(n / 2048) workgroups; `codes` holds whole units; payloads lie `scalar_stride` and `code_stride`
//   words apart; at least one payload.
// Traffic: codes and scalars once, output written once (and read once with ACCUMULATE).
// Determinism: integers only; payloads are added in order by the one thread that has the element.
// Edge cases: the codec's: codes and scalars that no encoder writes. Buckets beyond n are not read.
fn run(group: u32, thread: u32) {
    decode(group, thread);
}
