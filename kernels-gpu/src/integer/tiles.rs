//! The places of tiles' elements in a matrix.

/// The reciprocal of a divisor from 1 to 2^31: 2^(31 + l) / divisor, rounded up, and l, the base-2 logarithm of the
/// divisor, rounded up.
pub const fn reciprocal(divisor: u32) -> [u32; 2] {
    let log2 = divisor.next_power_of_two().trailing_zeros();
    [(1u64 << (31 + log2)).div_ceil(divisor as u64) as u32, log2]
}

/// The quotient of a number below 2^31 by a divisor, of which this is the reciprocal, rounded down.
///
/// With m d = 2^(31 + l) + r and r < d <= 2^l, the product n m / 2^(31 + l) passes n / d by n r / (d 2^(31 + l)). That
/// is below 1 / d, and reaches no further whole number.
#[inline(always)]
pub fn quotient(n: u32, [reciprocal, log2]: [u32; 2]) -> u32 {
    ((((2 * n) as u64 * reciprocal as u64) >> 32) as u32) >> log2
}

/// The distance of element `at` from the first one, of square tiles of which `beside` are in a row. Tiles of a row come
/// one after another, and then the next row; a tile's elements row by row. `by` is the reciprocal of `beside`.
#[inline(always)]
pub fn place(at: u32, side_log2: u32, beside: u32, by: [u32; 2], stride: u32) -> u32 {
    let mask = (1 << side_log2) - 1;
    let tile = at >> (2 * side_log2);
    let down = quotient(tile, by);
    let (row, column) = ((down << side_log2) + (at >> side_log2 & mask), (tile - down * beside) << side_log2);
    row * stride + column + (at & mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_are_exact() {
        let powers = (0..=31).map(|log2| 1u32 << log2);
        let divisors = powers.flat_map(|power| [power - 1, power, power + 1]).chain(2..200).chain([641, 6_700_417]);
        for divisor in divisors.filter(|divisor| (1..=1 << 31).contains(divisor)) {
            let by = reciprocal(divisor);
            let around = [1u64, 2, 3, u64::from(divisor), (1 << 31) / u64::from(divisor)];
            let numbers =
                around.iter().flat_map(|times| [-1, 0, 1].map(|more| (times * u64::from(divisor)) as i64 + more));
            for n in numbers.chain([0, (1 << 31) - 1]).filter(|n| (0..1 << 31).contains(n)) {
                assert_eq!(quotient(n as u32, by), n as u32 / divisor, "{n} / {divisor}");
            }
        }
    }

    #[test]
    fn places_are_those_of_rows_and_columns() {
        for (side_log2, beside, more) in [(0, 1, 4), (0, 7, 2), (1, 3, 0), (2, 5, 3), (6, 2, 9)] {
            let (side, by) = (1 << side_log2, reciprocal(beside));
            let stride = beside * side + more;
            let mut at = 0;
            for (down, across) in (0..3).flat_map(|down| (0..beside).map(move |across| (down, across))) {
                for (row, column) in (0..side).flat_map(|row| (0..side).map(move |column| (row, column))) {
                    let expected = (down * side + row) * stride + across * side + column;
                    assert_eq!(place(at, side_log2, beside, by, stride), expected);
                    at += 1;
                }
            }
        }
    }
}
