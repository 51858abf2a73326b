@group(0) @binding(1) var<storage, read_write> workspace: array<u32>;

// What the tiles of each invocation count.
var<workgroup> kept_of: array<u32, 256>;
var<workgroup> ties_of: array<u32, 256>;

// What: makes of each tile's two counts the sums of those before, and leaves the sums of all behind the last
// (`kernels/topk/scan.rs`).
// Arguments: SelectParams; workspace (counts are changed).
// Thread mapping: an invocation takes neighbouring tiles.
// Workgroup memory: 512 words, 2048 bytes.
// Launch contract: one workgroup.
// Traffic: 8 bytes a tile, twice read and once written.
// Determinism: sums of integers.
// Edge cases: invocations behind the last tile have none; nothing is done in round 1 where no segment is left to the sketch.
@compute @workgroup_size(256)
fn topk_scan(@builtin(local_invocation_index) thread: u32) {
    let idle = params.round != 0u && word(params.room + ANY_SKETCH) == 0u;
    let tiles = select(params.all_tiles, 0u, idle);
    let each = (tiles + 255u) / 256u;
    let first = min(thread * each, tiles);
    let behind = min(first + each, tiles);
    var sum = vec2<u32>(0u);
    for (var tile = first; tile < behind; tile++) {
        let at = params.counts + 2u * tile;
        sum += vec2<u32>(workspace[at], workspace[at + 1u]);
    }
    kept_of[thread] = sum.x;
    ties_of[thread] = sum.y;
    workgroupBarrier();
    var start = vec2<u32>(0u);
    for (var other = 0u; other < thread; other++) {
        start += vec2<u32>(kept_of[other], ties_of[other]);
    }
    for (var tile = first; tile < behind; tile++) {
        let at = params.counts + 2u * tile;
        let own = vec2<u32>(workspace[at], workspace[at + 1u]);
        workspace[at] = start.x;
        workspace[at + 1u] = start.y;
        start += own;
    }
    if thread == 255u && !idle {
        let at = params.counts + 2u * params.all_tiles;
        workspace[at] = start.x;
        workspace[at + 1u] = start.y;
    }
}
