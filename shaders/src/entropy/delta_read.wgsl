// What: reads Elias delta codes, and writes codes of fixed width (`kernels/entropy/delta.rs`).
// Arguments: as those of `elias_read`.
// Thread mapping: as that of `elias_read`. From the lengths of unary parts a lane finds its middles, and from those its rests.
// Workgroup memory: 2816 words, 11264 bytes.
// Launch contract: ceil(units / 256) workgroups, behind `entropy_sums` and `entropy_offsets`; as many words as the table names.
// Traffic: the words and a byte per unit read, the codes written.
// Determinism: integers only.
// Edge cases: as those of `elias_read`; a class above 4 counts as 4.
@compute @workgroup_size(256)
fn elias_delta_read(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
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
        // A class above 4, which no encoder writes, counts as 4.
        var middles = 0u;
        for (var slot = 0u; slot < 8u; slot++) {
            q[slot] = min(q[slot], 4u);
            middles += q[slot];
        }
        // The ones were read.
        workgroupBarrier();
        // Middles begin where the last lane's unary parts end.
        if lane == 31u {
            small[team] = end;
        }
        let middles_before = before(middles, thread, 32u);
        var at = small[team] + middles_before;
        let rests_begin = small[team] + total(thread, 32u);
        var rests = 0u;
        for (var slot = 0u; slot < 8u; slot++) {
            let r = q[slot];
            let power = 1u << r;
            q[slot] = power + (window(team, at, words) & (power - 1u)) - 1u;
            at += r;
            rests += q[slot] + min(q[slot], 1u);
        }
        // The sums were read.
        workgroupBarrier();
        let rests_before = before(rests, thread, 32u);
        var rest_at = rests_begin + rests_before;
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
