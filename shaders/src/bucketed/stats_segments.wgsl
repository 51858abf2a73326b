@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read> residual: array<u32>;
@group(0) @binding(3) var<storage, read> workspace: array<u32>;
@group(0) @binding(4) var<storage, read_write> status: array<u32>;

fn put_partial(at: u32, word: u32) {
    status[at] = word;
}

// What: the statistics of many tensors that lie in one buffer and are one bucket each, item by item.
// Arguments: EncodeParams; input, residual (FEEDBACK), workspace (the table), status (64 words, then PARTIAL_WORDS an
//   item, as `stats` leaves them: `gradwire_kernels::params::whole` has the places).
// Thread mapping: a workgroup takes an item of the table; within it as `stats`.
// Workgroup memory: as `stats`.
// Launch contract: as many workgroups as items from `partials` on.
// Traffic: as `stats`, and 32 bytes of the table an item.
// Determinism: as `stats`.
// Edge cases: as `stats`; what lies between tensors is not looked at.
fn run(group: u32, thread: u32) {
    open_item(group);
    leave(0u, thread, 64u + (params.partials + group) * PARTIAL_WORDS);
}
