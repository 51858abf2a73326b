@group(0) @binding(1) var<storage, read> codes: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<u32>;
@group(0) @binding(3) var<storage, read> workspace: array<u32>;

// What: writes the Elias delta codes of units that were measured (`kernels/entropy/delta.rs`).
// Arguments: EntropyParams; codes (read), values (the table is read, the words are written), workspace (where the words of each 256
// units begin).
// Thread mapping: as that of `elias_measure`.
// Workgroup memory: 2560 words, 10240 bytes.
// Launch contract: ceil(units / 256) workgroups, behind `elias_delta_measure` and `entropy_offsets` over the same codes.
// Traffic: the codes and a byte per unit read, the words written.
// Determinism: integers only; the bits of no two codes are the same.
// Edge cases: units behind the last have no words.
@compute @workgroup_size(256)
fn elias_delta_write(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread & 31u;
    let team = thread >> 5u;
    let first = group.x * BLOCK_UNITS;
    begins[thread] = before(words_of(first + thread), thread, 256u);
    workgroupBarrier();
    for (var k = 0u; k < 32u; k++) {
        let own = team * 32u + k;
        let unit = first + own;
        let words = words_of(unit);
        for (var w = lane; w < 256u; w += 32u) {
            atomicStore(&unit_words[team * 256u + w], 0u);
        }
        var c: array<u32, 8>;
        var q: array<u32, 8>;
        var r: array<u32, 8>;
        var unary = 0u;
        var rests = 0u;
        if words > 0u {
            let at = unit * 8u * params.bits;
            let c0 = unpack(at, lane, 0u);
            let c1 = unpack(at, lane, 1u);
            let q0 = exponents(c0);
            let q1 = exponents(c1);
            c = array<u32, 8>(c0.x, c0.y, c0.z, c0.w, c1.x, c1.y, c1.z, c1.w);
            q = array<u32, 8>(q0.x, q0.y, q0.z, q0.w, q1.x, q1.y, q1.z, q1.w);
            let r0 = classes(q0);
            let r1 = classes(q1);
            r = array<u32, 8>(r0.x, r0.y, r0.z, r0.w, r1.x, r1.y, r1.z, r1.w);
            unary = 8u + sum4(r0) + sum4(r1);
            rests = sum4(rest_bits(q0)) + sum4(rest_bits(q1));
        }
        // Both sums in one: each is below 2^16.
        let both = before(unary | (rests << 16u), thread, 32u);
        var at = both & 0xffffu;
        // Middles are as long as unary parts but for the ones, 256 of them in all.
        let end = total(thread, 32u) & 0xffffu;
        var middle_at = end + at - 8u * lane;
        var rest_at = 2u * end - 256u + (both >> 16u);
        // The words are zero, and the sums were read.
        workgroupBarrier();
        if words > 0u {
            for (var slot = 0u; slot < 8u; slot++) {
                let e = q[slot];
                put(team, at + r[slot], 1u);
                at += r[slot] + 1u;
                put(team, middle_at, e + 1u - (1u << r[slot]));
                middle_at += r[slot];
                if e > 0u {
                    let level = c[slot] & ((1u << (params.bits - 1u)) - 1u);
                    let sign = (c[slot] >> (params.bits - 1u)) & 1u;
                    put(team, rest_at, (level + 1u - (1u << e)) | (sign << e));
                    rest_at += e + 1u;
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
