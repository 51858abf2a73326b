@group(0) @binding(1) var<storage, read_write> workspace: array<u32>;
@group(0) @binding(2) var<storage, read_write> status: array<u32>;

// What: turns sums of words into what is before each, and leaves the sum of all in the status (`kernels/entropy/offsets.rs`).
// Arguments: EntropyParams; workspace (`sums` words, read and written), status (its first word is written).
// Thread mapping: one workgroup, an invocation a sum, 256 at a time.
// Workgroup memory: 256 words, 1024 bytes.
// Launch contract: one workgroup.
// Traffic: 8 bytes per sum.
// Determinism: integers only; modulo 2^32.
// Edge cases: none.
@compute @workgroup_size(256)
fn entropy_offsets(@builtin(local_invocation_index) thread: u32) {
    var base = 0u;
    for (var first = 0u; first < params.sums; first += 256u) {
        let index = first + thread;
        var value = 0u;
        if index < params.sums {
            value = workspace[index];
        }
        let offset = base + before(value, thread, 256u);
        if index < params.sums {
            workspace[index] = offset;
        }
        base += total(thread, 256u);
        // The next round writes over what was just read.
        workgroupBarrier();
    }
    if thread == 0u {
        status[0] = base;
    }
}
