// The tile of a workgroup, and gradient + residual of its elements.

struct Tile {
    index: u32,
    rows: u32,
    columns: u32,
    // Where it begins in its matrix.
    row: u32,
    column: u32,
    // Where the matrix's factors begin, the one that is multiplied by, and L and R.
    factor: u32,
    left: u32,
    right: u32,
    row_stride: u32,
    column_stride: u32,
    // Where its first element is in what is bound.
    at: u32,
    // Of the gradient.
    first: u32,
    // Where it is in the list, and whether it was formed from an element that is not finite, by a pass of its own.
    list: u32,
    odd: bool,
    // Whether there is a residual to add, and whether L R^T is to be taken off it.
    feedback: bool,
    rest: bool,
}

fn tile_of(group: u32) -> Tile {
    let at = params.tiles + (params.first_tile + group) * TILE_WORDS;
    var t: Tile;
    t.index = word(at);
    t.row = word(at + 1u);
    t.column = word(at + 2u);
    t.first = table(t.index, FIRST);
    t.rows = table(t.index, ROWS);
    t.columns = table(t.index, COLUMNS);
    let left = table(t.index, PADDED);
    let right = table(t.index, PADDED + 1u);
    t.left = params.left + left;
    t.right = params.right + right;
    t.factor = params.factor + select(left, right, has(FLAG_RIGHT));
    t.row_stride = padded(t.rows);
    t.column_stride = padded(t.columns);
    t.at = t.first - params.first + t.row * t.columns + t.column;
    t.list = at;
    t.odd = !has(FLAG_FORM) && word(at + TILE_ODD) != 0u;
    let sent = mark(t.index, MARK_SENT);
    t.feedback = has(FLAG_FORM) && has(FLAG_FEEDBACK) && sent != DROPPED;
    t.rest = t.feedback && sent == 1u;
    return t;
}

// Minus zero, what right factors are padded with: times a left one's zero it changes no number that it is added to.
fn no_right() -> f32 {
    return bitcast<f32>(SIGN);
}

// Four columns of a factor at one entry, from column `k` on; `pad` where there is none.
fn four(start: u32, stride: u32, k: u32, entry: u32, pad: f32) -> vec4<f32> {
    var some = vec4<f32>(pad);
    if entry >= stride {
        return some;
    }
    let at = start + k * stride + entry;
    if k < params.rank {
        some.x = number(at);
    }
    if k + 1u < params.rank {
        some.y = number(at + stride);
    }
    if k + 2u < params.rank {
        some.z = number(at + 2u * stride);
    }
    if k + 3u < params.rank {
        some.w = number(at + 3u * stride);
    }
    return some;
}

// Four columns' terms of an element of L R^T, added in order.
fn terms(sum: f32, left: vec4<f32>, right: vec4<f32>) -> f32 {
    return (((sum + left.x * right.x) + left.y * right.y) + left.z * right.z) + left.w * right.w;
}

// An element of L R^T.
fn approximation(left: u32, row_stride: u32, right: u32, column_stride: u32, row: u32, column: u32) -> f32 {
    var sum = no_right();
    for (var k = 0u; k < params.rank; k += 4u) {
        let rights = four(right, column_stride, k, column, no_right());
        sum = terms(sum, four(left, row_stride, k, row, 0.0), rights);
    }
    return sum;
}
