// Entries of units of places and levels: `arith::places` has the formulas.

// Units of 256 codes in a unit, and those of a team.
const PARTS: u32 = 64u;
const OWN: u32 = 8u;
// Codes of a unit.
const CODES: u32 = 16384u;

// The codes of a unit whose level is not zero.
fn count_of(entry: u32) -> u32 {
    return entry & 0xffffu;
}

// Low bits of a place, of a count of at least 1.
fn low_bits(entry: u32) -> u32 {
    return countLeadingZeros(count_of(entry) - 1u) - 18u;
}

fn mark_bits(entry: u32) -> u32 {
    if count_of(entry) == 0u {
        return 0u;
    }
    return count_of(entry) + (CODES >> low_bits(entry));
}

// Where the record of a code begins, in bits.
fn record_at(entry: u32, index: u32) -> u32 {
    return mark_bits(entry) + index * (low_bits(entry) + (entry >> 16u) + 1u);
}

fn words_of(entry: u32) -> u32 {
    if count_of(entry) == 0u {
        return 0u;
    }
    return (record_at(entry, count_of(entry)) + 31u) >> 5u;
}
