@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> residual: array<u32>;
@group(0) @binding(3) var<storage, read> workspace: array<u32>;
@group(0) @binding(4) var<storage, read_write> indices: array<u32>;
@group(0) @binding(5) var<storage, read_write> values: array<u32>;

// Keys at or above a trial, two rounds in turn, of each team that has a segment of its own.
var<workgroup> reached: array<atomic<u32>, 16>;

// What: selects the largest of each segment, or block, of at most 8192 elements (`kernels/topk/block.rs`).
// Arguments: SelectParams; input, residual (FEEDBACK: becomes the sum; with SENT, zero where an entry is kept); workspace (the
// table, where there are segments); indices and values (a word for each entry of the whole selection).
// Thread mapping: a workgroup a segment, or with WARPS a team of 32 lanes; a team takes 1024 elements, a lane the 32 that are
// 32 apart.
// Workgroup memory: 784 words, 3136 bytes.
// Launch contract: a workgroup for each of `tiles` segments, or blocks, from first_tile on; with WARPS, for each 8.
// Traffic: input (and residual) once, and what is kept once more, from cache; 8 bytes per entry.
// Determinism: integers only.
// Edge cases: of a last block that is shorter, at most all is kept.
@compute @workgroup_size(256)
fn topk_block(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let team = thread >> 5u;
    let alone = has(FLAG_WARPS);
    let of_launch = select(group.x, group.x * 8u + team, alone);
    // A team behind the last segment goes along with the first one's numbers, and without elements.
    let index = params.first_tile + select(0u, of_launch, of_launch < params.tiles);
    var start = index * params.block;
    var elements = min(params.elements - start, params.block);
    var keep = min(params.keep, elements);
    var output = index * params.keep;
    if params.segments > 0u {
        start = table(index, START);
        elements = table(index, ELEMENTS);
        keep = table(index, KEEP);
        output = table(index, OUTPUT);
    }
    if of_launch >= params.tiles {
        elements = 0u;
        keep = 0u;
    }
    let extent = extent_of(start, elements, 0u);
    let lane = thread & 31u;
    let sent = sent_of(index);
    // Rows are the workgroup's; a team that is alone has its segment's first element in its own first row.
    let first_row = team * 32u;
    let row_zero = select(0u, first_row, alone);
    let counter = select(0u, team * 2u, alone);
    // A key that is not there is below all others, which are raised by 1.
    var own: array<u32, 32>;
    for (var q = 0u; q < 8u; q++) {
        let row = first_row + q * 4u;
        let e = vec4<u32>(extent.x + (row - row_zero) * 32u + lane) + vec4<u32>(0u, 32u, 64u, 96u);
        let here = in_extent(e, extent);
        let at = e - vec4<u32>(params.first);
        let raw = fresh(at, here, false, sent);
        if has(FLAG_FEEDBACK) {
            put_sums(at, here, raw);
        }
        let k = select(vec4<u32>(0u), keys(raw) + 1u, here);
        own[q * 4u] = k.x;
        own[q * 4u + 1u] = k.y;
        own[q * 4u + 2u] = k.z;
        own[q * 4u + 3u] = k.w;
    }
    clear_masks(thread);
    if thread < 16u {
        atomicStore(&reached[thread], 0u);
    }
    workgroupBarrier();
    // The largest key that as many reach as are kept, bit by bit.
    var last = 0u;
    var above = 0u;
    for (var round = 0u; round < 31u; round++) {
        let trial = last | (1u << (30u - round));
        var count = 0u;
        for (var slot = 0u; slot < 32u; slot++) {
            count += select(0u, 1u, own[slot] >= trial);
        }
        if count != 0u {
            atomicAdd(&reached[counter + (round & 1u)], count);
        }
        workgroupBarrier();
        count = atomicLoad(&reached[counter + (round & 1u)]);
        // Of the trials that too few reach, the last one is the key above the last kept one.
        if count >= keep {
            last = trial;
        } else {
            above = count;
        }
        workgroupBarrier();
        if lane == 0u {
            atomicStore(&reached[counter + (round & 1u)], 0u);
        }
    }
    for (var q = 0u; q < 8u; q++) {
        let k = vec4<u32>(own[q * 4u], own[q * 4u + 1u], own[q * 4u + 2u], own[q * 4u + 3u]);
        set_a(first_row + q * 4u, lane, k > vec4<u32>(last));
        set_b(first_row + q * 4u, lane, k == vec4<u32>(last));
    }
    sum_masks(thread);
    if keep == 0u {
        return;
    }
    let ties = keep - above;
    // What other teams' segments have is not before this one.
    let before_a = before_in_a(row_zero, 0u);
    let before_b = before_in_b(row_zero, 0u);
    for (var slot = 0u; slot < 32u; slot++) {
        let row = first_row + slot;
        let ties_before = before_in_b(row, lane) - before_b;
        if own[slot] > last || (own[slot] == last && ties_before < ties) {
            let element = extent.x + (row - row_zero) * 32u + lane;
            let to = output + before_in_a(row, lane) - before_a + min(ties_before, ties);
            indices[to] = element;
            values[to] = bits_of(settled(element - params.first));
            if has(FLAG_SENT) {
                residual[element - params.first] = 0u;
            }
        }
    }
}
