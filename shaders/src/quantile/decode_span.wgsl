// Quantile buckets: a code names one of its bucket's means, which lie on the wire. A mean that is not finite is NaN.
// Workgroup memory: none.

fn means_of(at: u32, c: vec4<u32>) -> vec4<u32> {
    let m = vec4<u32>(at) + c;
    let means = vec4<u32>(scalars[m.x], scalars[m.y], scalars[m.z], scalars[m.w]);
    return select(means, vec4<u32>(NAN), (means & vec4<u32>(MAGNITUDE)) >= vec4<u32>(INF));
}

fn decode(group: u32, thread: u32) {
    let lane = thread & 31u;
    let unit_first = group * DECODE_SPAN + (thread >> 5u) * UNIT;
    if unit_first >= extent() {
        return;
    }
    let first = unit_first + lane;
    var low = before(first);
    var high = before(first + 128u);
    for (var payload = 0u; payload < params.payloads; payload++) {
        let unit = first_code() + payload * params.code_stride + (unit_first / UNIT) * 8u * params.bits;
        let bucket = (unit_first >> params.bucket_log2) << params.bits;
        let means = first_scalar() + payload * params.scalar_stride + bucket;
        low = merge(low, weighted(means_of(means, unpack(unit, lane, 0u))));
        high = merge(high, weighted(means_of(means, unpack(unit, lane, 1u))));
    }
    put(first, low);
    put(first + 128u, high);
}
