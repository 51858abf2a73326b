const DECODE_SPAN_LOG2: u32 = 11u;

// A span's buckets have up to 64 rows of 32 elements.
const DECODERS: u32 = 64u;

// Codes of up to 4 bits are looked up: their values are fewer than the elements that have them.
const TABLE_BITS: u32 = 4u;

// The weighted value of each code of each bucket of a span, a bucket's behind each other, where there is such a table.
var<workgroup> table: array<u32, 1024u>;

// Makes the decoder of a bucket from its scalars on the wire.
fn prepare(bucket: u32, at: u32) {
    var sent = vec2<u32>(scalars[at], 0u);
    if SCALARS > 1u {
        sent.y = scalars[at + 1u];
    }
    decoders[bucket] = decoder(sent);
}

// Writes a thread's four words of the table, of a span of so many buckets.
fn tabulate(thread: u32, buckets: u32) {
    let bits = params.bits;
    let first = thread * 4u;
    if first < (buckets << bits) {
        let at = vec4<u32>(first) + vec4<u32>(0u, 1u, 2u, 3u);
        let b = min(at >> vec4<u32>(bits), vec4<u32>(DECODERS - 1u));
        let d = columns(decoders[b.x], decoders[b.y], decoders[b.z], decoders[b.w]);
        let v = weighted(value(d, at & vec4<u32>((1u << bits) - 1u)));
        table[first] = v.x;
        table[first + 1u] = v.y;
        table[first + 2u] = v.z;
        table[first + 3u] = v.w;
    }
}

// The weighted values of the codes of four rows, of which the first is a multiple of 4.
fn values_of(row: u32, shift: u32, c: vec4<u32>) -> vec4<u32> {
    if params.bits <= TABLE_BITS {
        let bucket = (vec4<u32>(row) + vec4<u32>(0u, 1u, 2u, 3u)) >> vec4<u32>(shift);
        let at = (bucket << vec4<u32>(params.bits)) + c;
        return vec4<u32>(table[at.x], table[at.y], table[at.z], table[at.w]);
    }
    return weighted(value(decoders_of(row, shift), c));
}

fn decode(group: u32, thread: u32) {
    let span = group * DECODE_SPAN;
    let bucket_log2 = min(params.bucket_log2, DECODE_SPAN_LOG2);
    let shift = bucket_log2 - 5u;
    let lane = thread & 31u;
    let row = (thread >> 5u) * 8u;
    let unit_first = span + (thread >> 5u) * UNIT;
    let here = unit_first < extent();
    let first = unit_first + lane;
    var low = vec4<u32>(0u);
    var high = vec4<u32>(0u);
    // Lanes beyond the launch wait at the barriers with the rest.
    if here {
        low = before(first);
        high = before(first + 128u);
    }
    for (var payload = 0u; payload < params.payloads; payload++) {
        // The payload before this one may still be read.
        workgroupBarrier();
        let bucket_first = span + (thread << bucket_log2);
        if thread < (DECODE_SPAN >> bucket_log2) && bucket_first < extent() {
            let index = bucket_first >> params.bucket_log2;
            prepare(thread, first_scalar() + payload * params.scalar_stride + index * SCALARS);
        }
        workgroupBarrier();
        if params.bits <= TABLE_BITS {
            tabulate(thread, DECODE_SPAN >> bucket_log2);
            workgroupBarrier();
        }
        if here {
            let unit = first_code() + payload * params.code_stride + (unit_first / UNIT) * 8u * params.bits;
            low = merge(low, values_of(row, shift, unpack(unit, lane, 0u)));
            high = merge(high, values_of(row + 4u, shift, unpack(unit, lane, 1u)));
        }
    }
    if here {
        put(first, low);
        put(first + 128u, high);
    }
}
