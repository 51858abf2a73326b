@group(0) @binding(1) var<storage, read_write> codes: array<u32>;
@group(0) @binding(2) var<storage, read> values: array<u32>;
@group(0) @binding(3) var<storage, read> workspace: array<u32>;

// The plain bytes of each team's unit: 64 words.
var<workgroup> plain_words: array<atomic<u32>, 512>;
// Where the workgroup's units begin.
var<workgroup> begins: array<u32, 256>;

// Plain bytes that an encoded byte stands for.
fn length_of(byte: u32) -> u32 {
    return select(1u, byte - 241u, byte > 242u);
}

// A third of each of four bytes, rounded down.
fn third(bytes: u32) -> u32 {
    let low = (((bytes & 0x00ff00ffu) * 171u) >> 9u) & 0x007f007fu;
    let high = ((((bytes >> 8u) & 0x00ff00ffu) * 171u) >> 9u) & 0x007f007fu;
    return low | (high << 8u);
}

// What: reads codes in base 3, and writes codes of fixed width (`kernels/entropy/base3.rs`).
// Arguments: EntropyParams; codes (written), values (the table and the words are read), workspace (where the words of each 256 units
// begin).
// Thread mapping: as `base3_measure`. A lane takes 8 encoded bytes of each unit; then two lanes take five words of codes.
// Workgroup memory: 1024 words, 4096 bytes.
// Launch contract: ceil(units / 256) workgroups, behind `entropy_sums` and `entropy_offsets`; as many words as the table names.
// Traffic: the words and a byte per unit read, the codes written.
// Determinism: integers only.
// Edge cases: bytes behind a unit's words are zeros; plain bytes behind the 256th, and words behind the 64th, are not looked at; units
// behind the last have no codes.
@compute @workgroup_size(256)
fn base3_read(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread & 31u;
    let team = thread >> 5u;
    let first = group.x * BLOCK_UNITS;
    begins[thread] = before(words_of(first + thread), thread, 256u);
    workgroupBarrier();
    for (var k = 0u; k < 32u; k++) {
        let own = team * 32u + k;
        let unit = first + own;
        let words = words_of(unit);
        let begin = params.table + workspace[group.x] + begins[own];
        var bytes: array<u32, 2>;
        for (var w = 0u; w < 2u; w++) {
            let at = lane * 2u + w;
            if at < words {
                bytes[w] = values[begin + at];
            }
            atomicStore(&plain_words[team * 64u + at], 0u);
        }
        var all = 0u;
        for (var b = 0u; b < 8u; b++) {
            all += length_of((bytes[b >> 2u] >> ((b & 3u) * 8u)) & 255u);
        }
        var to = before(all, thread, 32u);
        // The plain bytes are zero.
        workgroupBarrier();
        for (var b = 0u; b < 8u; b++) {
            let byte = (bytes[b >> 2u] >> ((b & 3u) * 8u)) & 255u;
            let length = length_of(byte);
            if to < 256u && length == 1u {
                atomicOr(&plain_words[team * 64u + (to >> 2u)], byte << ((to & 3u) * 8u));
            }
            to += length;
        }
        workgroupBarrier();
        var rest: array<u32, 4>;
        for (var q = 0u; q < 4u; q++) {
            rest[q] = atomicLoad(&plain_words[team * 64u + (lane >> 1u) * 4u + q]);
        }
        for (var part = 0u; part < 5u; part++) {
            var joined = 0u;
            for (var q = 0u; q < 4u; q++) {
                let next = third(rest[q]);
                let digit = rest[q] - 3u * next;
                joined = joined | ((digit | ((digit >> 1u) & 0x01010101u)) << (q * 2u));
                rest[q] = next;
            }
            let word = (unit * 16u + (lane >> 1u)) * 5u + part;
            if word < params.fixed * 16u && (lane & 1u) == select(0u, 1u, part > 2u) {
                codes[word] = joined;
            }
        }
        workgroupBarrier();
    }
}
