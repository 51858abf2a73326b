// What: encodes many tensors that lie in one buffer and are one bucket each, each as `encode` does alone.
// Arguments: EncodeParams; input, residual (FEEDBACK), codes, workspace (the table), status (what `combine_segments` left, and
//   with GUARDED what the scan found).
// Thread mapping: a workgroup takes an item of the table; within it as `encode`.
// Workgroup memory: as `encode`.
// Launch contract: as many workgroups as items from `partials` on; every bucket is a whole tensor; no two items share an element.
// Traffic: as `encode`, and 32 bytes of the table an item.
// Determinism: as `encode`.
// Edge cases: as `encode`.
fn run(group: u32, thread: u32) {
    open_item(group);
    encode(0u, thread);
}
