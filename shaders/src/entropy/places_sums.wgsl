@group(0) @binding(1) var<storage, read> values: array<u32>;
@group(0) @binding(2) var<storage, read_write> workspace: array<u32>;

// What: how many words each unit of a table takes (`kernels/entropy/places.rs`).
// Arguments: EntropyParams; values (the table is read), workspace (a word per unit).
// Thread mapping: an invocation a unit.
// Workgroup memory: 256 words, 1024 bytes.
// Launch contract: ceil(units / 256) workgroups.
// Traffic: 8 bytes per unit.
// Determinism: integers only.
// Edge cases: none.
@compute @workgroup_size(256)
fn entropy_places_sums(@builtin(global_invocation_id) at: vec3<u32>) {
    if at.x < params.units {
        workspace[at.x] = words_of(values[at.x]);
    }
}
