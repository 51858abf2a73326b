// A unit of each team: 256 words.
var<workgroup> unit_words: array<atomic<u32>, 2048>;
// Where the workgroup's units begin.
var<workgroup> begins: array<u32, 256>;

// Adds bits to the words of a team's unit, which are zero there.
fn put(team: u32, at: u32, value: u32) {
    let word = team * 256u + (at >> 5u);
    let low = value << (at & 31u);
    if low != 0u {
        atomicOr(&unit_words[word], low);
    }
    if (at & 31u) != 0u {
        let high = value >> (32u - (at & 31u));
        if high != 0u {
            atomicOr(&unit_words[word + 1u], high);
        }
    }
}
