// Over what the filter left: a team of 32 lanes takes 8 tiles, one after another.

const TILES_PER_TEAM: u32 = 8u;

// What a team goes over: candidates, stored from `first` on in the array that begins at word `array`, or elements that are
// bound, from `first` on, of which the first has place `place` in its tile.
struct Visit {
    in_gradient: bool,
    array: u32,
    first: u32,
    count: u32,
    place: u32,
}

fn candidates(tile: u32, of_band: bool) -> Visit {
    let info = params.info + 4u * tile;
    let array = select(params.values, params.band, of_band);
    return Visit(false, array, word(info), word(info + select(1u, 2u, of_band)), 0u);
}

fn gradient(index: u32, tile: u32) -> Visit {
    let extent = extent_of(table(index, START), table(index, ELEMENTS), tile - table(index, FIRST_TILE));
    return Visit(true, 0u, extent.y - params.first, extent.z - extent.y, extent.y - extent.x);
}

fn visited(visit: Visit, at: u32) -> u32 {
    if visit.in_gradient {
        return settled(visit.first + at);
    }
    return word(visit.array + visit.first + at);
}

// The tile of a round of this team; `here` is whether there is one.
fn tile_of(group: u32, thread: u32, round: u32) -> u32 {
    return (group * 8u + (thread >> 5u)) * TILES_PER_TEAM + round;
}

fn floor_of(index: u32) -> u32 {
    return ~state(index, FLOOR);
}

fn sure_of(index: u32) -> u32 {
    return max(state(index, SURE), floor_of(index));
}
