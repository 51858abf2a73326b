@group(0) @binding(1) var<storage, read> codes: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<u32>;
@group(0) @binding(3) var<storage, read_write> workspace: array<u32>;

// What: the words that each unit takes in base 3, as bytes of the table, and their sum (`kernels/entropy/base3.rs`).
// Arguments: EntropyParams; codes (read), values (the table is written), workspace (a sum for each workgroup).
// Thread mapping: a workgroup takes 256 units, a team of 32 lanes 32 of them in turn, a lane 8 plain bytes.
// Workgroup memory: 768 words, 3072 bytes.
// Launch contract: ceil(units / 256) workgroups.
// Traffic: the codes once, a byte per unit and a word for each 256.
// Determinism: integers only.
// Edge cases: units behind the last are none, and their bytes in the table's last word zero; codes behind the last unit of fixed
// width count as zeros.
@compute @workgroup_size(256)
fn base3_measure(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread & 31u;
    let first = group.x * BLOCK_UNITS;
    for (var k = 0u; k < 32u; k++) {
        let own = (thread & ~31u) + k;
        let unit = first + own;
        var bytes = vec2<u32>(0u);
        if unit < params.units {
            bytes = plain(unit, lane);
        }
        let begin = begin_of(bytes, thread);
        var count = 0u;
        if unit < params.units {
            count = countOneBits(encode(bytes, begin, thread).ends);
        }
        let behind = before(count, thread, 32u) + count;
        if lane == 31u {
            measured[own] = (behind + 3u) / 4u;
        }
    }
    leave(group.x, thread);
}
