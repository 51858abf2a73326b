// What: takes factors that were all-reduced (TAKE), and makes their columns orthonormal (ORTHONORMAL; SEED: those that depend on
// others are drawn anew), as `kernels/powersgd/factor.rs`: by the Cholesky factorisation of their products. The products are
// exact sums of integers, columns being scaled to 30 bits; so no order matters. Where the state is on the device, it also begins
// the step (START) and ends it (COMMIT).
// Arguments: LowRankParams (RIGHT: which factor); workspace (table and marks are read, marks and factors written), values (TAKE).
// Thread mapping: a workgroup a matrix; a thread every 256th row of its factor, whose entries it alone reads and writes.
// Workgroup memory: 3299 words, 13196 bytes.
// Launch contract: one workgroup a matrix, the matrices from first_tile on; with START and COMMIT, one a tensor.
// Traffic: the factor some r + 2 times a sweep, from cache after the first.
// Determinism: of the products and the triangle, on every implementation; of the columns, on one.
// Edge cases: columns of zeros stay zeros, or are drawn; subnormal entries count as zero.

@group(0) @binding(1) var<storage, read_write> workspace: array<u32>;
@group(0) @binding(2) var<storage, read> values: array<u32>;

// Sweeps at most; a factor that is left nearly orthonormal needs no more.
const SWEEPS: u32 = 5u;
// Words of a product: six limbs of 16 bits; then a number, and the same as f32.
const WORDS: u32 = 6u;
// 2^120: an entry from there on cannot be multiplied.
const TOO_LARGE: u32 = 0x7b800000u;
// What is added to a number's exponent, to keep it beside the sign.
const BIAS: i32 = 1048576;

// A product for each pair of columns.
var<workgroup> products: array<atomic<u32>, 3168>;
// The squares of the columns, three words each.
var<workgroup> squares: array<u32, 96>;
// The largest exponent of each column.
var<workgroup> tops: array<atomic<u32>, 32>;
// Whether a column depended on those before it, in any sweep; whether one is yet far from orthonormal.
var<workgroup> dependent: atomic<u32>;
var<workgroup> unfinished: atomic<u32>;
var<workgroup> stop: u32;

struct Factor {
    start: u32,
    stride: u32,
    entries: u32,
}

fn at(f: Factor, column: u32, entry: u32) -> u32 {
    return f.start + column * f.stride + entry;
}

fn pair(i: u32, j: u32) -> u32 {
    return WORDS * (i * (i + 1u) / 2u + j);
}

fn packed(a: Wide) -> vec3<u32> {
    return vec3<u32>(u32(a.exponent + BIAS) | select(0u, SIGN, a.negative), a.high, a.low);
}

fn unpacked(words: vec3<u32>) -> Wide {
    return Wide((words.x & SIGN) != 0u, i32(words.x & MAGNITUDE) - BIAS, words.y, words.z);
}

fn load(place: u32) -> Wide {
    return unpacked(vec3<u32>(
        atomicLoad(&products[place]),
        atomicLoad(&products[place + 1u]),
        atomicLoad(&products[place + 2u]),
    ));
}

fn store(place: u32, value: Wide) {
    let words = packed(value);
    atomicStore(&products[place], words.x);
    atomicStore(&products[place + 1u], words.y);
    atomicStore(&products[place + 2u], words.z);
    atomicStore(&products[place + 3u], bitcast<u32>(w_to_f32(value)));
}

fn square(i: u32) -> Wide {
    return unpacked(vec3<u32>(squares[3u * i], squares[3u * i + 1u], squares[3u * i + 2u]));
}

fn exponent_of(bits: u32) -> u32 {
    return (bits >> 23u) & 0xffu;
}

// An entry of a column whose largest exponent is `top`, in units of 2^-29 of that one's power; 30 bits.
fn fixed(bits: u32, top: u32) -> u32 {
    let exponent = exponent_of(bits);
    let apart = top - exponent;
    if exponent == 0u || apart > 30u {
        return 0u;
    }
    return (((bits & FRACTION) | IMPLIED) << 6u) >> apart;
}

// The same entry divided by that power.
fn scaled(bits: u32, top: u32) -> f32 {
    let exponent = i32(exponent_of(bits)) - i32(top) + 127;
    if exponent_of(bits) == 0u || exponent <= 0 {
        return 0.0;
    }
    return bitcast<f32>((bits & (SIGN | FRACTION)) | (u32(exponent) << 23u));
}

// This invocation's part of the product of two columns, in 96 bits, added to it.
fn add_product(f: Factor, i: u32, j: u32, thread: u32) {
    let tops_of = vec2<u32>(atomicLoad(&tops[i]), atomicLoad(&tops[j]));
    var sum = vec3<u32>(0u);
    for (var row = thread; row < f.entries; row += 256u) {
        let a = word(at(f, i, row));
        let b = word(at(f, j, row));
        let term = product(fixed(a, tops_of.x), fixed(b, tops_of.y));
        if ((a ^ b) & SIGN) == 0u {
            let low = sum.x + term.x;
            let some = sum.y + term.y;
            let middle = some + select(0u, 1u, low < term.x);
            sum = vec3<u32>(low, middle, sum.z + select(0u, 1u, some < term.y) + select(0u, 1u, middle < some));
        } else {
            let borrow = select(0u, 1u, sum.x < term.x);
            let some = sum.y - term.y;
            let high = sum.z - select(0u, 1u, sum.y < term.y) - select(0u, 1u, some < borrow);
            sum = vec3<u32>(sum.x - term.x, some - borrow, high);
        }
    }
    let place = pair(i, j);
    for (var w = 0u; w < 3u; w++) {
        atomicAdd(&products[place + 2u * w], sum[w] & 0xffffu);
        atomicAdd(&products[place + 2u * w + 1u], sum[w] >> 16u);
    }
}

// Makes a number of a product's limbs.
fn settle(i: u32, j: u32) {
    let place = pair(i, j);
    var words = vec3<u32>(0u);
    var carry = 0u;
    for (var w = 0u; w < 3u; w++) {
        // 256 limbs of 16 bits are 24.
        let low = atomicLoad(&products[place + 2u * w]) + carry;
        let high = atomicLoad(&products[place + 2u * w + 1u]) + (low >> 16u);
        words[w] = (low & 0xffffu) | (high << 16u);
        carry = high >> 16u;
    }
    let negative = (words.z & SIGN) != 0u;
    if negative {
        let low = ~words.x + 1u;
        let middle = ~words.y + select(0u, 1u, low == 0u);
        words = vec3<u32>(low, middle, ~words.z + select(0u, 1u, low == 0u && middle == 0u));
    }
    // In units of 2^-58; the highest 64 bits of 96 are kept.
    var value = normal(negative, -58, words.y, words.x);
    if words.z != 0u {
        let up = countLeadingZeros(words.z);
        var high = words.z;
        var low = words.y;
        if up > 0u {
            high = (high << up) | (low >> (32u - up));
            low = (low << up) | (words.x >> (32u - up));
        }
        value = Wide(negative, -26 - i32(up), high, low);
    }
    store(place, value);
    if i == j {
        let words = packed(value);
        squares[3u * i] = words.x;
        squares[3u * i + 1u] = words.y;
        squares[3u * i + 2u] = words.z;
    }
}

// The inverse of a column's length beside those before it, or zero where it depends on them; in place of its square.
fn pivot(j: u32) {
    let whole = square(j);
    let rest = load(pair(j, j));
    var inverse = NOTHING;
    // The least squared sine that counts is 2^-44.
    if whole.high != 0u && !rest.negative && rest.high != 0u && w_no_less(rest, w_scaled(whole, -44)) {
        inverse = w_inverse_root(rest);
        // 1 - 2^-8 and above is near enough.
        if !w_no_less(rest, w_sub(whole, w_scaled(whole, -8))) {
            atomicStore(&unfinished, 1u);
        }
    } else {
        atomicOr(&dependent, 1u << j);
    }
    store(pair(j, j), inverse);
}

// Multiplies an invocation's rows by the inverse transposed triangle.
fn solve(f: Factor, thread: u32) {
    for (var row = thread; row < f.entries; row += 256u) {
        for (var k = 0u; k < params.rank; k++) {
            var less = 0.0;
            for (var before = 0u; before < k; before++) {
                less += bitcast<f32>(atomicLoad(&products[pair(k, before) + 3u])) * number(at(f, before, row));
            }
            let inverse = bitcast<f32>(atomicLoad(&products[pair(k, k) + 3u]));
            let own = scaled(word(at(f, k, row)), atomicLoad(&tops[k]));
            workspace[at(f, k, row)] = bitcast<u32>((own - less) * inverse);
        }
    }
}

// Makes the columns orthonormal, or zero.
fn orthonormalise(f: Factor, thread: u32) {
    for (var sweep = 0u; sweep < SWEEPS; sweep++) {
        if thread < 32u {
            atomicStore(&tops[thread], 0u);
        }
        for (var p = thread; p < 3168u; p += 256u) {
            atomicStore(&products[p], 0u);
        }
        if thread == 0u {
            atomicStore(&unfinished, 0u);
        }
        workgroupBarrier();
        for (var k = 0u; k < params.rank; k++) {
            var top = 0u;
            for (var row = thread; row < f.entries; row += 256u) {
                top = max(top, exponent_of(word(at(f, k, row))));
            }
            atomicMax(&tops[k], top);
        }
        workgroupBarrier();
        for (var turn = 0u; turn < params.rank; turn++) {
            // Neighbours add to different pairs.
            let i = (turn + thread) % params.rank;
            for (var j = 0u; j <= i; j++) {
                add_product(f, i, j, thread);
            }
        }
        workgroupBarrier();
        for (var i = thread / 32u; i < params.rank; i += 8u) {
            let j = thread % 32u;
            if j <= i {
                settle(i, j);
            }
        }
        workgroupBarrier();
        for (var j = 0u; j < params.rank; j++) {
            if thread == j {
                pivot(j);
            }
            workgroupBarrier();
            if thread > j && thread < params.rank {
                store(pair(thread, j), w_mul(load(pair(thread, j)), load(pair(j, j))));
            }
            workgroupBarrier();
            let i = thread % 32u;
            if i < params.rank {
                for (var k = j + 1u + thread / 32u; k <= i; k += 8u) {
                    let term = w_mul(load(pair(i, j)), load(pair(k, j)));
                    store(pair(i, k), w_sub(load(pair(i, k)), term));
                }
            }
            workgroupBarrier();
        }
        solve(f, thread);
        if thread == 0u {
            stop = 1u - atomicLoad(&unfinished);
        }
        // A barrier too: nothing of this sweep is read any more.
        if workgroupUniformLoad(&stop) != 0u {
            break;
        }
    }
}

// An entry of a seeded column: the sum of four draws of 16 bits about its mean.
fn seeded(column: u32, row: u32, tensor: u32) -> u32 {
    let key = vec2<u32>(params.key_low, params.key_high ^ ((column + 1u) * 0x9e3779b9u));
    var step = vec2<u32>(params.step_low, params.step_high);
    if has(FLAG_START) {
        step = vec2<u32>(word(params.steps), word(params.steps + 1u));
    }
    let words = philox(row >> 1u, tensor, step, key);
    let some = select(words.xy, words.zw, (row & 1u) == 1u);
    let sum = (some.x & 0xffffu) + (some.x >> 16u) + (some.y & 0xffffu) + (some.y >> 16u);
    return bitcast<u32>(f32(i32(sum) - 131070) * (1.0 / 65536.0));
}

fn philox(call: u32, tensor: u32, step: vec2<u32>, seed: vec2<u32>) -> vec4<u32> {
    var c = vec4<u32>(call, tensor, step.x, step.y);
    var key = seed;
    for (var round = 0u; round < 7u; round++) {
        let one = product(0xd2511f53u, c.x);
        let other = product(0xcd9e8d57u, c.z);
        c = vec4<u32>(other.y ^ c.y ^ key.x, other.x, one.y ^ c.w ^ key.y, one.x);
        key = key + vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return c;
}

// A step begins with the factor that the last one ended with. A thread takes the rows that it works on, padding included.
fn begin(f: Factor, index: u32, side: u32, thread: u32) {
    let ended = select(params.left, params.right, side == 1u) + table(index, PADDED + side);
    for (var k = 0u; k < params.rank; k++) {
        for (var i = thread; i < f.stride; i += 256u) {
            workspace[at(f, k, i)] = word(ended + k * f.stride + i);
        }
    }
}

// Both factors of the step, which lie as far behind those that it ends with. Those of the side that is taken are this thread's
// own rows; nothing else is written of the other's.
fn keep(index: u32, thread: u32) {
    let behind = params.factor - select(params.left, params.right, has(FLAG_RIGHT));
    for (var side = 0u; side < 2u; side++) {
        let stride = padded(table(index, ROWS + side));
        let to = select(params.left, params.right, side == 1u) + table(index, PADDED + side);
        for (var k = 0u; k < params.rank; k++) {
            for (var i = thread; i < stride; i += 256u) {
                workspace[to + k * stride + i] = word(to + behind + k * stride + i);
            }
        }
    }
}

// What became of a tensor. The residual of one that is not compressed is what it is.
fn end(index: u32, marks: u32, poisoned: bool) {
    let wary = word(marks + MARK_WARY_FOR);
    let keeps = has(FLAG_FEEDBACK) && wary == 0u;
    var sent = 1u;
    var next = max(wary, 1u) - 1u;
    var what = 1u;
    if poisoned {
        sent = select(DROPPED, 0u, keeps);
        next = WARY;
        what = select(3u, 2u, keeps);
    }
    workspace[marks + MARK_SENT] = select(sent, 0u, index >= params.matrices);
    workspace[marks + MARK_WARY_FOR] = next;
    workspace[marks + MARK_OUTCOME] = what;
    if index == 0u {
        let low = word(params.steps) + 1u;
        workspace[params.steps] = low;
        if low == 0u {
            workspace[params.steps + 1u] = word(params.steps + 1u) + 1u;
        }
    }
}

@compute @workgroup_size(256)
fn powersgd_factor(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let index = params.first_tile + group.x;
    let side = select(0u, 1u, has(FLAG_RIGHT));
    let entries = table(index, ROWS + side);
    let f = Factor(params.factor + table(index, PADDED + side), padded(entries), entries);
    let marks = params.marks + index * MARK_WORDS;
    let poisoned = marks + MARK_POISONED;
    let is_plain = index >= params.matrices;
    if has(FLAG_START) {
        if thread == 0u {
            workspace[poisoned] = 0u;
        }
        if !is_plain {
            begin(f, index, side, thread);
        }
    }
    if is_plain {
        if has(FLAG_COMMIT) && thread == 0u {
            end(index, marks, word(poisoned) != 0u);
        }
        return;
    }
    if thread == 0u {
        // Of the marks this invocation alone reads this one, and writes it.
        atomicStore(&unfinished, 0u);
        atomicStore(&dependent, 0u);
        if has(FLAG_TAKE) && word(poisoned) != 0u {
            atomicStore(&unfinished, 1u);
        }
    }
    workgroupBarrier();
    if has(FLAG_TAKE) {
        let sent = table(index, SENT + side);
        for (var i = thread; i < params.rank * entries; i += 256u) {
            if (values[sent + i] & MAGNITUDE) >= TOO_LARGE {
                atomicStore(&unfinished, 1u);
            }
        }
        workgroupBarrier();
        if atomicLoad(&unfinished) != 0u {
            if thread == 0u {
                workspace[poisoned] = 1u;
            }
        } else {
            for (var k = 0u; k < params.rank; k++) {
                for (var i = thread; i < entries; i += 256u) {
                    workspace[at(f, k, i)] = values[sent + k * entries + i];
                }
            }
        }
        workgroupBarrier();
    }
    if has(FLAG_COMMIT) {
        // Nothing was sent of a poisoned matrix: its factors stay.
        if atomicLoad(&unfinished) == 0u {
            keep(index, thread);
        }
        if thread == 0u {
            end(index, marks, atomicLoad(&unfinished) != 0u);
        }
    }
    if has(FLAG_ORTHONORMAL) {
        orthonormalise(f, thread);
        if has(FLAG_SEED) {
            let tensor = params.tensor + table(index, TENSOR);
            let drawn = atomicLoad(&dependent);
            for (var k = 0u; k < params.rank; k++) {
                if ((drawn >> k) & 1u) != 0u {
                    for (var i = thread; i < entries; i += 256u) {
                        workspace[at(f, k, i)] = seeded(k, i, tensor);
                    }
                }
            }
            if thread == 0u {
                stop = drawn;
            }
            if workgroupUniformLoad(&stop) != 0u {
                orthonormalise(f, thread);
            }
        }
    }
}
