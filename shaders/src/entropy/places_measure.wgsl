@group(0) @binding(1) var<storage, read> codes: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<u32>;
@group(0) @binding(3) var<storage, read_write> workspace: array<u32>;

// Codes of the unit whose level is not zero, and the largest level.
var<workgroup> counted: atomic<u32>;
var<workgroup> largest: atomic<u32>;

// What: the entry of each unit, and its words (`kernels/entropy/places.rs`).
// Arguments: EntropyParams; codes (read), values (the table is written), workspace (a word per unit).
// Thread mapping: a workgroup takes a unit, a team of 32 lanes 8 units of 256 codes, a lane 8 codes of each.
// Workgroup memory: 258 words, 1032 bytes.
// Launch contract: `units` workgroups.
// Traffic: the codes once, 8 bytes per unit.
// Determinism: integers only.
// Edge cases: codes after the last unit of fixed width count as zeros, and so does a level of zero with a sign.
@compute @workgroup_size(256)
fn entropy_places_measure(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    if thread == 0u {
        atomicStore(&counted, 0u);
        atomicStore(&largest, 0u);
    }
    workgroupBarrier();
    var own = 0u;
    var most = 0u;
    for (var k = 0u; k < OWN; k++) {
        let lane = lane_of(group.x, thread, k);
        own += countOneBits(lane.found);
        for (var slot = 0u; slot < 8u; slot++) {
            most = max(most, lane.codes[slot] & ((1u << (params.bits - 1u)) - 1u));
        }
    }
    if own > 0u {
        atomicAdd(&counted, own);
        atomicMax(&largest, most);
    }
    workgroupBarrier();
    if thread == 0u {
        let levels = max(atomicLoad(&largest), 1u) - 1u;
        let entry = atomicLoad(&counted) | ((32u - countLeadingZeros(levels)) << 16u);
        values[group.x] = entry;
        workspace[group.x] = words_of(entry);
    }
}
