// What: filters tiles again whose first candidates were not those that are needed (`kernels/topk/filter.rs`).
// Arguments: as topk_filter; the residual (FEEDBACK) holds the sum, and is read; the sketch's counts and their sums are read.
// Thread mapping: a workgroup takes 8 tiles one after another.
// Workgroup memory: 1287 words, 5148 bytes.
// Launch contract: a workgroup for each 8 of `tiles` tiles, from first_tile on.
// Traffic: little, where no segment asks for this round; else as topk_filter.
// Determinism: as topk_filter.
// Edge cases: a tile of a segment that does not ask is left alone.
@compute @workgroup_size(256)
fn topk_filter_again(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    for (var k = 0u; k < TILES_AGAIN; k++) {
        let of_launch = group.x * TILES_AGAIN + k;
        if of_launch < params.tiles {
            load_job(params.first_tile + of_launch, thread, true);
            if workgroupUniformLoad(&again) == 1u {
                filter_tile(params.first_tile + of_launch, thread, true);
            }
        }
        // The next tile's words are not written before this one's were read.
        workgroupBarrier();
    }
}
