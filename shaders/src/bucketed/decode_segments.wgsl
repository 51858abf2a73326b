@group(0) @binding(4) var<storage, read> workspace: array<u32>;

// What: decodes payloads of many tensors that lie in one buffer, each as `decode` does alone.
// Arguments: DecodeParams; scalars (SCALARS words per bucket), codes, output, workspace (the table).
// Thread mapping: four workgroups take an item of the table; within it as `decode`.
// Workgroup memory: 64 decoders, 1024 bytes; for codes of up to 4 bits, the values of the buckets' codes, up to 4096 bytes.
// Launch contract: four workgroups an item from `first_item` on; no two items share an element.
// Traffic: as `decode`, and 16 bytes of the table a workgroup.
// Determinism: as `decode`.
// Edge cases: as `decode`.
fn run(group: u32, thread: u32) {
    open_item(group >> 2u);
    decode(group & 3u, thread);
}
