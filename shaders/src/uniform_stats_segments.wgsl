// What: the uniform statistics of many tensors that lie in one buffer and are one bucket each, item by item.
// Arguments: EncodeParams; input, residual (FEEDBACK), workspace (the table), status (64 words, then 4 an item: as uniform_stats).
// Thread mapping: a workgroup takes an item of the table; within it as uniform_stats.
// Workgroup memory: 2 * 256 keys, of which one bucket's are used: 2048 bytes.
// Launch contract: as many workgroups as items from `partials` on.
// Traffic: as uniform_stats, and 32 bytes of the table an item.
// Determinism: as uniform_stats.
// Edge cases: as uniform_stats; what lies between tensors is not looked at.
@compute @workgroup_size(256)
fn uniform_stats_segments(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    open_item(group.x);
    measure(0u, thread, ONE_BUCKET);
    if thread == 0u {
        let keys = extremes_of(0u);
        let to = partial_at(group.x);
        status[to] = keys.x;
        status[to + 1u] = keys.y;
        status[to + 2u] = 0u;
        status[to + 3u] = 0u;
    }
}
