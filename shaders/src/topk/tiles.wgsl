// Over what the filter left: a team of 32 lanes takes up to 8 tiles, one after another.

// Tiles of one of so many teams: 1, 2, 4 or 8.
fn share(tiles: u32, teams: u32) -> u32 {
    return 1u << (u32(tiles > teams) + u32(tiles > 2u * teams) + u32(tiles > 4u * teams));
}

// Of so many tiles, those of a team that looks through them, and of one that writes their entries.
fn tiles_per_team(tiles: u32) -> u32 {
    return share(tiles, 2048u);
}

fn tiles_to_emit(tiles: u32) -> u32 {
    return share(tiles, 8192u);
}

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

fn floor_of(index: u32) -> u32 {
    return ~state(index, FLOOR);
}

fn sure_of(index: u32) -> u32 {
    return max(state(index, SURE), floor_of(index));
}
