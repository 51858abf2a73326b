// Whether the residual becomes what is formed: not where a look at all elements has found one that is not finite.
fn writes() -> bool {
    return has(FLAG_FORM) && !(has(FLAG_GUARDED) && atomicLoad(&status[0]) != 0u);
}

// Gradient + residual. The element at `at` of what is bound, of the tile's row `row` and column `column` of the matrix, with
// `less` of L R^T, as bits; a second one of what stays behind.
fn form(at: u32, t: Tile, less: f32) -> vec2<u32> {
    if !has(FLAG_FORM) {
        return vec2<u32>(residual[at]);
    }
    let raw = gradient(at);
    var old = 0u;
    if t.feedback {
        old = residual[at];
        if t.rest {
            old = bitcast<u32>(bitcast<f32>(old) - less);
        }
        if !is_finite(old) {
            old = 0u;
        }
    }
    var sum = NAN;
    if is_finite(raw) {
        sum = bitcast<u32>(bitcast<f32>(raw) + bitcast<f32>(old));
    }
    return vec2<u32>(sum, select(old, sum, is_finite(sum)));
}
