@group(0) @binding(1) var<storage, read> values: array<u32>;
@group(0) @binding(2) var<storage, read_write> workspace: array<u32>;

// What: the sum of the words that the table names, for each 256 units (`kernels/entropy/sums.rs`).
// Arguments: EntropyParams; values (the table is read), workspace (a sum for each workgroup).
// Thread mapping: a workgroup takes 256 units, an invocation a unit.
// Workgroup memory: 256 words, 1024 bytes.
// Launch contract: ceil(units / 256) workgroups.
// Traffic: a byte per unit, and a word for each 256.
// Determinism: integers only.
// Edge cases: units behind the last have no words.
@compute @workgroup_size(256)
fn entropy_sums(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let words = words_of(group.x * BLOCK_UNITS + thread);
    let sum = before(words, thread, 256u) + words;
    if thread == 255u {
        workspace[group.x] = sum;
    }
}
