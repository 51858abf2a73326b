@group(0) @binding(1) var<storage, read_write> scalars: array<u32>;
@group(0) @binding(2) var<storage, read> workspace: array<u32>;
@group(0) @binding(3) var<storage, read_write> status: array<u32>;

// Where the workgroup's tensor is in the table: `gradwire_kernels::params::whole` has the words.
var<private> at: u32;

// Comes before all else.
fn open_tensor(group: u32) {
    at = params.base + (params.partials + group) * 8u;
}

fn partials() -> u32 {
    return workspace[at + 1u];
}

// A word of a partial statistic.
fn partial(index: u32, word: u32) -> u32 {
    return status[workspace[at] + index * 4u + word];
}

fn beta() -> u32 {
    return workspace[at + 3u];
}

// Writes a word of the final statistic.
fn keep(word: u32, value: u32) {
    status[workspace[at + 4u] + word] = value;
}

// Writes a scalar on the wire.
fn send(scalar: u32, value: u32) {
    scalars[workspace[at + 2u] + scalar] = value;
}
