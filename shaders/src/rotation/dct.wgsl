// `gradwire_kernels::params::DctParams`, word for word.
struct DctParams {
    n: u32,
    block_log2: u32,
    flags: u32,
    reserved: u32,
}

const FLAG_INVERSE: u32 = 1u;

// Cosines and sines of (2j + 1) pi / (4n) for n = 2, 4, 8, 16 and 32, one after the other, as the tables `TURNS_2` to
// `TURNS_32` of `arith/dct.rs`. Those of n begin at pair n / 2 - 1.
const TURNS = array<u32, 62>(
    0x3f6c835eu, 0x3ec3ef15u, 0x3f7b14beu, 0x3e47c5c2u, 0x3f54db31u, 0x3f0e39dau, 0x3f7ec46du, 0x3dc8bd36u,
    0x3f74fa0bu, 0x3e94a031u, 0x3f61c598u, 0x3ef15aeau, 0x3f45e403u, 0x3f226799u, 0x3f7fb10fu, 0x3d48fb30u,
    0x3f7d3aacu, 0x3e164083u, 0x3f7853f8u, 0x3e78cfccu, 0x3f710908u, 0x3eac7cd4u, 0x3f676bd8u, 0x3edae880u,
    0x3f5b941au, 0x3f039c3du, 0x3f4d9f02u, 0x3f187fc0u, 0x3f3daef9u, 0x3f2beb4au, 0x3f7fec43u, 0x3cc90ab0u,
    0x3f7f4e6du, 0x3d96a905u, 0x3f7e1324u, 0x3dfab273u, 0x3f7c3b28u, 0x3e2f10a2u, 0x3f79c79du, 0x3e605c13u,
    0x3f76ba07u, 0x3e888e93u, 0x3f731447u, 0x3ea09ae5u, 0x3f6ed89eu, 0x3eb8442au, 0x3f6a09a7u, 0x3ecf7bcau,
    0x3f64aa59u, 0x3ee63375u, 0x3f5ebe05u, 0x3efc5d27u, 0x3f584853u, 0x3f08f59bu, 0x3f514d3du, 0x3f13682au,
    0x3f49d112u, 0x3f1d7fd1u, 0x3f41d870u, 0x3f273656u, 0x3f396842u, 0x3f3085bbu,
);
// cos(pi / 4).
const HALF_TURN: u32 = 0x3f3504f3u;
// In the place of a cell that is not written.
const NOWHERE: u32 = 4096u;

@group(0) @binding(0) var<uniform> params: DctParams;
@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> output: array<u32>;

var<workgroup> cells: array<u32, 4096>;

// Where an element's cell is, so that invocations with a row each do not wait for one bank.
fn cell(at: u32) -> u32 {
    return at ^ ((at >> 6u) & 31u);
}

// The base-2 logarithm of the blocks that have these elements.
fn of_block(element: vec4<u32>) -> vec4<u32> {
    return min(31u - countLeadingZeros((element ^ vec4<u32>(params.n)) | vec4<u32>(1u)), vec4<u32>(params.block_log2));
}

// The numbers in four cells.
fn load(at: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(cells[cell(at.x)], cells[cell(at.y)], cells[cell(at.z)], cells[cell(at.w)]);
}

// What elements are multiplied by: the root of 1 / n or 2 / n of each direction.
fn scale_of(element: vec4<u32>) -> vec4<u32> {
    let one = vec4<u32>(1u);
    let log2 = of_block(element);
    let along = (log2 + one) >> one;
    let place = element & ((one << log2) - one);
    let left = log2 - min(place >> along, one) - min(place & ((one << along) - one), one);
    return ((127u - ((left + one) >> one)) << vec4<u32>(23u)) | ((left & one) * 0x3504f3u);
}

// Two numbers of each of four lines, and the cells that they go to.
struct Pairs {
    low: vec4<u32>,
    high: vec4<u32>,
    to_low: vec4<u32>,
    to_high: vec4<u32>,
}

// A level of the recursion of `arith/dct.rs`, for pairs of elements. At depth d a line of n elements is 2^d segments.
// On the way down a segment becomes the inputs of its two halves. On the way up their outputs become its own.
//
// The halves of one of the second kind are of the second and of the fourth kind, those of one of the fourth kind are of
// the second twice. So a segment is of the fourth kind if its index ends in an odd number of ones. Back, the first
// segment is one of the second kind backwards.
fn level(pair: vec4<u32>, first: u32, rows: bool, up: bool, depth: u32) -> Pairs {
    let zero = vec4<u32>(0u);
    let one = vec4<u32>(1u);
    let log2 = of_block(first + 2u * pair);
    let along = (log2 + one) >> one;
    let length = select(log2 - along, along, rows);
    let there = (first + 2u * pair < vec4<u32>(params.n)) & (vec4<u32>(depth) < length);
    // Lines beside each other are those of invocations beside each other.
    let lines = log2 - length;
    let inside = pair & (((one << log2) >> one) - one);
    let index = inside >> lines;
    let begin_of_line = 2u * (pair - inside) + ((inside & ((one << lines) - one)) << select(zero, along, rows));
    let stride = select(along, zero, rows);

    let half_log2 = select(zero, length - one - depth, there);
    let half = one << half_log2;
    let segment = index >> half_log2;
    let j = index & (half - one);
    let begin = segment << (half_log2 + one);
    let fourth = (countTrailingZeros(~segment) & one) == one;
    let backwards = (segment == zero) & vec4<bool>((params.flags & FLAG_INVERSE) != 0u);
    let inner = fourth & (j > zero);

    var read_low = j;
    var read_high = half + j;
    var write_low = j;
    var write_high = half + j;
    // Sums and differences; otherwise the two are copied.
    var adds = !backwards;
    if up {
        read_high = select(read_high, 2u * half - j, inner);
        write_low = select(2u * j, select(j, 2u * j - one, inner), fourth | backwards);
        write_high = select(2u * j + one, select(2u * half - one - j, 2u * j, inner), fourth | backwards);
        adds = backwards | inner;
    } else {
        read_low = select(j, 2u * j, backwards);
        read_high = select(2u * half - one - j, 2u * j + one, backwards);
    }

    var pairs: Pairs;
    let a = load(select(zero, begin_of_line + ((begin + read_low) << stride), there));
    let b = load(select(zero, begin_of_line + ((begin + read_high) << stride), there));
    var plus = a;
    var other_plus = b;
    var minus = a;
    var other_minus = b;
    let turns = fourth & there & vec4<bool>(!up);
    if any(turns) {
        let at = select(zero, 2u * (half - one + j), turns);
        let cos = vec4<u32>(TURNS[at.x], TURNS[at.y], TURNS[at.z], TURNS[at.w]);
        let sin = vec4<u32>(TURNS[at.x + 1u], TURNS[at.y + 1u], TURNS[at.z + 1u], TURNS[at.w + 1u]);
        plus = select(a, f_mul(a, cos), turns);
        other_plus = select(b, f_mul(b, sin), turns);
        let across = f_mul(a, sin);
        let other_across = f_mul(b, cos);
        let odd = (j & one) == one;
        minus = select(a, select(across, other_across, odd), turns);
        other_minus = select(b, select(other_across, across, odd), turns);
    }
    var low = a;
    var high = b;
    if any(adds & there) {
        low = select(a, f_add(plus, other_plus), adds);
        high = select(b, f_sub(minus, other_minus), adds);
    }
    // What is left of the second kind's differences is one element of the fourth.
    let last = (half == one) & !fourth & there & vec4<bool>(!up);
    if any(last) {
        high = select(high, f_mul(high, vec4<u32>(HALF_TURN)), last);
    }
    pairs.low = low;
    pairs.high = high;
    pairs.to_low = select(vec4<u32>(NOWHERE), begin_of_line + ((begin + write_low) << stride), there);
    pairs.to_high = select(vec4<u32>(NOWHERE), begin_of_line + ((begin + write_high) << stride), there);
    return pairs;
}

// What: transforms blocks by cosines, or transforms them back (`kernels/dct.rs`).
// Arguments: DctParams; input, output: a word per element.
// Thread mapping: a workgroup takes 4096 elements; at each level of the recursion an invocation has eight pairs.
// Workgroup memory: 16384 bytes, the elements.
// Launch contract: ceil(n / 4096) workgroups.
// Traffic: 8 bytes per element.
// Determinism: the order of the sums is fixed.
// Edge cases: NaN is written as the one NaN; what overflows is infinite, and then NaN.
@compute @workgroup_size(256)
fn dct_blocks(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let first = group.x * 4096u;
    let inverse = (params.flags & FLAG_INVERSE) != 0u;
    let quarter = vec4<u32>(0u, 256u, 512u, 768u);
    for (var slot = 0u; slot < 4u; slot++) {
        let at = vec4<u32>(slot * 1024u + thread) + quarter;
        var value = vec4<u32>(0u);
        for (var i = 0u; i < 4u; i++) {
            if first + at[i] < params.n {
                value[i] = input[first + at[i]];
            }
        }
        if inverse {
            value = f_mul(value, scale_of(first + at));
        }
        for (var i = 0u; i < 4u; i++) {
            cells[cell(at[i])] = value[i];
        }
    }
    workgroupBarrier();
    // Neither rows nor columns of a block are longer than 2 to this.
    let deepest = params.block_log2 / 2u;
    for (var direction = 0u; direction < 2u; direction++) {
        let rows = (direction == 0u) != inverse;
        for (var step = 0u; step < 2u * deepest; step++) {
            let up = step >= deepest;
            let depth = select(step, 2u * deepest - 1u - step, up);
            // Four pairs beside each other are of the same kind in whole blocks.
            let pair = vec4<u32>((thread >> 4u) * 64u + (thread & 15u)) + vec4<u32>(0u, 16u, 32u, 48u);
            var pairs: array<Pairs, 2>;
            for (var slot = 0u; slot < 2u; slot++) {
                pairs[slot] = level(slot * 1024u + pair, first, rows, up, depth);
            }
            workgroupBarrier();
            for (var slot = 0u; slot < 2u; slot++) {
                for (var i = 0u; i < 4u; i++) {
                    if pairs[slot].to_low[i] != NOWHERE {
                        cells[cell(pairs[slot].to_low[i])] = pairs[slot].low[i];
                        cells[cell(pairs[slot].to_high[i])] = pairs[slot].high[i];
                    }
                }
            }
            workgroupBarrier();
        }
    }
    for (var slot = 0u; slot < 4u; slot++) {
        let at = vec4<u32>(slot * 1024u + thread) + quarter;
        var value = load(at);
        if !inverse {
            value = f_mul(value, scale_of(first + at));
        }
        for (var i = 0u; i < 4u; i++) {
            if first + at[i] < params.n {
                output[first + at[i]] = value[i];
            }
        }
    }
}
