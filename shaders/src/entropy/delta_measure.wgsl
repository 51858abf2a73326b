@group(0) @binding(1) var<storage, read> codes: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<u32>;
@group(0) @binding(3) var<storage, read_write> workspace: array<u32>;

// What: the words that each unit's Elias delta codes take, as bytes of the table, and their sum (`kernels/entropy/delta.rs`).
// Arguments: EntropyParams; codes (read), values (the table is written), workspace (a sum for each workgroup).
// Thread mapping: as that of `elias_measure`.
// Workgroup memory: 512 words, 2048 bytes.
// Launch contract: ceil(units / 256) workgroups.
// Traffic: the codes once, a byte per unit and a word for each 256.
// Determinism: integers only.
// Edge cases: units behind the last are none, and their bytes in the table's last word zero.
@compute @workgroup_size(256)
fn elias_delta_measure(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread & 31u;
    let first = group.x * BLOCK_UNITS;
    for (var k = 0u; k < 32u; k++) {
        let own = (thread & ~31u) + k;
        let unit = first + own;
        var bits = 0u;
        if unit < params.units {
            let at = unit * 8u * params.bits;
            let low = exponents(unpack(at, lane, 0u));
            let high = exponents(unpack(at, lane, 1u));
            // A middle is as long as a unary part but for its one.
            bits = 8u + sum4(2u * classes(low) + rest_bits(low)) + sum4(2u * classes(high) + rest_bits(high));
        }
        let behind = before(bits, thread, 32u) + bits;
        if lane == 31u {
            measured[own] = (behind + 31u) / 32u;
        }
    }
    leave(group.x, thread);
}
