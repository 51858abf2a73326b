// The segment that a tile belongs to: the last one whose first tile is not behind it.
fn segment_of(tile: u32) -> u32 {
    var first = 0u;
    var behind = params.segments;
    while behind - first > 1u {
        let middle = (first + behind) / 2u;
        if word(middle * SEGMENT_WORDS + FIRST_TILE) <= tile {
            first = middle;
        } else {
            behind = middle;
        }
    }
    return first;
}

fn table(index: u32, at: u32) -> u32 {
    return word(index * SEGMENT_WORDS + at);
}

fn state(index: u32, at: u32) -> u32 {
    return word(params.states + index * STATE_WORDS + at);
}
