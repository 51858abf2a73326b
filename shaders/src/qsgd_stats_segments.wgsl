// What: the QSGD statistics of many tensors that lie in one buffer and are one bucket each, item by item.
// Arguments: EncodeParams; input, residual (FEEDBACK), workspace (the table), status (64 words, then 4 an item: as qsgd_stats).
// Thread mapping: a workgroup takes an item of the table; within it as qsgd_stats.
// Workgroup memory: 256 largest magnitudes and 3 * 256 words of sums, of which one bucket's are used: 4096 bytes.
// Launch contract: as many workgroups as items from `partials` on.
// Traffic: as qsgd_stats, and 32 bytes of the table an item.
// Determinism: as qsgd_stats.
// Edge cases: as qsgd_stats; what lies between tensors is not looked at.
@compute @workgroup_size(256)
fn qsgd_stats_segments(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    open_item(group.x);
    measure(0u, thread, ONE_BUCKET);
    if thread == 0u {
        let most = atomicLoad(&largest[0]);
        let sum = select(vec2<u32>(0u), sum_of(0u), has(FLAG_L2) && most != 0u && most < INF);
        let to = partial_at(group.x);
        status[to] = most;
        status[to + 1u] = sum.x;
        status[to + 2u] = sum.y;
        status[to + 3u] = 0u;
    }
}
