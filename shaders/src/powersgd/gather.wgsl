// What: sums the shares of a factor, and writes it as it is sent (`kernels/powersgd/gather.rs`).
// Arguments: LowRankParams (RIGHT: which factor); workspace (table, marks and shares; FORMED: marks that nothing was sent yet of
// what the residual holds), status (GUARDED: its first word is read), values (written).
// Thread mapping: a workgroup 256 entries of a column, a thread one.
// Workgroup memory: none.
// Launch contract: from first_tile on, of the workgroups that the table counts.
// Traffic: the shares once.
// Determinism: on one implementation; every sum is in one order.
// Edge cases: of a matrix of which a factor could not be used, all entries are NaN; a sum that is not finite is NaN.

@group(0) @binding(1) var<storage, read_write> workspace: array<u32>;
@group(0) @binding(2) var<storage, read_write> status: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read_write> values: array<u32>;

// Shares that are summed before they are added to the others.
const SOME: u32 = 32u;

@compute @workgroup_size(256)
fn powersgd_gather(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let side = select(0u, 1u, has(FLAG_RIGHT));
    let group = params.first_tile + id.x;
    // The last matrix whose first group is not behind this one.
    var index = 0u;
    var behind = params.matrices;
    while behind - index > 1u {
        let middle = (index + behind) / 2u;
        if table(middle, FIRST_GROUP + side) <= group {
            index = middle;
        } else {
            behind = middle;
        }
    }
    let entries = table(index, ROWS + side);
    let across = table(index, COLUMNS - side);
    let each = (entries + 255u) / 256u;
    let local = group - table(index, FIRST_GROUP + side);
    let k = local / each;
    let entry = local % each * 256u + thread;
    if has(FLAG_FORMED) && local == 0u && thread == 0u {
        // Unless an element was refused, and nothing was formed.
        if !(has(FLAG_GUARDED) && atomicLoad(&status[0]) != 0u) {
            workspace[params.marks + index * MARK_WORDS + MARK_SENT] = 0u;
        }
    }
    if entry >= entries {
        return;
    }
    let begin = params.shares + table(index, SHARES + side) + k * padded(entries) + entry;
    let apart = params.rank * padded(entries);
    let tiles = (across + (TILE - 1u)) / TILE;
    var total = 0.0;
    var well = mark(index, MARK_POISONED) == 0u;
    for (var some = 0u; some < tiles; some += SOME) {
        var sum = 0.0;
        for (var tile = some; tile < min(some + SOME, tiles); tile++) {
            let bits = word(begin + tile * apart);
            well = well && is_finite(bits);
            sum += bitcast<f32>(select(0u, bits, is_finite(bits)));
        }
        total += sum;
    }
    let bits = bitcast<u32>(total);
    // An infinite sum is sent as NaN: it cannot be used either way.
    values[table(index, SENT + side) + k * entries + entry] = select(NAN, bits, well && is_finite(bits));
}
