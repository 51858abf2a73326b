// What: folds the extremes of a tensor that is one bucket, and writes the scalars on the wire.
// Arguments: EncodeParams; scalars (2 words), workspace (64 words of which the first two become the extremes, then `partials`
//   of 4).
// Thread mapping: thread k takes partial statistics k, k + 256, ...; thread 0 writes.
// Workgroup memory: 2 words, 8 bytes.
// Launch contract: 1 workgroup.
// Traffic: every partial statistic once.
// Determinism: maxima of integers do not depend on their order.
// Edge cases: an extreme that is not finite makes both scalars NaN.
@compute @workgroup_size(256)
fn uniform_combine(@builtin(local_invocation_index) thread: u32) {
    combine(thread);
}
