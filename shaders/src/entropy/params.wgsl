// `gradwire_kernels::params::EntropyParams`, word for word.
struct EntropyParams {
    units: u32,
    bits: u32,
    table: u32,
    sums: u32,
    fixed: u32,
}

@group(0) @binding(0) var<uniform> params: EntropyParams;

// Units of a workgroup: eight teams of 32 lanes take 32 each, one after another.
const BLOCK_UNITS: u32 = 256u;

// The sum over the invocations before each of a run of `size`, a power of two: `arith::elias` has the formulas.
var<workgroup> partial: array<u32, 256>;

// What the invocations before this one of its run of `size` gave. All invocations arrive together.
fn before(value: u32, thread: u32, size: u32) -> u32 {
    let place = thread & (size - 1u);
    partial[thread] = value;
    workgroupBarrier();
    var sum = value;
    for (var by = 1u; by < size; by = by << 1u) {
        var other = 0u;
        if place >= by {
            other = partial[thread - by];
        }
        workgroupBarrier();
        sum += other;
        partial[thread] = sum;
        workgroupBarrier();
    }
    return sum - value;
}

// What all invocations of the run gave, behind `before`.
fn total(thread: u32, size: u32) -> u32 {
    return partial[thread | (size - 1u)];
}
