@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read> residual: array<u32>;
@group(0) @binding(3) var<storage, read_write> workspace: array<atomic<u32>>;

// What: narrows down which key is the last kept one, and counts the keys among which it still is
// (`kernels/topk/histogram.rs`).
// Arguments: SelectParams; input, or residual (FEEDBACK); workspace (the next states are written, histograms added to or made
// zero).
// Thread mapping: a team of 32 lanes takes each eighth of a segment's tiles in the workgroup.
// Workgroup memory: 86 words, 344 bytes.
// Launch contract: a workgroup for each 8 * tiles_per_team(tiles) of `tiles` tiles, from first_tile on.
// Traffic: the band, or the sketch, once; two atomic operations for each element of the range; a state and up to 96 words of
// a histogram for each segment of a workgroup.
// Determinism: sums of integers.
// Edge cases: nothing is counted of a segment whose last kept key is known.
@compute @workgroup_size(256)
fn topk_histogram(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    count_group(group.x, thread);
}
