// How many entries are before a tile (`kernels/topk/sums.rs`).

var<workgroup> partial: array<vec2<u32>, 256>;

fn pair(at: u32) -> vec2<u32> {
    return vec2<u32>(word(at), word(at + 1u));
}

// What is counted of the tiles from `first` on up to `behind`, in every invocation: of 64 times 64 tiles together, of 64, and
// one by one. All invocations arrive together, with the same tiles.
fn between(of_sketch: bool, first: u32, behind: u32, thread: u32) -> vec2<u32> {
    var counts = vec2<u32>(0u);
    var begin = first;
    var end = behind;
    for (var level = 0u; level < 3u; level++) {
        let sums = select(sums_of(level == 2u, of_sketch), params.counts, level == 0u);
        // What the next level has sums of lies between.
        let up = select(min((begin + 63u) & ~63u, end), end, level == 2u);
        let down = max(end & ~63u, up);
        for (var at = begin + thread; at < up; at += 256u) {
            counts += pair(sums + 2u * at);
        }
        for (var at = down + thread; at < end; at += 256u) {
            counts += pair(sums + 2u * at);
        }
        begin = up >> 6u;
        end = down >> 6u;
    }
    // What was summed up before was read by all.
    workgroupBarrier();
    partial[thread] = counts;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half = half >> 1u) {
        if thread < half {
            partial[thread] += partial[thread + half];
        }
        workgroupBarrier();
    }
    return partial[0];
}
