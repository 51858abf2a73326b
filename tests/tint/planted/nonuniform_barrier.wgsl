// A planted fault: only some invocations reach the barrier. The WGSL specification forbids it, naga accepts it, and Tint,
// which Chrome compiles with, must not. A check that lets this pass checks nothing.

@group(0) @binding(0) var<storage, read_write> output: array<u32>;

var<workgroup> shared_words: array<u32, 64>;

@compute @workgroup_size(64)
fn nonuniform_barrier(@builtin(local_invocation_index) lane: u32) {
    shared_words[lane] = lane;
    if (lane < 3u) {
        workgroupBarrier();
    }
    output[lane] = shared_words[63u - lane];
}
