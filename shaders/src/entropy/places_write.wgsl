@group(0) @binding(1) var<storage, read> codes: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<u32>;
@group(0) @binding(3) var<storage, read> workspace: array<u32>;

// What: writes places and levels of units that were measured (`kernels/entropy/places.rs`).
// Arguments: EntropyParams; codes (read), values (the table is read, the words are written), workspace (where the words of each unit
// begin).
// Thread mapping: as `entropy_places_measure`.
// Workgroup memory: 2304 words, 9216 bytes.
// Launch contract: `units` workgroups, after `entropy_places_measure` and `entropy_offsets` over the same codes.
// Traffic: the codes read once and once more for each 2048 words that a unit may take; 8 bytes per unit read, the words written.
// Determinism: integers only; no two codes share a bit.
// Edge cases: a unit of zeros takes no words.
@compute @workgroup_size(256)
fn entropy_places_write(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let team = thread >> 5u;
    let entry = values[group.x];
    let words = words_of(entry);
    let to = params.table + workspace[group.x];
    var own = 0u;
    for (var k = 0u; k < OWN; k++) {
        own += countOneBits(lane_of(group.x, thread, k).found);
    }
    // The codes of the teams before this one.
    let own_before = before(own, thread, 256u);
    var first = 0u;
    if team > 0u {
        first = partial[team * 32u - 1u];
    }
    workgroupBarrier();
    let low = low_bits(max(count_of(entry), 1u));
    let bits = params.bits;
    // A unit of nothing but the largest level takes the most words.
    let most = 1536u + 512u * select(0u, bits - 1u, bits > 2u);
    for (var window = 0u; window < most; window += BINS) {
        clear(thread);
        var index = first;
        for (var k = 0u; k < OWN; k++) {
            let lane = lane_of(group.x, thread, k);
            let lanes_before = before(countOneBits(lane.found), thread, 32u);
            let all = total(thread, 32u);
            // The sums were read.
            workgroupBarrier();
            var code_index = index + lanes_before;
            for (var slot = 0u; slot < 8u; slot++) {
                if (lane.found & (1u << slot)) != 0u {
                    let place = ((team * OWN + k) * 32u + (thread & 31u)) * 8u + slot;
                    let level = lane.codes[slot] & ((1u << (bits - 1u)) - 1u);
                    let sign = (lane.codes[slot] >> (bits - 1u)) & 1u;
                    set_bits(window, (place >> low) + code_index, 1u);
                    set_bits(
                        window,
                        record_at(entry, code_index),
                        (place & ((1u << low) - 1u)) | ((level - 1u) << low) | (sign << (low + (entry >> 16u))),
                    );
                    code_index += 1u;
                }
            }
            index += all;
        }
        workgroupBarrier();
        for (var at = thread; at < BINS; at += 256u) {
            if window + at < words {
                values[to + window + at] = atomicLoad(&bins[at]);
            }
        }
        workgroupBarrier();
    }
}
