// What: forms gradient + residual of a tile, and multiplies it by the right factor: a tile's share of M Q
// (`kernels/powersgd/left.rs`).
// Arguments: LowRankParams; input (FORM), residual (FORM: becomes what stays behind), workspace (table, tiles, marks and factors
// are read, shares are written), status (GUARDED: its first word is read).
// Thread mapping: eight rows at a time: a thread forms a column of them, then takes a row and every 32nd column, then 64 threads a
// row and a column of Q.
// Workgroup memory: 4096 words, 16384 bytes.
// Launch contract: one workgroup a tile, the tiles from first_tile on; with FORM a rank of 8 at most.
// Traffic: an element once in each buffer; above rank 8 once more for each eight columns.
// Determinism: on one implementation; every sum is in one order.
// Edge cases: where an element is not finite, its row's share is NaN.

// Rows that are worked on together.
const BAND: u32 = 8u;
// Bits of M, row by row; then of the sums of the threads, column of Q by column of Q.
var<workgroup> band: array<u32, 2048>;
// Eight columns of Q, one after another.
var<workgroup> factor: array<f32, 2048>;

@compute @workgroup_size(256)
fn powersgd_left(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let t = tile_of(group.x);
    let column = t.column + thread;
    let writing = writes();
    for (var k = 0u; k < params.rank; k += TOGETHER) {
        for (var i = 0u; i < TOGETHER; i++) {
            var entry = 0.0;
            if k + i < params.rank && column < t.columns {
                entry = number(t.factor + (k + i) * t.column_stride + column);
            }
            factor[i * TILE + thread] = entry;
        }
        // With as many columns as are worked on together, they stay in registers.
        let rights = array<vec4<f32>, 2>(
            four(t.right, t.column_stride, 0u, select(t.column_stride, column, t.rest), no_right()),
            four(t.right, t.column_stride, 4u, select(t.column_stride, column, t.rest), no_right()),
        );
        for (var first = 0u; first < TILE; first += BAND) {
            for (var j = 0u; j < BAND; j++) {
                let row = t.row + first + j;
                var bits = 0u;
                if row < t.rows && column < t.columns {
                    let at = t.at + (first + j) * t.columns + thread;
                    var less = 0.0;
                    if t.rest {
                        less = terms(no_right(), four(t.left, t.row_stride, 0u, row, 0.0), rights[0]);
                        less = terms(less, four(t.left, t.row_stride, 4u, row, 0.0), rights[1]);
                    }
                    let formed = form(at, t, less);
                    bits = formed.x;
                    if writing {
                        residual[at] = formed.y;
                    }
                }
                band[j * TILE + thread] = bits;
            }
            workgroupBarrier();
            let j = thread / 32u;
            var sums = array<vec4<f32>, 2>();
            var well = !t.odd;
            for (var c = thread % 32u; c < TILE; c += 32u) {
                let bits = band[j * TILE + c];
                well = well && is_finite(bits);
                let m = bitcast<f32>(select(0u, bits, is_finite(bits)));
                sums[0] += m * vec4<f32>(factor[c], factor[TILE + c], factor[2u * TILE + c], factor[3u * TILE + c]);
                sums[1] += m * vec4<f32>(
                    factor[4u * TILE + c],
                    factor[5u * TILE + c],
                    factor[6u * TILE + c],
                    factor[7u * TILE + c],
                );
            }
            workgroupBarrier();
            let low = select(vec4<u32>(NAN), bitcast<vec4<u32>>(sums[0]), well);
            let high = select(vec4<u32>(NAN), bitcast<vec4<u32>>(sums[1]), well);
            band[thread] = low.x;
            band[TILE + thread] = low.y;
            band[2u * TILE + thread] = low.z;
            band[3u * TILE + thread] = low.w;
            band[4u * TILE + thread] = high.x;
            band[5u * TILE + thread] = high.y;
            band[6u * TILE + thread] = high.z;
            band[7u * TILE + thread] = high.w;
            workgroupBarrier();
            let i = thread / BAND;
            let row = t.row + first + thread % BAND;
            if i < TOGETHER && k + i < params.rank && row < t.rows {
                let begin = i * TILE + thread % BAND * 32u;
                var total = 0.0;
                var finite = true;
                // Four sums of eight, and their sum: so no bound depends on the order.
                for (var some = 0u; some < 32u; some += 8u) {
                    var sum = 0.0;
                    for (var s = some; s < some + 8u; s++) {
                        let bits = band[begin + s];
                        finite = finite && is_finite(bits);
                        sum += bitcast<f32>(select(0u, bits, is_finite(bits)));
                    }
                    total += sum;
                }
                let shares = params.shares + table(t.index, SHARES);
                let at = shares + (t.column / TILE * params.rank + k + i) * t.row_stride + row;
                workspace[at] = select(NAN, bitcast<u32>(total), finite);
            }
            workgroupBarrier();
        }
    }
}
