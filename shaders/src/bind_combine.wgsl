@group(0) @binding(1) var<storage, read_write> scalars: array<u32>;
@group(0) @binding(2) var<storage, read_write> workspace: array<u32>;

// Words in front of the partial statistics: the final statistic's room.
const FINAL_WORDS: u32 = 64u;

fn partials() -> u32 {
    return params.partials;
}

// A word of a partial statistic.
fn partial(index: u32, word: u32) -> u32 {
    return workspace[FINAL_WORDS + index * 4u + word];
}

fn beta() -> u32 {
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
