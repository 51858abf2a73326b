// QSGD's statistics of the buckets of a span.

// The largest magnitude of each bucket, as bits.
var<workgroup> largest: array<atomic<u32>, 256>;
// The sum of aligned squares of each bucket: 16 bits, 16 bits, and the rest, each with room for its carries.
var<workgroup> sum_low: array<atomic<u32>, 256>;
var<workgroup> sum_middle: array<atomic<u32>, 256>;
var<workgroup> sum_high: array<atomic<u32>, 256>;

// Sums of up to 32 squares of 24 bits, cut into two halves of 12: high * high, high * low, low * low.
fn squares(m: vec4<u32>) -> Squares {
    let high = m >> vec4<u32>(12u);
    let low = m & vec4<u32>(0xfffu);
    return Squares(high * high, high * low, low * low);
}

struct Squares {
    high: vec4<u32>,
    cross: vec4<u32>,
    low: vec4<u32>,
}

fn total(v: vec4<u32>) -> u32 {
    return (v.x + v.y) + (v.z + v.w);
}

// Adds such sums to a bucket's.
fn add_squares(bucket: u32, high: u32, cross: u32, low: u32) {
    var sum = add64(vec2<u32>(low, 0u), vec2<u32>(cross << 13u, cross >> 19u));
    sum = add64(sum, vec2<u32>(high << 24u, high >> 8u));
    atomicAdd(&sum_low[bucket], sum.x & 0xffffu);
    atomicAdd(&sum_middle[bucket], sum.x >> 16u);
    atomicAdd(&sum_high[bucket], sum.y);
}

fn sum_of(bucket: u32) -> vec2<u32> {
    let middle = atomicLoad(&sum_middle[bucket]);
    let low = vec2<u32>(atomicLoad(&sum_low[bucket]), atomicLoad(&sum_high[bucket]));
    return add64(low, vec2<u32>(middle << 16u, middle >> 16u));
}

// Leaves the statistics of the span's buckets, of 2^shift rows of 32 elements, in workgroup memory.
fn measure(span: u32, thread: u32, shift: u32) {
    atomicStore(&largest[thread], 0u);
    atomicStore(&sum_low[thread], 0u);
    atomicStore(&sum_middle[thread], 0u);
    atomicStore(&sum_high[thread], 0u);
    workgroupBarrier();
    let first_row = (thread >> 5u) * 32u;
    let first = span + first_row * 32u + (thread & 31u);
    let last_of_bucket = (1u << shift) - 1u;
    var most = 0u;
    for (var q = 0u; q < 8u; q++) {
        let e = elements(first + q * 128u);
        let m = select(vec4<u32>(0u), load(e) & vec4<u32>(MAGNITUDE), exist(e));
        let row = first_row + q * 4u;
        let bucket = row >> shift;
        if shift == 0u {
            atomicMax(&largest[bucket], m.x);
            atomicMax(&largest[bucket + 1u], m.y);
            atomicMax(&largest[bucket + 2u], m.z);
            atomicMax(&largest[bucket + 3u], m.w);
        } else if shift == 1u {
            atomicMax(&largest[bucket], max(m.x, m.y));
            atomicMax(&largest[bucket + 1u], max(m.z, m.w));
        } else {
            most = max(most, max(max(m.x, m.y), max(m.z, m.w)));
            if q == 7u || ((row + 3u) & last_of_bucket) == last_of_bucket {
                atomicMax(&largest[bucket], most);
                most = 0u;
            }
        }
    }
    workgroupBarrier();
    if !has(FLAG_L2) {
        return;
    }
    var high = 0u;
    var cross = 0u;
    var low = 0u;
    for (var q = 0u; q < 8u; q++) {
        let e = elements(first + q * 128u);
        let m = select(vec4<u32>(0u), load(e) & vec4<u32>(MAGNITUDE), exist(e));
        let row = first_row + q * 4u;
        let bucket = row >> shift;
        let to = vec4<u32>(
            alignment(atomicLoad(&largest[bucket])),
            alignment(atomicLoad(&largest[(row + 1u) >> shift])),
            alignment(atomicLoad(&largest[(row + 2u) >> shift])),
            alignment(atomicLoad(&largest[(row + 3u) >> shift])),
        );
        let s = squares(aligned(m, to));
        if shift == 0u {
            add_squares(bucket, s.high.x, s.cross.x, s.low.x);
            add_squares(bucket + 1u, s.high.y, s.cross.y, s.low.y);
            add_squares(bucket + 2u, s.high.z, s.cross.z, s.low.z);
            add_squares(bucket + 3u, s.high.w, s.cross.w, s.low.w);
        } else if shift == 1u {
            add_squares(bucket, s.high.x + s.high.y, s.cross.x + s.cross.y, s.low.x + s.low.y);
            add_squares(bucket + 1u, s.high.z + s.high.w, s.cross.z + s.cross.w, s.low.z + s.low.w);
        } else {
            high = high + total(s.high);
            cross = cross + total(s.cross);
            low = low + total(s.low);
            if q == 7u || ((row + 3u) & last_of_bucket) == last_of_bucket {
                add_squares(bucket, high, cross, low);
                high = 0u;
                cross = 0u;
                low = 0u;
            }
        }
    }
    workgroupBarrier();
}
