// What: stores the candidates of each tile in order, and counts them (`kernels/topk/filter.rs`).
// Arguments: SelectParams; input, residual (FEEDBACK: becomes the sum), workspace (the counts of the states, the histograms and
// the room are added to; info, values, places and band of the tiles are written, a word each).
// Thread mapping: a team of 32 lanes takes 1024 elements of a tile, a lane the 32 that are 32 apart.
// Workgroup memory: 1287 words, 5148 bytes.
// Launch contract: one workgroup a tile, the tiles from first_tile on.
// Traffic: input (and residual) once; the candidates once more, from cache.
// Determinism: what is stored of a tile is; where, depends on the order in which tiles come.
// Edge cases: segments begin and end anywhere.
@compute @workgroup_size(256)
fn topk_filter(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    load_job(params.first_tile + group.x, thread, false);
    if workgroupUniformLoad(&unsampled) == 0u {
        filter_tile(params.first_tile + group.x, thread, false);
    } else if thread < 4u {
        // All of it is left to the sketch.
        atomicStore(&workspace[params.info + 4u * (params.first_tile + group.x) + thread], 0u);
    }
}
