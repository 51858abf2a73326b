// The extremes of the buckets of a span.

// The largest key of each bucket, and the largest complement of a key: the smallest key's.
var<workgroup> high_key: array<atomic<u32>, 256>;
var<workgroup> low_key: array<atomic<u32>, 256>;

fn extend(bucket: u32, low: u32, high: u32) {
    atomicMax(&low_key[bucket], ~low);
    atomicMax(&high_key[bucket], high);
}

// Keys of the extremes of a bucket.
fn extremes_of(bucket: u32) -> vec2<u32> {
    return vec2<u32>(~atomicLoad(&low_key[bucket]), atomicLoad(&high_key[bucket]));
}

// Leaves the extremes of the span's buckets, of 2^shift rows of 32 elements, in workgroup memory.
fn measure(span: u32, thread: u32, shift: u32) {
    atomicStore(&high_key[thread], 0u);
    atomicStore(&low_key[thread], 0u);
    workgroupBarrier();
    let first_row = (thread >> 5u) * 32u;
    let first = span + first_row * 32u + (thread & 31u);
    let last_of_bucket = (1u << shift) - 1u;
    var low = 0xffffffffu;
    var high = 0u;
    for (var q = 0u; q < 8u; q++) {
        // Beyond the last element is the last element once more: in its own bucket that changes nothing, and the buckets
        // behind it have no element.
        let k = to_key(load(elements(first + q * 128u)));
        let row = first_row + q * 4u;
        let bucket = row >> shift;
        if shift == 0u {
            extend(bucket, k.x, k.x);
            extend(bucket + 1u, k.y, k.y);
            extend(bucket + 2u, k.z, k.z);
            extend(bucket + 3u, k.w, k.w);
        } else if shift == 1u {
            extend(bucket, min(k.x, k.y), max(k.x, k.y));
            extend(bucket + 1u, min(k.z, k.w), max(k.z, k.w));
        } else {
            low = min(low, min(min(k.x, k.y), min(k.z, k.w)));
            high = max(high, max(max(k.x, k.y), max(k.z, k.w)));
            if q == 7u || ((row + 3u) & last_of_bucket) == last_of_bucket {
                extend(bucket, low, high);
                low = 0xffffffffu;
                high = 0u;
            }
        }
    }
    workgroupBarrier();
}
