// What: the extremes of spans of 8192 elements, as keys that order as the numbers do.
// Arguments: EncodeParams; input, residual (FEEDBACK), workspace (4 words a workgroup: least key, largest key, 0, 0).
// Thread mapping: a team of 32 lanes takes 1024 elements, a lane 32 of them.
// Workgroup memory: 2 * 256 keys, of which one bucket's are used: 2048 bytes.
// Launch contract: ceil(n / 8192) workgroups, n > 0.
// Traffic: input (and residual) once from memory; 16 bytes a workgroup written.
// Determinism: maxima of integers do not depend on their order.
// Edge cases: NaN has a key beyond infinity's, on the side of its sign, so that a span with one has an extreme not finite.
@compute @workgroup_size(256)
fn uniform_stats(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    measure(group.x * SPAN, thread, ONE_BUCKET);
    if thread == 0u {
        let keys = extremes_of(0u);
        let at = group.x * 4u;
        workspace[at] = keys.x;
        workspace[at + 1u] = keys.y;
        workspace[at + 2u] = 0u;
        workspace[at + 3u] = 0u;
    }
}
