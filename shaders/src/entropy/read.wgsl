// What: reads Elias codes, and writes codes of fixed width (`kernels/entropy/read.rs`).
// Arguments: EntropyParams; codes (written), values (the table and the words are read), workspace (where the words of each 256 units
// begin).
// Thread mapping: as `elias_measure`. Ones are counted of each lane's words, and a lane begins behind the last one of the lane before.
// Workgroup memory: 2816 words, 11264 bytes.
// Launch contract: ceil(units / 256) workgroups, behind `entropy_sums` and `entropy_offsets`; as many words as the table names.
// Traffic: the words and a byte per unit read, the codes written.
// Determinism: integers only.
// Edge cases: bits behind a unit's words read as ones; a level above what the width holds is the largest one; units behind the last
// have no codes.
@compute @workgroup_size(256)
fn elias_read(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread & 31u;
    let team = thread >> 5u;
    let first = group.x * BLOCK_UNITS;
    begins[thread] = before(words_of(first + thread), thread, 256u);
    workgroupBarrier();
    for (var k = 0u; k < 32u; k++) {
        let own = team * 32u + k;
        let unit = first + own;
        let words = words_of(unit);
        take(team, lane, params.table + workspace[group.x] + begins[own], words);
        workgroupBarrier();
        var q: array<u32, 8>;
        let end = find(team, lane, thread, words, &q);
        var rests = 0u;
        for (var slot = 0u; slot < 8u; slot++) {
            rests += q[slot] + min(q[slot], 1u);
        }
        // The ones were read.
        workgroupBarrier();
        // Rests begin where the last lane's unary parts end.
        if lane == 31u {
            small[team] = end;
        }
        let rests_before = before(rests, thread, 32u);
        var rest_at = small[team] + rests_before;
        var c: array<u32, 8>;
        for (var slot = 0u; slot < 8u; slot++) {
            c[slot] = code(team, rest_at, q[slot], words);
            rest_at += q[slot] + min(q[slot], 1u);
        }
        workgroupBarrier();
        store(team, lane, thread, unit, &c);
        workgroupBarrier();
    }
}
