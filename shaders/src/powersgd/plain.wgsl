// What: forms (FORM), sends (SEND) or takes (COMMIT) the elements of tensors that are not compressed, where the state is on the
// device (`kernels/powersgd/plain.rs`).
// Arguments: LowRankParams; input (FORM), residual (FORM, COMMIT), workspace (list of tiles, marks, and what waits), status
// (SCAN: raised; GUARDED: read), output (COMMIT), values (SEND: written; COMMIT: read).
// Thread mapping: a workgroup 2048 elements of a tensor, a thread every 256th.
// Workgroup memory: none.
// Launch contract: one workgroup a tile of the list, from first_tile on.
// Traffic: an element once in each buffer.
// Determinism: on every implementation.
// Edge cases: a NaN that is sent is the one NaN; a mean that is not finite poisons its tensor.

@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> residual: array<u32>;
@group(0) @binding(3) var<storage, read_write> workspace: array<atomic<u32>>;
@group(0) @binding(4) var<storage, read_write> status: array<atomic<u32>>;
@group(0) @binding(5) var<storage, read_write> output: array<u32>;
@group(0) @binding(6) var<storage, read_write> values: array<u32>;

fn word(at: u32) -> u32 {
    return atomicLoad(&workspace[at]);
}

// Gradient + residual of an element; with `write` the residual becomes what stays behind.
fn form_plain(at: u32, write: bool) -> u32 {
    let raw = gradient(at);
    var old = 0u;
    if has(FLAG_FEEDBACK) {
        old = residual[at];
    }
    let total = f_add(vec4<u32>(raw), vec4<u32>(old)).x;
    if write && has(FLAG_FEEDBACK) {
        residual[at] = select(select(0u, old, is_finite(old)), total, is_finite(total));
    }
    return total;
}

@compute @workgroup_size(256)
fn powersgd_plain(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let tile = params.tiles + (params.first_tile + group.x) * TILE_WORDS;
    let index = word(tile);
    let first = word(tile + 1u) - params.first;
    let count = word(tile + 2u);
    let place = word(tile + 3u);
    let writing = !(has(FLAG_GUARDED) && atomicLoad(&status[0]) != 0u);
    let keeps = has(FLAG_FEEDBACK) && mark(index, MARK_WARY_FOR) == 0u;
    for (var i = thread; i < count; i += 256u) {
        let at = first + i;
        if has(FLAG_COMMIT) {
            let mean = values[params.plain_sent + place + i];
            output[at] = mean;
            if has(FLAG_FEEDBACK) && (is_finite(mean) || !keeps) {
                residual[at] = 0u;
            }
            if !is_finite(mean) {
                atomicStore(&workspace[params.marks + index * MARK_WORDS + MARK_POISONED], 1u);
            }
            continue;
        }
        if has(FLAG_SCAN) {
            if !is_finite(form_plain(at, false)) {
                atomicMax(&status[0], ~(params.first + at));
            }
            continue;
        }
        var total = 0u;
        if has(FLAG_FORM) {
            total = form_plain(at, writing);
            atomicStore(&workspace[params.plain + place + i], total);
        } else {
            total = word(params.plain + place + i);
        }
        if has(FLAG_SEND) {
            values[params.plain_sent + place + i] = total;
        }
    }
}
