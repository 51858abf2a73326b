// A tile as bits: word `r` of a mask has the 32 elements from `32 r` on. An invocation sums up one word of each of two
// masks, so that each word knows how many bits are before it.

var<workgroup> mask_a: array<atomic<u32>, 256>;
var<workgroup> mask_b: array<atomic<u32>, 256>;
// Bits before a word: of mask a in the lower half, of mask b in the upper one. A tile has less than 2^16.
var<workgroup> before: array<u32, 256>;

fn clear_masks(thread: u32) {
    atomicStore(&mask_a[thread], 0u);
    atomicStore(&mask_b[thread], 0u);
    workgroupBarrier();
}

// The bits of both masks, all together, in every invocation.
fn sum_masks(thread: u32) -> u32 {
    workgroupBarrier();
    let own = countOneBits(atomicLoad(&mask_a[thread])) | (countOneBits(atomicLoad(&mask_b[thread])) << 16u);
    before[thread] = own;
    workgroupBarrier();
    for (var step = 1u; step < 256u; step = step * 2u) {
        var other = 0u;
        if thread >= step {
            other = before[thread - step];
        }
        workgroupBarrier();
        before[thread] = before[thread] + other;
        workgroupBarrier();
    }
    let all = before[255];
    workgroupBarrier();
    before[thread] = before[thread] - own;
    workgroupBarrier();
    return all;
}

// Bits of mask a before a place; of mask b.
fn before_in_a(row: u32, lane: u32) -> u32 {
    return (before[row] & 0xffffu) + countOneBits(atomicLoad(&mask_a[row]) & ((1u << lane) - 1u));
}

fn before_in_b(row: u32, lane: u32) -> u32 {
    return (before[row] >> 16u) + countOneBits(atomicLoad(&mask_b[row]) & ((1u << lane) - 1u));
}

// Sets the bits of four rows of a lane.
fn set_a(row: u32, lane: u32, bits: vec4<bool>) {
    for (var k = 0u; k < 4u; k++) {
        if bits[k] {
            atomicOr(&mask_a[row + k], 1u << lane);
        }
    }
}

fn set_b(row: u32, lane: u32, bits: vec4<bool>) {
    for (var k = 0u; k < 4u; k++) {
        if bits[k] {
            atomicOr(&mask_b[row + k], 1u << lane);
        }
    }
}

// Writes the residual of those that are there.
fn put_sums(at: vec4<u32>, here: vec4<bool>, sums: vec4<u32>) {
    for (var k = 0u; k < 4u; k++) {
        if here[k] {
            residual[at[k]] = sums[k];
        }
    }
}
