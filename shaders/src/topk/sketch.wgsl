@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read> residual: array<u32>;
@group(0) @binding(3) var<storage, read_write> workspace: array<atomic<u32>>;

// A quarter of every invocation's keys, while they are exchanged.
var<workgroup> exchanged: array<u32, 2048>;

// Brings the larger of two keys to the place before.
fn in_order(keys: ptr<function, array<u32, 32>>, before: u32, behind: u32) {
    let a = (*keys)[before];
    let b = (*keys)[behind];
    (*keys)[before] = max(a, b);
    (*keys)[behind] = min(a, b);
}

// Steps of a phase within an invocation: places that are `first` apart, then half of that, and so on.
fn halves(keys: ptr<function, array<u32, 32>>, first: u32) {
    for (var by = first; by != 0u; by = by >> 1u) {
        for (var k = 0u; k < 16u; k++) {
            let before = ((k & ~(by - 1u)) << 1u) | (k & (by - 1u));
            in_order(keys, before, before | by);
        }
    }
}

// The keys of the invocation whose number differs by `mask`, from its last one on with `mirrored`, against one's own. All
// invocations arrive together.
fn step(keys: ptr<function, array<u32, 32>>, thread: u32, mask: u32, mirrored: bool, is_low: bool) {
    var other: array<u32, 32>;
    for (var quarter = 0u; quarter < 4u; quarter++) {
        for (var k = 0u; k < 8u; k++) {
            exchanged[k * 256u + thread] = (*keys)[quarter * 8u + k];
        }
        workgroupBarrier();
        for (var k = 0u; k < 8u; k++) {
            other[quarter * 8u + k] = exchanged[k * 256u + (thread ^ mask)];
        }
        workgroupBarrier();
    }
    for (var slot = 0u; slot < 32u; slot++) {
        let a = (*keys)[slot];
        let b = other[select(slot, 31u - slot, mirrored)];
        (*keys)[slot] = select(min(a, b), max(a, b), is_low);
    }
}

// Sorts the 1024 keys of a team, the largest first: a bitonic network in which all comparisons have one direction, as the
// first step of each phase compares with the mirrored place. All invocations arrive together.
fn sort(keys: ptr<function, array<u32, 32>>, thread: u32) {
    for (var phase = 1u; phase <= 5u; phase++) {
        let mirror = (1u << phase) - 1u;
        for (var slot = 0u; slot < 32u; slot++) {
            if slot < (slot ^ mirror) {
                in_order(keys, slot, slot ^ mirror);
            }
        }
        halves(keys, (1u << phase) >> 2u);
    }
    for (var lanes = 2u; lanes <= 32u; lanes = lanes << 1u) {
        step(keys, thread, lanes - 1u, true, (thread & (lanes >> 1u)) == 0u);
        for (var by = lanes >> 2u; by != 0u; by = by >> 1u) {
            step(keys, thread, by, false, (thread & by) == 0u);
        }
        halves(keys, 16u);
    }
}

// The tiles of a workgroup that are left to the sketch, and the keys that are kept of them. All invocations arrive together.
fn sketch_group(group: u32, thread: u32) {
    let lane = thread & 31u;
    let behind = params.first_tile + min(group * TILES_AGAIN + TILES_AGAIN, params.tiles);
    var tile = params.first_tile + group * TILES_AGAIN;
    while tile < behind {
        open_segment(tile, thread);
        let end = min(workgroupUniformLoad(&end_now), behind);
        if workgroupUniformLoad(&source_now) == IN_SKETCH {
            let index = index_now;
            for (var each = tile; each < end; each++) {
                let extent = extent_of(table(index, START), table(index, ELEMENTS), each - table(index, FIRST_TILE));
                var own: array<u32, 32>;
                for (var q = 0u; q < 8u; q++) {
                    let row = (thread >> 5u) * 32u + q * 4u;
                    let e = vec4<u32>(extent.x + row * 32u + lane) + vec4<u32>(0u, 32u, 64u, 96u);
                    let here = in_extent(e, extent);
                    let raw = fresh(e - vec4<u32>(params.first), here, true, vec2<u32>(NO_KEY, 0u));
                    let raised = select(vec4<u32>(0u), keys(raw) + 1u, here);
                    own[q * 4u] = raised.x;
                    own[q * 4u + 1u] = raised.y;
                    own[q * 4u + 2u] = raised.z;
                    own[q * 4u + 3u] = raised.w;
                }
                sort(&own, thread);
                put(sketch_of(each) + thread, own[31]);
                let offset = own[31] - now[BASE];
                if offset < now[RANGE] {
                    count_bin(index, offset >> digit_shift(now[RANGE], now[LEFT]));
                }
            }
        }
        tile = end;
    }
}

// What: looks for the last kept key where the filter was to find it; and elsewhere sorts runs of 1024 keys, and keeps every
// 32nd, raised by 1 (`kernels/topk/sketch.rs`).
// Arguments: SelectParams; input, or residual (FEEDBACK), which holds the sum; workspace (as topk_histogram; the sketch is
// written).
// Thread mapping: the first workgroups as topk_histogram; another takes 8 tiles one after another, a team of 32 lanes a run of
// each.
// Workgroup memory: 2134 words, 8536 bytes.
// Launch contract: a workgroup for each 8 * tiles_per_team(tiles) of `tiles` tiles, from first_tile on, and then one for each 8.
// Traffic: a state for each segment of a workgroup; of tiles that are sketched, input (or residual) once, and a word for each 32
// elements written.
// Determinism: yes.
// Edge cases: elements of a tile that are not there are below all keys.
@compute @workgroup_size(256)
fn topk_sketch(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let each = 8u * tiles_per_team(params.tiles);
    let counting = (params.tiles + each - 1u) / each;
    if group.x < counting {
        count_group(group.x, thread);
    } else {
        sketch_group(group.x - counting, thread);
    }
}
