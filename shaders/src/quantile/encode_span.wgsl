// Quantile buckets: `kernels-gpu/src/arith/quantile.rs`. A workgroup sorts 4096 elements at a time, all buckets among
// them at once, and an invocation makes one mean after another.
// Thread mapping: a workgroup encodes 32 units, 16 at a time, a team of 32 lanes two of them; a lane its 8 slots of
// each.
// Workgroup memory: 4096 keys, 16384 bytes; in their place each bucket's edges, and then 512 words of small pieces.
// Traffic: input (and residual) once from memory and once more from cache; codes, scalars and residual written once,
//   and scalars read again from cache.
// Edge cases: a bucket with a NaN or an infinity keeps its residual, its scalars are NaN and its codes 0.

@group(0) @binding(1) var<storage, read> input: array<u32>;
@group(0) @binding(2) var<storage, read_write> residual: array<u32>;
@group(0) @binding(3) var<storage, read_write> scalars: array<u32>;
@group(0) @binding(4) var<storage, read_write> codes: array<u32>;
@group(0) @binding(5) var<storage, read> workspace: array<u32>;
@group(0) @binding(6) var<storage, read> status: array<u32>;

// Elements that are sorted at a time.
const PART: u32 = 4096u;
// Pairs that an invocation compares in a step of the sort.
const PAIRS: u32 = 8u;
// The key of zero, and of what is made up behind the last element.
const ZERO: u32 = SIGN;
const PAD: u32 = 0xffffffffu;

var<workgroup> keys: array<u32, PART>;

// Integers that order as the values do, the same for both zeros.
fn keys_of(bits: vec4<u32>) -> vec4<u32> {
    return to_key(select(bits, vec4<u32>(0u), bits == vec4<u32>(SIGN)));
}

// The magnitude of the value with this key.
fn magnitude_of(key: u32) -> u32 {
    return from_key(key) & MAGNITUDE;
}

// Sorts the buckets: a bitonic sorter, with the first step of each merge mirrored.
fn sort(thread: u32) {
    for (var size = 1u; size <= params.bucket_log2; size++) {
        for (var step = size; step > 0u; step--) {
            let distance = 1u << (step - 1u);
            for (var pair = 0u; pair < PAIRS; pair++) {
                let index = thread + 256u * pair;
                let low = ((index >> (step - 1u)) << step) | (index & (distance - 1u));
                let high = select(low + distance, low ^ (2u * distance - 1u), step == size);
                let a = keys[low];
                let b = keys[high];
                keys[low] = min(a, b);
                keys[high] = max(a, b);
            }
            workgroupBarrier();
        }
    }
}

// The first index from `first` on, and below `end`, whose key is at least this, in the bucket that begins at `start`.
fn lower_bound(start: u32, first: u32, end: u32, key: u32) -> u32 {
    var from_index = first;
    var to_index = end;
    while from_index < to_index {
        let middle = (from_index + to_index) / 2u;
        if keys[start + middle] < key {
            from_index = middle + 1u;
        } else {
            to_index = middle;
        }
    }
    return from_index;
}

// Where a sorted bucket is cut: its first key, its elements, those below zero, those not above it, and the quantiles of
// each: one more for zeros.
struct Cuts {
    start: u32,
    elements: u32,
    below: u32,
    through: u32,
    lower: u32,
    middle: u32,
}

fn cuts_of(start: u32, elements: u32) -> Cuts {
    let below = lower_bound(start, 0u, elements, ZERO);
    let through = lower_bound(start, below, elements, ZERO + 1u);
    let zeros = select(0u, 1u, through > below);
    let sides = elements - (through - below);
    let parted = (1u << params.bits) - zeros;
    let nearest = (parted * below + sides / 2u) / max(sides, 1u);
    let least = select(select(0u, 1u, below > 0u), parted, through == elements);
    let most = parted - select(0u, 1u, through < elements);
    let lower = min(max(nearest, least), most);
    return Cuts(start, elements, below, through, lower, lower + zeros);
}

// The rank at which quantile `j` begins.
fn rank(c: Cuts, j: u32) -> u32 {
    if j < c.lower {
        return j * c.below / c.lower;
    }
    if j < c.middle {
        return c.below;
    }
    return c.through + (j - c.middle) * (c.elements - c.through) / max((1u << params.bits) - c.middle, 1u);
}

// The key of the element at which quantile `j` begins.
fn edge_of(c: Cuts, j: u32) -> u32 {
    return keys[c.start + rank(c, j)];
}

// A magnitude as a multiple of 2^-8 of the alignment's last place, rounded down.
fn aligned_finely(magnitude: u32, to: u32) -> u32 {
    let exponent = magnitude >> 23u;
    let mantissa = (magnitude & FRACTION) | select(IMPLIED, 0u, exponent == 0u);
    let by = to - max(exponent, 1u);
    return select(0u, (mantissa << 8u) >> (by & 31u), by < 32u);
}

// The mean of quantile `j`; 0 of one without elements.
fn mean_of(c: Cuts, j: u32) -> u32 {
    let quantiles = 1u << params.bits;
    var first = rank(c, j);
    let next = rank(c, j + 1u);
    var edge = keys[c.start + first];
    var end = next;
    if j + 1u < quantiles {
        let following = keys[c.start + next];
        if following == edge {
            // Those that equal the edge have the last but one of the quantiles that begin with them.
            if j + 2u < quantiles {
                if edge_of(c, j + 2u) == edge {
                    return 0u;
                }
            }
            return from_key(edge);
        }
        end = lower_bound(c.start, first, next, following);
    }
    var equal = 0u;
    var follows = false;
    if j > 0u {
        follows = edge_of(c, j - 1u) == edge;
    }
    if follows {
        first = lower_bound(c.start, first, end, edge + 1u);
        if first == end {
            return 0u;
        }
        edge = keys[c.start + first];
    } else {
        // Those that equal the edge and lie before its rank are the quantile's too.
        equal = first - lower_bound(c.start, 0u, first, edge);
    }
    let to = alignment(max(magnitude_of(edge), magnitude_of(keys[c.start + end - 1u])));
    let each = aligned_finely(magnitude_of(edge), to);
    let upper = (each >> 16u) * equal;
    var sum = add64(vec2<u32>((each & 0xffffu) * equal, 0u), vec2<u32>(upper << 16u, upper >> 16u));
    for (var index = first; index < end; index++) {
        sum = add64(sum, vec2<u32>(aligned_finely(magnitude_of(keys[c.start + index]), to), 0u));
    }
    let magnitude = mean(sum, equal + end - first, to);
    return select(magnitude, magnitude | SIGN, edge < ZERO && magnitude != 0u);
}

// Whether the value with this key is a NaN or an infinity.
fn not_finite(key: u32) -> bool {
    return magnitude_of(key) >= INF;
}

// Makes the means of the part's quantiles, and leaves each bucket's edges in front of it.
fn cut(part: u32, thread: u32) {
    let jobs = (PART >> params.bucket_log2) << params.bits;
    // An invocation has 16 jobs at most: as many edges as elements, of 256 invocations.
    var edges: array<u32, 16>;
    for (var k = 0u; k < 16u; k++) {
        let job = thread + 256u * k;
        let j = job & ((1u << params.bits) - 1u);
        let start = (job >> params.bits) << params.bucket_log2;
        if job < jobs && part + start < extent() {
            let elements = min(extent() - part - start, 1u << params.bucket_log2);
            var made = NAN;
            if !not_finite(keys[start]) && !not_finite(keys[start + elements - 1u]) {
                let c = cuts_of(start, elements);
                made = mean_of(c, j);
                edges[k] = edge_of(c, j);
            }
            scalars[first_scalar() + (((part + start) >> params.bucket_log2) << params.bits) + j] = made;
        }
    }
    workgroupBarrier();
    for (var k = 0u; k < 16u; k++) {
        let job = thread + 256u * k;
        if job < jobs {
            let j = job & ((1u << params.bits) - 1u);
            keys[((job >> params.bits) << params.bucket_log2) + j] = edges[k];
        }
    }
    storageBarrier();
    workgroupBarrier();
}

// The quantile of an element, among the edges that begin at `start`.
fn code_of(start: u32, key: u32) -> u32 {
    var code = 0u;
    for (var step = (1u << params.bits) >> 1u; step > 0u; step = step >> 1u) {
        if keys[start + code + step] <= key {
            code = code + step;
        }
    }
    // Of several quantiles that begin with equal elements, those have the last but one.
    if code > 0u {
        if keys[start + code] == key && keys[start + code - 1u] == key {
            code = code - 1u;
        }
    }
    return code;
}

// Four pieces of `width` bits, lowest slot in the lowest bits; `done` bits of the codes stand in earlier pieces.
fn packed(c: vec4<u32>, done: u32, width: u32) -> u32 {
    let piece = (c >> vec4<u32>(done)) & vec4<u32>((1u << width) - 1u);
    let apart = piece << (vec4<u32>(0u, 1u, 2u, 3u) * width);
    return (apart.x | apart.y) | (apart.z | apart.w);
}

// Encodes a unit whose first element is `first`, and gives what its codes leave for pieces of 2 bits (the low
// half-word) and of 1 bit (the byte above).
fn encode_unit(part: u32, first: u32, lane: u32) -> u32 {
    let bits = params.bits;
    let bucket = first >> params.bucket_log2;
    let start = (bucket << params.bucket_log2) - part;
    let means = first_scalar() + (bucket << bits);
    let poisoned = scalars[means] == NAN;
    let at = first_code() + (first / UNIT) * 8u * bits + lane;
    var fours = 0u;
    var small = 0u;
    for (var half = 0u; half < 2u; half++) {
        let e = elements(first + half * 128u + lane);
        let here = exist(e) & vec4<bool>(!poisoned);
        let v = load_own(e, here);
        let k = keys_of(v);
        var c = vec4<u32>(0u);
        if here.x {
            c.x = code_of(start, k.x);
        }
        if here.y {
            c.y = code_of(start, k.y);
        }
        if here.z {
            c.z = code_of(start, k.z);
        }
        if here.w {
            c.w = code_of(start, k.w);
        }
        if bits == 8u {
            codes[at + half * 32u] = packed(c, 0u, 8u);
        } else {
            if (bits & 4u) != 0u {
                fours = fours | (packed(c, 0u, 4u) << (half * 16u));
            }
            if (bits & 2u) != 0u {
                small = small | (packed(c, bits & 4u, 2u) << (half * 8u));
            }
            if (bits & 1u) != 0u {
                small = small | (packed(c, bits & 6u, 1u) << (16u + half * 4u));
            }
        }
        if has(FLAG_FEEDBACK) {
            let m = vec4<u32>(means) + c;
            let rest = f_sub(v, vec4<u32>(scalars[m.x], scalars[m.y], scalars[m.z], scalars[m.w]));
            let o = e + vec4<u32>(first_element());
            if here.x {
                residual[o.x] = rest.x;
            }
            if here.y {
                residual[o.y] = rest.y;
            }
            if here.z {
                residual[o.z] = rest.z;
            }
            if here.w {
                residual[o.w] = rest.w;
            }
        }
    }
    if (bits & 4u) != 0u {
        codes[at] = fours;
    }
    return small;
}

// Writes the pieces of 2 bits and of 1 bit of the part's 16 units, from what their lanes left.
fn put_small_pieces(part: u32, thread: u32) {
    let bits = params.bits;
    if (bits & 2u) != 0u {
        let first = part + (thread >> 4u) * UNIT;
        let word = thread & 15u;
        let lane = (thread >> 4u) * 32u + word * 2u;
        if first < extent() {
            let at = first_code() + (first / UNIT) * 8u * bits + (bits & 4u) * 8u + word;
            codes[at] = (keys[lane] & 0xffffu) | (keys[lane + 1u] << 16u);
        }
    }
    if (bits & 1u) != 0u && thread < 128u {
        let first = part + (thread >> 3u) * UNIT;
        let word = thread & 7u;
        let lane = (thread >> 3u) * 32u + word * 4u;
        if first < extent() {
            let at = first_code() + (first / UNIT) * 8u * bits + (bits & 6u) * 8u + word;
            let low = ((keys[lane] >> 16u) & 0xffu) | ((keys[lane + 1u] >> 8u) & 0xff00u);
            let high = (keys[lane + 2u] & 0xff0000u) | ((keys[lane + 3u] << 8u) & 0xff000000u);
            codes[at] = low | high;
        }
    }
}

fn encode(group: u32, thread: u32) {
    if has(FLAG_GUARDED) {
        if status[0] != 0u {
            return;
        }
    }
    let lane = thread & 31u;
    let own = (thread >> 5u) * 2u;
    for (var half = 0u; half < 2u; half++) {
        let part = group * SPAN + half * PART;
        // Pieces of the part before may still be read.
        workgroupBarrier();
        for (var quarter = 0u; quarter < 4u; quarter++) {
            let local = own * UNIT + quarter * 128u + lane;
            let e = elements(part + local);
            let here = exist(e);
            let k = select(vec4<u32>(PAD), keys_of(load_own(e, here)), here);
            keys[local] = k.x;
            keys[local + 32u] = k.y;
            keys[local + 64u] = k.z;
            keys[local + 96u] = k.w;
        }
        workgroupBarrier();
        sort(thread);
        cut(part, thread);
        var small = vec2<u32>(0u);
        if part + own * UNIT < extent() {
            small.x = encode_unit(part, part + own * UNIT, lane);
        }
        if part + (own + 1u) * UNIT < extent() {
            small.y = encode_unit(part, part + (own + 1u) * UNIT, lane);
        }
        // The edges are no longer read, and make room.
        workgroupBarrier();
        keys[own * 32u + lane] = small.x;
        keys[(own + 1u) * 32u + lane] = small.y;
        workgroupBarrier();
        put_small_pieces(part, thread);
    }
}
