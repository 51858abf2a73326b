// Measures a span that is all one bucket, and leaves its partial statistic.
fn leave(span: u32, thread: u32, to: u32) {
    measure(span, thread, ONE_BUCKET);
    if thread == 0u {
        let most = maxima_of(0u);
        for (var w = 0u; w < MAXIMA; w++) {
            put_partial(to + w, most[w]);
        }
        for (var k = 0u; k < SUMS; k++) {
            let sum = sum_of(k, 0u);
            put_partial(to + MAXIMA + 2u * k, sum.x);
            put_partial(to + MAXIMA + 2u * k + 1u, sum.y);
        }
    }
}
