@group(0) @binding(1) var<storage, read> codes: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<u32>;
@group(0) @binding(3) var<storage, read> workspace: array<u32>;

// What: writes in base 3 the codes of units that were measured (`kernels/entropy/base3.rs`).
// Arguments: EntropyParams; codes (read), values (the table is read, the words are written), workspace (where the words of each 256
// units begin).
// Thread mapping: as `base3_measure`.
// Workgroup memory: 2816 words, 11264 bytes.
// Launch contract: ceil(units / 256) workgroups, behind `base3_measure` and `entropy_offsets` over the same codes.
// Traffic: the codes and a byte per unit read, the words written.
// Determinism: integers only; no two bytes share a bit.
// Edge cases: units behind the last have no words.
@compute @workgroup_size(256)
fn base3_write(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread & 31u;
    let team = thread >> 5u;
    let first = group.x * BLOCK_UNITS;
    begins[thread] = before(words_of(first + thread), thread, 256u);
    workgroupBarrier();
    for (var k = 0u; k < 32u; k++) {
        let own = team * 32u + k;
        let unit = first + own;
        let words = words_of(unit);
        for (var w = lane; w < 64u; w += 32u) {
            atomicStore(&unit_words[team * 256u + w], 0u);
        }
        var bytes = vec2<u32>(0u);
        if words > 0u {
            bytes = plain(unit, lane);
        }
        let begin = begin_of(bytes, thread);
        let all = encode(bytes, begin, thread);
        var at = before(countOneBits(all.ends), thread, 32u);
        // The words are zero, and `firsts` was read.
        workgroupBarrier();
        if words > 0u {
            for (var b = 0u; b < 8u; b++) {
                if (all.ends & (1u << b)) != 0u {
                    put(team, at * 8u, all.bytes[b]);
                    at += 1u;
                }
            }
        }
        workgroupBarrier();
        let to = params.table + workspace[group.x] + begins[own];
        for (var w = lane; w < words; w += 32u) {
            values[to + w] = atomicLoad(&unit_words[team * 256u + w]);
        }
        workgroupBarrier();
    }
}
