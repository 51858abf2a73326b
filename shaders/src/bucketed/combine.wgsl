@group(0) @binding(1) var<storage, read_write> scalars: array<u32>;
@group(0) @binding(2) var<storage, read_write> workspace: array<u32>;

fn partials() -> u32 {
    return params.partials;
}

// A word of the partial statistics, in front of which is the final statistic's room.
fn partial_word(at: u32) -> u32 {
    return workspace[64u + at];
}

fn factor() -> u32 {
    return params.beta;
}

// Writes a word of the final statistic.
fn keep(word: u32, value: u32) {
    workspace[word] = value;
}

// Writes a scalar on the wire.
fn send(scalar: u32, value: u32) {
    scalars[scalar] = value;
}

// What: folds the statistics of a tensor that is one bucket, and writes its scalars on the wire.
// Arguments: EncodeParams; scalars (SCALARS words), workspace (64 words of which the first two become the statistic,
//   then `partials` of PARTIAL_WORDS).
// Thread mapping: thread k takes partial statistics k, k + 256, ...; thread 0 makes the statistic.
// Workgroup memory: one bucket's words: 4 bytes per maximum, 12 bytes per sum.
// Launch contract: 1 workgroup.
// Traffic: every partial statistic once, and once more from cache if the codec looks twice.
// Determinism: integers only; sums are exact in 96 bits, so they do not depend on their order.
// Edge cases: the codec's: what its statistic is of values that are not finite, or too large.
fn run(group: u32, thread: u32) {
    fold(thread);
}
