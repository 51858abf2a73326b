@group(0) @binding(1) var<storage, read_write> residual: array<u32>;
@group(0) @binding(2) var<storage, read_write> workspace: array<u32>;

// What: takes off a residual what was sent of it last (`kernels/topk/settle.rs`); with FORGETS, leaves in the table that nothing was.
// Arguments: SelectParams; residual (written where an element becomes zero that was not), workspace (the table; with FORGETS what was
// sent is written, and nothing read).
// Thread mapping: a workgroup takes a tile, an invocation every 256th element of it; with FORGETS, an invocation takes a segment.
// Workgroup memory: none.
// Launch contract: a workgroup for each tile from first_tile on, all of whose elements are bound; no two segments share one. With
// FORGETS, a workgroup for each 256 segments from that number on.
// Traffic: 4 bytes per element of the segments, and what becomes zero.
// Determinism: integers only.
// Edge cases: minus zero that was sent becomes zero; all NaN have one key.
@compute @workgroup_size(256)
fn topk_settle(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    if has(FLAG_FORGETS) {
        let segment = params.first_tile + group.x * 256u + thread;
        if segment < params.segments {
            workspace[segment * SEGMENT_WORDS + SENT_KEY] = NO_KEY;
            workspace[segment * SEGMENT_WORDS + SENT_INDEX] = 0u;
        }
        return;
    }
    let tile = params.first_tile + group.x;
    let index = segment_of(tile);
    let sent_key = table(index, SENT_KEY);
    let sent_index = table(index, SENT_INDEX);
    let start = table(index, START);
    let end = start + table(index, ELEMENTS);
    let base = (start & ~31u) + (tile - table(index, FIRST_TILE)) * TILE;
    for (var k = 0u; k < TILE / 256u; k++) {
        let element = base + k * 256u + thread;
        if element >= start && element < end {
            let old = residual[element - params.first];
            let key = min(old & MAGNITUDE, INF + 1u);
            let was_sent = key > sent_key || (key == sent_key && element <= sent_index);
            if was_sent && old != 0u {
                residual[element - params.first] = 0u;
            }
        }
    }
}
