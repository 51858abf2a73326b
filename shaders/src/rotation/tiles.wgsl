// `gradwire_kernels::params::TilesParams`, word for word.
struct TilesParams {
    n: u32,
    lies: u32,
    ordered: u32,
    side_log2: u32,
    beside: u32,
    reciprocal: u32,
    beside_log2: u32,
    stride: u32,
    flags: u32,
}

const FLAG_INVERSE: u32 = 1u;

@group(0) @binding(0) var<uniform> params: TilesParams;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;

// Where an element lies (`arith/tiles.rs`). WGSL divides exactly, and takes no reciprocal.
fn place(at: u32) -> u32 {
    let mask = (1u << params.side_log2) - 1u;
    let tile = at >> (2u * params.side_log2);
    let down = tile / params.beside;
    let row = (down << params.side_log2) + ((at >> params.side_log2) & mask);
    let column = (tile - down * params.beside) << params.side_log2;
    return params.lies + row * params.stride + column + (at & mask);
}

// What: puts the elements of tiles one behind the other, or puts them back (`kernels/tiles.rs`).
// Arguments: TilesParams; input, output: a word per element.
// Thread mapping: a workgroup takes 2048 elements of the order; of invocation i the elements 256 j + i.
// Workgroup memory: none.
// Launch contract: ceil(n / 2048) workgroups.
// Traffic: 8 bytes per element.
// Determinism: an element is one invocation's.
// Edge cases: every word is copied as it is, NaN too.
@compute @workgroup_size(256)
fn dct_tiles(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let base = group.x * 2048u + thread;
    let inverse = (params.flags & FLAG_INVERSE) != 0u;
    for (var slot = 0u; slot < 8u; slot++) {
        let at = base + 256u * slot;
        if at < params.n {
            let lies = place(at);
            let ordered = params.ordered + at;
            output[select(ordered, lies, inverse)] = input[select(lies, ordered, inverse)];
        }
    }
}
