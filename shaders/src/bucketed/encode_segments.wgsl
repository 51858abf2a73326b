// The statistic of the tensor that a workgroup's item is a part of, where that is one bucket.
fn whole_statistic() -> vec2<u32> {
    let place = workspace[at + 7u];
    return vec2<u32>(status[place], status[place + 1u]);
}

// What: encodes many tensors that lie in one buffer, each as `encode` does alone. Entry points encode_segments, for
//   buckets that are no whole tensors, and encode_tensors, for tensors that are one bucket each.
// Arguments: EncodeParams; input, residual (FEEDBACK), scalars (encode_segments), codes, workspace (the table), status
//   (GUARDED: what the scan found; encode_tensors: what `combine_segments` left).
// Thread mapping: a workgroup takes an item of the table; within it as `encode`.
// Workgroup memory: as `encode`.
// Launch contract: as many workgroups as items from `partials` on; no two items share an element.
// Traffic: as `encode`, and 32 bytes of the table an item.
// Determinism: as `encode`.
// Edge cases: as `encode`.
fn run(group: u32, thread: u32) {
    open_item(group);
    encode(0u, thread);
}
