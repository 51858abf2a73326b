// Words of each unit of the workgroup.
var<workgroup> measured: array<u32, 256>;

// Leaves the words of the workgroup's units as bytes of the table, and their sum. All invocations arrive together.
fn leave(group: u32, thread: u32) {
    workgroupBarrier();
    let sum = before(measured[thread], thread, 256u) + measured[thread];
    if thread == 255u {
        workspace[group] = sum;
    }
    let word = group * (BLOCK_UNITS / 4u) + thread;
    if thread < BLOCK_UNITS / 4u && word < params.table {
        var packed = 0u;
        for (var k = 0u; k < 4u; k++) {
            packed = packed | ((max(measured[thread * 4u + k], 1u) - 1u) << (k * 8u));
        }
        values[word] = packed;
    }
}
