@group(0) @binding(1) var<storage, read_write> scalars: array<u32>;
@group(0) @binding(2) var<storage, read> workspace: array<u32>;
@group(0) @binding(3) var<storage, read_write> status: array<u32>;

// Where the workgroup's tensor is in the table: `gradwire_kernels::params::whole` has the words.
var<private> at_tensor: u32;

fn partials() -> u32 {
    return workspace[at_tensor + 1u];
}

fn partial_word(at: u32) -> u32 {
    return status[workspace[at_tensor] + at];
}

fn factor() -> u32 {
    return workspace[at_tensor + 3u];
}

// Writes a word of the final statistic.
fn keep(word: u32, value: u32) {
    status[workspace[at_tensor + 4u] + word] = value;
}

// Writes a scalar on the wire.
fn send(scalar: u32, value: u32) {
    scalars[workspace[at_tensor + 2u] + scalar] = value;
}

// What: folds the statistics of many tensors that are one bucket each, and writes their scalars on the wire.
// Arguments: EncodeParams; scalars (SCALARS words per tensor), workspace (the table), status (what `stats_segments`
//   left, and behind it two words per tensor, which become the statistics).
// Thread mapping: a workgroup takes a tensor of the table; within it as `combine`.
// Workgroup memory: as `combine`.
// Launch contract: as many workgroups as tensors from `partials` on, which begin at word `base` of the table.
// Traffic: as `combine`, and 32 bytes of the table a tensor.
// Determinism: as `combine`.
// Edge cases: as `combine`; tensors without elements are not in the table.
fn run(group: u32, thread: u32) {
    at_tensor = params.base + (params.partials + group) * 8u;
    fold(thread);
}
