// Words of a unit, as the table has them; none behind the last unit.
fn words_of(unit: u32) -> u32 {
    if unit >= params.units {
        return 0u;
    }
    return ((values[unit >> 2u] >> ((unit & 3u) * 8u)) & 255u) + 1u;
}
