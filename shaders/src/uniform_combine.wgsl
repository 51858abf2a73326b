// The largest complement of a key, and the largest key.
var<workgroup> low_key: atomic<u32>;
var<workgroup> high_key: atomic<u32>;

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
    if thread == 0u {
        atomicStore(&low_key, 0u);
        atomicStore(&high_key, 0u);
    }
    workgroupBarrier();
    var low = 0xffffffffu;
    var high = 0u;
    for (var p = thread; p < params.partials; p += 256u) {
        low = min(low, workspace[FINAL_WORDS + p * 4u]);
        high = max(high, workspace[FINAL_WORDS + p * 4u + 1u]);
    }
    atomicMax(&low_key, ~low);
    atomicMax(&high_key, high);
    workgroupBarrier();
    if thread == 0u {
        let least = from_key(~atomicLoad(&low_key));
        let most = from_key(atomicLoad(&high_key));
        let wire = wire_of(least, most, params.beta);
        workspace[0] = least;
        workspace[1] = most;
        scalars[0] = wire.x;
        scalars[1] = wire.y;
    }
}
