// What: forms gradient + residual of a tile, and multiplies its transpose by the left factor: a tile's share of M^T P
// (`kernels/powersgd/right.rs`). Without PRODUCT forms alone; with SCAN leaves nothing but, in the status, the complement of the
// index of the first element that is not finite.
// Arguments: LowRankParams; input (FORM), residual (FORM: becomes what stays behind), workspace (table, tiles, marks and factors
// are read, shares are written), status (its first word; SCAN: raised, GUARDED: read).
// Thread mapping: a thread a column.
// Workgroup memory: 513 words, 2052 bytes.
// Launch contract: one workgroup a tile, the tiles from first_tile on.
// Traffic: an element once in each buffer; above rank 8 once more for each eight columns.
// Determinism: on one implementation; every sum is in one order.
// Edge cases: where an element is not finite, its column's share is NaN.

// Rows whose entries of the left factors are in the workgroup's memory together.
const BAND: u32 = 32u;
// Eight entries of a row each, of P and of L.
var<workgroup> factor: array<vec4<f32>, 64>;
var<workgroup> lefts: array<vec4<f32>, 64>;
// Whether an element is not finite.
var<workgroup> odd: atomic<u32>;

@compute @workgroup_size(256)
fn powersgd_right(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let t = tile_of(group.x);
    let column = t.column + thread;
    let here = column < t.columns;
    let writing = writes();
    let many = params.rank > TOGETHER;
    let rights = array<vec4<f32>, 2>(
        four(t.right, t.column_stride, 0u, select(t.column_stride, column, t.rest && here), no_right()),
        four(t.right, t.column_stride, 4u, select(t.column_stride, column, t.rest && here), no_right()),
    );
    var all_finite = true;
    if thread == 0u {
        atomicStore(&odd, 0u);
    }
    // Without a product, one turn forms.
    for (var k = 0u; k < select(1u, params.rank, has(FLAG_PRODUCT)); k += TOGETHER) {
        var totals = array<vec4<f32>, 2>();
        var well = !t.odd;
        for (var first = 0u; first < TILE; first += BAND) {
            workgroupBarrier();
            if thread < 64u {
                let row = t.row + first + thread % BAND;
                let half = thread / BAND;
                if has(FLAG_PRODUCT) {
                    factor[2u * (thread % BAND) + half] = four(t.factor, t.row_stride, k + 4u * half, row, 0.0);
                }
                if t.rest {
                    lefts[2u * (thread % BAND) + half] = four(t.left, t.row_stride, 4u * half, row, 0.0);
                }
            }
            workgroupBarrier();
            if here {
                var sums = array<vec4<f32>, 2>();
                for (var j = 0u; j < BAND && t.row + first + j < t.rows; j++) {
                    let row = t.row + first + j;
                    let at = t.at + (first + j) * t.columns + thread;
                    var less = 0.0;
                    if t.rest {
                        if many {
                            less = approximation(t.left, t.row_stride, t.right, t.column_stride, row, column);
                        } else {
                            less = terms(no_right(), lefts[2u * j], rights[0]);
                            less = terms(less, lefts[2u * j + 1u], rights[1]);
                        }
                    }
                    let formed = form(at, t, less);
                    if has(FLAG_SCAN) {
                        if !is_finite(formed.x) {
                            atomicMax(&status[0], ~(t.first + row * t.columns + column));
                        }
                    } else if writing {
                        residual[at] = formed.y;
                    }
                    all_finite = all_finite && is_finite(formed.x);
                    if has(FLAG_PRODUCT) {
                        well = well && is_finite(formed.x);
                        let m = bitcast<f32>(select(0u, formed.x, is_finite(formed.x)));
                        sums[0] += m * factor[2u * j];
                        sums[1] += m * factor[2u * j + 1u];
                    }
                }
                totals[0] += sums[0];
                totals[1] += sums[1];
            }
        }
        if has(FLAG_PRODUCT) && here {
            let shares = params.shares + table(t.index, SHARES + 1u);
            for (var i = 0u; i < TOGETHER && k + i < params.rank; i++) {
                let sum = bitcast<u32>(totals[i / 4u][i % 4u]);
                let at = shares + (t.row / TILE * params.rank + k + i) * t.column_stride + column;
                workspace[at] = select(NAN, sum, well);
            }
        }
    }
    if has(FLAG_FORM) && !has(FLAG_PRODUCT) && !has(FLAG_SCAN) {
        // What is multiplied later is the residual, which has no such element: the tile's list says that there was one.
        if !all_finite {
            atomicStore(&odd, 1u);
        }
        workgroupBarrier();
        if thread == 0u && writing {
            workspace[t.list + TILE_ODD] = atomicLoad(&odd);
        }
    }
}
