// Measures a span's buckets by what one look or two tell.
fn look(span: u32, thread: u32, shift: u32) {
    measure(span, thread, shift);
}
