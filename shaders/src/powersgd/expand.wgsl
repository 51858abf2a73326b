// What: writes L R^T of a tile, or NaN where a factor of its matrix could not be used (`kernels/powersgd/expand.rs`).
// Arguments: LowRankParams; workspace (table, tiles, marks and factors), output (written).
// Thread mapping: a thread a column.
// Workgroup memory: 256 words, 1024 bytes.
// Launch contract: one workgroup a tile, the tiles from first_tile on.
// Traffic: an element once.
// Determinism: on one implementation.
// Edge cases: tiles may have fewer rows and columns.

@group(0) @binding(1) var<storage, read> workspace: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;

// Rows whose entries of the left factor are in the workgroup's memory together.
const BAND: u32 = 32u;
// Eight entries of a row each.
var<workgroup> lefts: array<vec4<f32>, 64>;

@compute @workgroup_size(256)
fn powersgd_expand(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let t = tile_of(group.x);
    let column = t.column + thread;
    let here = column < t.columns;
    let poisoned = mark(t.index, MARK_POISONED) != 0u;
    let many = params.rank > TOGETHER;
    let rights = array<vec4<f32>, 2>(
        four(t.right, t.column_stride, 0u, select(t.column_stride, column, here), no_right()),
        four(t.right, t.column_stride, 4u, select(t.column_stride, column, here), no_right()),
    );
    for (var first = 0u; first < TILE; first += BAND) {
        workgroupBarrier();
        if thread < 64u {
            let half = thread / BAND;
            lefts[2u * (thread % BAND) + half] =
                four(t.left, t.row_stride, 4u * half, t.row + first + thread % BAND, 0.0);
        }
        workgroupBarrier();
        if here {
            for (var j = 0u; j < BAND && t.row + first + j < t.rows; j++) {
                var value = 0.0;
                if many {
                    let row = t.row + first + j;
                    value = approximation(t.left, t.row_stride, t.right, t.column_stride, row, column);
                } else {
                    value = terms(no_right(), lefts[2u * j], rights[0]);
                    value = terms(value, lefts[2u * j + 1u], rights[1]);
                }
                output[t.at + (first + j) * t.columns + thread] = select(bitcast<u32>(value), NAN, poisoned);
            }
        }
    }
}
