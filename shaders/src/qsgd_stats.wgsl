// What: the QSGD statistics of spans of 8192 elements: the largest magnitude and, with L2, the sum of squares aligned to it.
// Arguments: EncodeParams; input, residual (FEEDBACK), workspace (4 words a workgroup: largest, sum low, sum high, 0).
// Thread mapping: a team of 32 lanes takes 1024 elements, a lane 32 of them.
// Workgroup memory: 256 largest magnitudes and 3 * 256 words of sums, of which one bucket's are used: 4096 bytes.
// Launch contract: ceil(n / 8192) workgroups, n > 0.
// Traffic: input (and residual) once from memory, with L2 once more from cache; 16 bytes a workgroup written.
// Determinism: integers only; maxima and sums of integers do not depend on their order.
// Edge cases: the sum is 0 where the largest magnitude is 0 or not finite.
@compute @workgroup_size(256)
fn qsgd_stats(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    measure(group.x * SPAN, thread, ONE_BUCKET);
    if thread == 0u {
        let most = atomicLoad(&largest[0]);
        let sum = select(vec2<u32>(0u), sum_of(0u), has(FLAG_L2) && most != 0u && most < INF);
        let at = group.x * 4u;
        workspace[at] = most;
        workspace[at + 1u] = sum.x;
        workspace[at + 2u] = sum.y;
        workspace[at + 3u] = 0u;
    }
}
