// What: folds the QSGD statistics of a tensor that is one bucket into its norm, and writes the scalar on the wire.
// Arguments: EncodeParams; scalars (1 word), workspace (64 words of which the first becomes the norm, then `partials` of 4).
// Thread mapping: thread k takes partial statistics k, k + 256, ...; thread 0 makes the norm.
// Workgroup memory: 7 words, 28 bytes.
// Launch contract: 1 workgroup.
// Traffic: every partial statistic once, with L2 once more from cache.
// Determinism: integers only; the sum is exact in 96 bits, so it does not depend on its order.
// Edge cases: NaN or infinity anywhere makes the norm NaN; a norm too large for binary32 is the largest finite number.
@compute @workgroup_size(256)
fn qsgd_combine(@builtin(local_invocation_index) thread: u32) {
    combine(thread);
}
