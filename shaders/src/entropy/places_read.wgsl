@group(0) @binding(1) var<storage, read_write> codes: array<u32>;
@group(0) @binding(2) var<storage, read> values: array<u32>;
@group(0) @binding(3) var<storage, read> workspace: array<u32>;

// A word of marks; zeros after the last one. `origin` is the unit's first word.
fn marks_at(origin: u32, entry: u32, index: u32) -> u32 {
    let bits = mark_bits(entry);
    if 32u * index >= bits {
        return 0u;
    }
    let word = values[origin + index];
    let left = bits - 32u * index;
    if left < 32u {
        return word & ((1u << left) - 1u);
    }
    return word;
}

// The record of a code that is within the unit's count.
fn record_of(origin: u32, entry: u32, index: u32) -> u32 {
    let at = record_at(entry, index);
    let bits = record_at(entry, index + 1u) - at;
    var word = values[origin + (at >> 5u)] >> (at & 31u);
    if (at & 31u) + bits > 32u {
        word = word | (values[origin + (at >> 5u) + 1u] << (32u - (at & 31u)));
    }
    return word & ((1u << bits) - 1u);
}

// Sets the bits of a code of fixed width.
fn put_code(window: u32, place: u32, code: u32) {
    let lane = (place >> 3u) & 31u;
    let slot = place & 7u;
    let unit = (place >> 8u) * params.bits;
    var done = 0u;
    for (var piece = 16u; piece > 0u; piece = piece >> 1u) {
        if (params.bits & piece) != 0u {
            // A lane's integers have 32 bits, or as many as its eight pieces take.
            let wide = min(8u * piece, 32u);
            let each = wide / piece;
            let at = 256u * (unit + done) + ((slot / each) * 32u + lane) * wide + (slot % each) * piece;
            set_bits(window, at, (code >> done) & ((1u << piece) - 1u));
            done += piece;
        }
    }
}

// What: reads places and levels, and writes codes of fixed width (`kernels/entropy/places.rs`).
// Arguments: EntropyParams; codes (written), values (the table and the words are read), workspace (where the words of each unit begin).
// Thread mapping: a workgroup takes a unit, an invocation up to 4 words of marks and the codes that they mark.
// Workgroup memory: 2304 words, 9216 bytes.
// Launch contract: `units` workgroups, after `entropy_places_sums` and `entropy_offsets`; as many words as the table names.
// Traffic: the words and 8 bytes per unit read, and read once more for each 2048 words of a unit's codes after the first; the codes
// written.
// Determinism: integers only; bits are set, whatever the order.
// Edge cases: marks after the last code, and places after the unit's codes, are left out. Codes of one place are joined by or.
@compute @workgroup_size(256)
fn entropy_places_read(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let entry = values[group.x];
    let origin = params.table + workspace[group.x];
    let low = low_bits(max(count_of(entry), 1u));
    let levels = entry >> 16u;
    let each = ((mark_bits(entry) + 31u) / 32u + 255u) / 256u;
    var own = 0u;
    for (var k = 0u; k < each; k++) {
        own += countOneBits(marks_at(origin, entry, thread * each + k));
    }
    let first = before(own, thread, 256u);
    let most = (1u << (params.bits - 1u)) - 1u;
    let parts = min(params.fixed - group.x * PARTS, PARTS);
    let words = parts * 8u * params.bits;
    let to = group.x * PARTS * 8u * params.bits;
    for (var window = 0u; window < words; window += BINS) {
        clear(thread);
        var index = first;
        for (var k = 0u; k < each; k++) {
            var ones = marks_at(origin, entry, thread * each + k);
            while ones != 0u && index < count_of(entry) {
                let mark = 32u * (thread * each + k) + countTrailingZeros(ones);
                ones = ones & (ones - 1u);
                let record = record_of(origin, entry, index);
                let place = ((mark - index) << low) | (record & ((1u << low) - 1u));
                if place < parts * 256u {
                    let level = min(((record >> low) & ((1u << levels) - 1u)) + 1u, most);
                    put_code(window, place, level | (((record >> (low + levels)) & 1u) << (params.bits - 1u)));
                }
                index += 1u;
            }
        }
        workgroupBarrier();
        for (var at = thread; at < BINS; at += 256u) {
            if window + at < words {
                codes[to + window + at] = atomicLoad(&bins[at]);
            }
        }
        workgroupBarrier();
    }
}
