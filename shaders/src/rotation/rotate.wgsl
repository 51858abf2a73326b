// `gradwire_kernels::params::RotateParams`, word for word.
struct RotateParams {
    n: u32,
    rows: u32,
    block_log2: u32,
    flags: u32,
    key_low: u32,
    key_high: u32,
    tensor: u32,
    step_low: u32,
    step_high: u32,
    first_call: u32,
    reserved_0: u32,
    reserved_1: u32,
}

const FLAG_INVERSE: u32 = 1u;

@group(0) @binding(0) var<uniform> params: RotateParams;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;

// Four vectors of each of 256 rows: column by column.
var<workgroup> columns: array<vec4<u32>, 1024>;

// The upper and the lower half of a product, from products of 16 bits.
fn multiply(a: u32, b: u32) -> vec2<u32> {
    let lowest = (a & 0xffffu) * (b & 0xffffu);
    let t = (a >> 16u) * (b & 0xffffu) + (lowest >> 16u);
    let u = (a & 0xffffu) * (b >> 16u) + (t & 0xffffu);
    return vec2<u32>((a >> 16u) * (b >> 16u) + (t >> 16u) + (u >> 16u), (u << 16u) | (lowest & 0xffffu));
}

// The signs of a row, a bit per element: Philox4x32 with 7 rounds.
fn signs(row: u32) -> u32 {
    var counter = vec4<u32>(params.first_call + row / 4u, params.tensor, params.step_low, params.step_high);
    var key = vec2<u32>(params.key_low, params.key_high);
    for (var round = 0u; round < 7u; round++) {
        let even = multiply(0xd2511f53u, counter.x);
        let odd = multiply(0xcd9e8d57u, counter.z);
        counter = vec4<u32>(odd.x ^ counter.y ^ key.x, odd.y, even.x ^ counter.w ^ key.y, even.y);
        key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return counter[row & 3u];
}

// The base-2 logarithm of the block that has a row.
fn of_block(row: u32) -> u32 {
    return min(36u - countLeadingZeros((row ^ params.rows) | 1u), params.block_log2);
}

// The sign bits of four elements of a row, from `at` on.
fn sign_bits(bits: u32, at: u32) -> vec4<u32> {
    return (vec4<u32>(bits) >> (vec4<u32>(at) + vec4<u32>(0u, 1u, 2u, 3u))) << vec4<u32>(31u);
}

// What: rotates blocks, or rotates them back (`kernels/rotate.rs`).
// Arguments: RotateParams; input, output: a word per element.
// Thread mapping: a workgroup takes 256 rows of 32 elements; invocation i has row i.
// Workgroup memory: 16384 bytes, by which rows meet, a half of each at a time.
// Launch contract: ceil(rows / 256) workgroups.
// Traffic: 8 bytes per element.
// Determinism: the order of the sums is fixed.
// Edge cases: NaN is written as the one NaN; what overflows is infinite, and then NaN.
@compute @workgroup_size(256)
fn rotate_blocks(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let first = group.x * 256u;
    let row = first + thread;
    let inverse = (params.flags & FLAG_INVERSE) != 0u;
    let of_rows = params.rows * 32u;
    let read_end = select(params.n, of_rows, inverse);
    let write_end = select(of_rows, params.n, inverse);
    let bits = signs(row);
    var values: array<vec4<u32>, 8>;
    for (var slot = 0u; slot < 8u; slot++) {
        var value = vec4<u32>();
        for (var i = 0u; i < 4u; i++) {
            let at = row * 32u + slot * 4u + i;
            if at < read_end {
                value[i] = input[at];
            }
        }
        if !inverse {
            value ^= sign_bits(bits, slot * 4u);
        }
        value = f_add(value.xxzz, value.yyww ^ vec4<u32>(0u, SIGN, 0u, SIGN));
        values[slot] = f_add(value.xyxy, value.zwzw ^ vec4<u32>(0u, 0u, SIGN, SIGN));
    }
    for (var distance = 1u; distance < 8u; distance = distance * 2u) {
        for (var slot = 0u; slot < 8u; slot++) {
            if (slot & distance) == 0u {
                let a = values[slot];
                let b = values[slot + distance];
                values[slot] = f_add(a, b);
                values[slot + distance] = f_sub(a, b);
            }
        }
    }
    for (var half = 0u; half < 8u; half += 4u) {
        for (var slot = 0u; slot < 4u; slot++) {
            columns[slot * 256u + thread] = values[half + slot];
        }
        workgroupBarrier();
        for (var level = 0u; level < 8u; level++) {
            let distance = 1u << level;
            for (var turn = 0u; turn < 2u; turn++) {
                // Of the 512 pairs, two are an invocation's: of row `low` and of the row `distance` behind it.
                let pair = turn * 256u + thread;
                let within = pair & 127u;
                let low = ((within >> level) << (level + 1u)) | (within & (distance - 1u));
                if of_block(first + low) > 5u + level {
                    let at = (pair >> 7u) * 256u + low;
                    let a = columns[at];
                    let b = columns[at + distance];
                    columns[at] = f_add(a, b);
                    columns[at + distance] = f_sub(a, b);
                }
            }
            workgroupBarrier();
        }
        for (var slot = 0u; slot < 4u; slot++) {
            values[half + slot] = columns[slot * 256u + thread];
        }
    }
    let log2 = of_block(row);
    let scale = ((127u - ((log2 + 1u) >> 1u)) << 23u) | ((log2 & 1u) * 0x3504f3u);
    for (var slot = 0u; slot < 8u; slot++) {
        var value = values[slot];
        if inverse {
            value ^= sign_bits(bits, slot * 4u);
        }
        value = f_mul(value, vec4<u32>(scale));
        for (var i = 0u; i < 4u; i++) {
            let at = row * 32u + slot * 4u + i;
            if at < write_end {
                output[at] = value[i];
            }
        }
    }
}
