@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read> residual: array<u32>;
@group(0) @binding(3) var<storage, read_write> workspace: array<u32>;

fn put_partial(at: u32, word: u32) {
    workspace[at] = word;
}

// What: the statistics of spans of 8192 elements, as words that `combine` folds.
// Arguments: EncodeParams; input, residual (FEEDBACK), workspace (PARTIAL_WORDS a workgroup: maxima, sums of 64 bits).
// Thread mapping: a team of 32 lanes takes 1024 elements, a lane 32 of them.
// Workgroup memory: one bucket's words: 4 bytes per maximum, 12 bytes per sum.
// Launch contract: ceil(n / 8192) workgroups, n > 0.
// Traffic: input (and residual) once from memory, and once more from cache if the codec looks twice; PARTIAL_WORDS a
//   workgroup written.
// Determinism: integers only; maxima and sums of integers do not depend on their order.
// Edge cases: sums of a span with a NaN or an infinity mean nothing.
fn run(group: u32, thread: u32) {
    leave(group * SPAN, thread, group * PARTIAL_WORDS);
}
