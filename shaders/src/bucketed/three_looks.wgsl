// Measures a span's buckets by what two looks tell, and then adds up products that need an encoder, as sum 1. The codec
// brings `products(encoders, value)`: those of four values, as upper * 2^12 + lower, both below 2^27, since a lane adds
// up 32.

fn fold_products(bucket: u32, upper: u32, lower: u32) {
    fold_sum(1u, bucket, vec3<u32>(add64(vec2<u32>(lower, 0u), vec2<u32>(upper << 12u, upper >> 20u)), 0u));
}

// Rows and lanes are as in `measure`.
fn look(span: u32, thread: u32, shift: u32) {
    measure(span, thread, shift);
    if thread < (256u >> shift) {
        encoders[thread] = encoder(statistic_of(thread, factor()));
    }
    workgroupBarrier();
    let first_row = (thread >> 5u) * 32u;
    let first = span + first_row * 32u + (thread & 31u);
    let last_of_bucket = (1u << shift) - 1u;
    var upper = 0u;
    var lower = 0u;
    for (var q = 0u; q < 8u; q++) {
        let e = elements(first + q * 128u);
        let here = exist(e);
        let row = first_row + q * 4u;
        let found = products(encoders_of(row, shift), load(e));
        let u = select(vec4<u32>(0u), found.upper, here);
        let l = select(vec4<u32>(0u), found.lower, here);
        if shift == 0u {
            fold_products(row, u.x, l.x);
            fold_products(row + 1u, u.y, l.y);
            fold_products(row + 2u, u.z, l.z);
            fold_products(row + 3u, u.w, l.w);
        } else if shift == 1u {
            fold_products(row >> 1u, u.x + u.y, l.x + l.y);
            fold_products((row >> 1u) + 1u, u.z + u.w, l.z + l.w);
        } else {
            upper += (u.x + u.y) + (u.z + u.w);
            lower += (l.x + l.y) + (l.z + l.w);
            if q == 7u || ((row + 3u) & last_of_bucket) == last_of_bucket {
                fold_products(row >> shift, upper, lower);
                upper = 0u;
                lower = 0u;
            }
        }
    }
    workgroupBarrier();
}
