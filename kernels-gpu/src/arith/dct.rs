//! The discrete cosine transform of blocks, made orthonormal: y_k = s_k sum_j x_j cos(k (2j + 1) pi / (2n)) of a line
//! of n elements, with s_0 = sqrt(1 / n) and s_k = sqrt(2 / n), and of a block along its rows and its columns.
//!
//! Source: Ahmed, Natarajan and Rao, "Discrete cosine transform", IEEE Transactions on Computers C-23, 1974; before a
//! selection of gradients: Peng, Quesnelle and Kingma, "DeMo: Decoupled momentum optimization", 2024.
//! The recursion has orthogonal factors alone, as that of Plonka and Tasche, "Fast and numerically stable algorithms
//! for discrete cosine transforms", Linear Algebra and its Applications 394, 2005: each [`second`](second_64) of length
//! n is one of length n / 2, of sums, and one of the fourth kind, of differences; each of the fourth kind is n / 2
//! rotations and two of the second kind. A line of 64 takes 249 multiplications and 456 additions.
//!
//! Square roots are left to one multiplication of an element by [`scale_of`] after both directions, which back stands
//! before both. Each sum, difference and product is one rounded operation.

use core::f32::consts::FRAC_1_SQRT_2;

use super::rotation::{ROW_LOG2, block_log2, scale};

/// Base-2 logarithm of the longest line: a block has as many rows, and as many elements in each.
pub const MOST_LOG2: u32 = 6;

/// What a line consists of: numbers, or vectors of numbers of lines beside each other.
pub trait Value: Copy {
    /// The sum, rounded.
    fn plus(self, other: Self) -> Self;
    /// The difference, rounded.
    fn minus(self, other: Self) -> Self;
    /// The product with a constant, rounded.
    fn times(self, factor: f32) -> Self;
}

impl Value for f32 {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self + other
    }

    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        self - other
    }

    #[inline(always)]
    fn times(self, factor: f32) -> Self {
        self * factor
    }
}

impl<const N: usize> Value for [f32; N] {
    #[inline(always)]
    fn plus(mut self, other: Self) -> Self {
        for i in 0..N {
            self[i] += other[i];
        }
        self
    }

    #[inline(always)]
    fn minus(mut self, other: Self) -> Self {
        for i in 0..N {
            self[i] -= other[i];
        }
        self
    }

    #[inline(always)]
    fn times(mut self, factor: f32) -> Self {
        for value in &mut self {
            *value *= factor;
        }
        self
    }
}

/// The base-2 logarithm of the block that has an element, of `n` elements in all: the largest block that still fits.
///
/// What whole blocks leave of a tensor falls into blocks of the powers of two that add up to it, the largest first,
/// down to one element, which is its own transform. So nothing is padded.
#[inline(always)]
pub fn block_of(element: u32, n: u32, most_log2: u32) -> u32 {
    block_log2(element, n, most_log2 + ROW_LOG2) - ROW_LOG2
}

/// The base-2 logarithm of the elements of a row of a block: as many as it has rows, or twice as many.
#[inline(always)]
pub fn row_log2(block_log2: u32) -> u32 {
    block_log2.div_ceil(2)
}

/// What an element of a block is multiplied by, by its place there: the root of 1 / n or 2 / n of each direction.
#[inline(always)]
pub fn scale_of(place: u32, block_log2: u32) -> f32 {
    let log2 = row_log2(block_log2);
    let not_first = (place >> log2 != 0) as u32 + (place & ((1 << log2) - 1) != 0) as u32;
    scale(block_log2 - not_first)
}

/// Cosines and sines of (2j + 1) pi / (4n) for n = 32.
pub const TURNS_32: [[f32; 2]; 16] = [
    [0.9996988, 0.024541229],
    [0.99729043, 0.07356457],
    [0.99247956, 0.12241068],
    [0.98527765, 0.17096189],
    [0.9757021, 0.21910124],
    [0.96377605, 0.26671275],
    [0.94952816, 0.31368175],
    [0.9329928, 0.35989505],
    [0.9142098, 0.4052413],
    [0.8932243, 0.44961134],
    [0.87008697, 0.4928982],
    [0.8448536, 0.53499764],
    [0.8175848, 0.57580817],
    [0.7883464, 0.6152316],
    [0.7572088, 0.65317285],
    [0.7242471, 0.68954057],
];

/// Cosines and sines of (2j + 1) pi / (4n) for n = 16.
pub const TURNS_16: [[f32; 2]; 8] = [
    [0.99879545, 0.049067676],
    [0.9891765, 0.14673047],
    [0.97003126, 0.24298018],
    [0.94154406, 0.33688986],
    [0.9039893, 0.42755508],
    [0.8577286, 0.51410276],
    [0.8032075, 0.5956993],
    [0.7409511, 0.671559],
];

/// Cosines and sines of (2j + 1) pi / (4n) for n = 8.
pub const TURNS_8: [[f32; 2]; 4] =
    [[0.9951847, 0.09801714], [0.95694035, 0.29028466], [0.8819213, 0.47139674], [0.77301043, 0.6343933]];

/// Cosines and sines of (2j + 1) pi / (4n) for n = 4.
pub const TURNS_4: [[f32; 2]; 2] = [[0.98078525, 0.19509032], [0.8314696, 0.55557024]];

/// Cosines and sines of (2j + 1) pi / (4n) for n = 2.
pub const TURNS_2: [[f32; 2]; 1] = [[0.9238795, 0.38268343]];

/// A line of one is its own transform.
#[inline(always)]
fn second_1<V: Value>(x: [V; 1]) -> [V; 1] {
    x
}

/// As [`second_1`].
#[inline(always)]
fn back_1<V: Value>(y: [V; 1]) -> [V; 1] {
    y
}

/// x cos(pi / 4).
#[inline(always)]
fn fourth_1<V: Value>(x: [V; 1]) -> [V; 1] {
    [x[0].times(FRAC_1_SQRT_2)]
}

/// A rotation of the fourth kind, the `j`-th.
#[inline(always)]
fn turned<V: Value>(x: V, other: V, [cos, sin]: [f32; 2], j: usize) -> [V; 2] {
    let (a, b) = (x.times(sin), other.times(cos));
    [x.times(cos).plus(other.times(sin)), if j & 1 == 0 { a.minus(b) } else { b.minus(a) }]
}

/// The transform of a line of the length twice another's, back, and that of the fourth kind.
macro_rules! of_length {
    ($n:literal, $half:literal, $second:ident, $back:ident, $second_half:ident, $back_half:ident, $fourth_half:ident) => {
        /// sum_j x_j cos(k (2j + 1) pi / (2n)): without the roots.
        #[inline(always)]
        pub fn $second<V: Value>(x: [V; $n]) -> [V; $n] {
            let (mut sums, mut differences) = ([x[0]; $half], [x[0]; $half]);
            for j in 0..$half {
                sums[j] = x[j].plus(x[$n - 1 - j]);
                differences[j] = x[j].minus(x[$n - 1 - j]);
            }
            let (even, odd) = ($second_half(sums), $fourth_half(differences));
            let mut y = x;
            for k in 0..$half {
                y[2 * k] = even[k];
                y[2 * k + 1] = odd[k];
            }
            y
        }

        /// sum_k y_k cos(k (2j + 1) pi / (2n)): without the roots.
        #[inline(always)]
        pub fn $back<V: Value>(y: [V; $n]) -> [V; $n] {
            let (mut even, mut odd) = ([y[0]; $half], [y[0]; $half]);
            for k in 0..$half {
                even[k] = y[2 * k];
                odd[k] = y[2 * k + 1];
            }
            let (sums, differences) = ($back_half(even), $fourth_half(odd));
            let mut x = y;
            for j in 0..$half {
                x[j] = sums[j].plus(differences[j]);
                x[$n - 1 - j] = sums[j].minus(differences[j]);
            }
            x
        }
    };
    ($n:literal, $half:literal, $second:ident, $back:ident, $second_half:ident, $back_half:ident, $fourth_half:ident,
     $fourth:ident, $turns:ident) => {
        of_length!($n, $half, $second, $back, $second_half, $back_half, $fourth_half);

        /// sum_j x_j cos((2k + 1) (2j + 1) pi / (4n)), which is its own way back: without the roots.
        #[inline(always)]
        pub fn $fourth<V: Value>(x: [V; $n]) -> [V; $n] {
            let (mut along, mut across) = ([x[0]; $half], [x[0]; $half]);
            for j in 0..$half {
                [along[j], across[j]] = turned(x[j], x[$n - 1 - j], $turns[j], j);
            }
            let (a, b) = ($second_half(along), $second_half(across));
            let mut y = x;
            y[0] = a[0];
            for m in 0..$half {
                if m > 0 {
                    y[2 * m - 1] = a[m].plus(b[$half - m]);
                    y[2 * m] = a[m].minus(b[$half - m]);
                }
            }
            y[$n - 1] = b[0];
            y
        }
    };
}

of_length!(2, 1, second_2, back_2, second_1, back_1, fourth_1, fourth_2, TURNS_2);
of_length!(4, 2, second_4, back_4, second_2, back_2, fourth_2, fourth_4, TURNS_4);
of_length!(8, 4, second_8, back_8, second_4, back_4, fourth_4, fourth_8, TURNS_8);
of_length!(16, 8, second_16, back_16, second_8, back_8, fourth_8, fourth_16, TURNS_16);
of_length!(32, 16, second_32, back_32, second_16, back_16, fourth_16, fourth_32, TURNS_32);
of_length!(64, 32, second_64, back_64, second_32, back_32, fourth_32);

/// Two levels of [`second_64`] on the way down: what elements j, 31 - j, 32 + j and 63 - j leave to its quarters, lines
/// of 16 elements, of which a [`second_16`], a [`fourth_16`] and two more [`second_16`] are taken. They are elements j.
#[inline(always)]
pub fn split_64<V: Value>(x: [V; 4], j: usize) -> [V; 4] {
    let (sum, other_sum) = (x[0].plus(x[3]), x[1].plus(x[2]));
    let [along, across] = turned(x[0].minus(x[3]), x[1].minus(x[2]), TURNS_32[j], j);
    [sum.plus(other_sum), sum.minus(other_sum), along, across]
}

/// The same of [`back_64`], whose first quarter is a [`back_16`] of elements 4j, and the second a [`fourth_16`] of
/// elements 4j + 2: what elements 2j + 1 and 63 - 2j leave to the other two.
#[inline(always)]
pub fn split_back_64<V: Value>(y: [V; 2], j: usize) -> [V; 2] {
    turned(y[0], y[1], TURNS_32[j], j)
}

/// What the last two quarters give: coefficients 2m - 1 and 2m of the [`fourth_32`] of both, of the third's element m
/// and the fourth's 16 - m. Coefficient 0 is the third's element 0, and 31 the fourth's.
#[inline(always)]
pub fn join_fourth<V: Value>(a: V, b: V) -> [V; 2] {
    [a.plus(b), a.minus(b)]
}

/// Two levels of [`back_64`] on the way up: elements j, 31 - j, 32 + j and 63 - j, of elements j of the first two
/// quarters and elements j and 31 - j of the [`fourth_32`] of the others.
#[inline(always)]
pub fn join_back_64<V: Value>(quarters: [V; 2], fourth: [V; 2]) -> [V; 4] {
    let (sum, other_sum) = (quarters[0].plus(quarters[1]), quarters[0].minus(quarters[1]));
    let [a, b] = fourth;
    [sum.plus(a), other_sum.plus(b), other_sum.minus(b), sum.minus(a)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of which every sum is rounded.
    fn uneven() -> [f32; 64] {
        core::array::from_fn(|j| ((j * j * 7 + 3 * j) % 19) as f32 / 7.0 - 1.3)
    }

    #[test]
    fn quarters_give_the_bits_of_the_line() {
        let x = uneven();
        let mut quarters = [[0.0f32; 16]; 4];
        for j in 0..16 {
            let parts = split_64([x[j], x[31 - j], x[32 + j], x[63 - j]], j);
            (0..4).for_each(|quarter| quarters[quarter][j] = parts[quarter]);
        }
        let [p, q, a, b] = quarters;
        let (p, q, a, b) = (second_16(p), fourth_16(q), second_16(a), second_16(b));
        let mut y = [0.0; 64];
        for k in 0..16 {
            (y[4 * k], y[4 * k + 2]) = (p[k], q[k]);
        }
        (y[1], y[63]) = (a[0], b[0]);
        for m in 1..16 {
            [y[4 * m - 1], y[4 * m + 1]] = join_fourth(a[m], b[16 - m]);
        }
        assert_eq!(y.map(f32::to_bits), second_64(x).map(f32::to_bits));
    }

    #[test]
    fn quarters_give_the_bits_of_the_line_back() {
        let y = uneven();
        let (p, q) = (back_16(core::array::from_fn(|k| y[4 * k])), fourth_16(core::array::from_fn(|k| y[4 * k + 2])));
        let turns: [[f32; 2]; 16] = core::array::from_fn(|j| split_back_64([y[2 * j + 1], y[63 - 2 * j]], j));
        let (a, b) = (second_16(turns.map(|turn| turn[0])), second_16(turns.map(|turn| turn[1])));
        let mut fourth = [0.0; 32];
        (fourth[0], fourth[31]) = (a[0], b[0]);
        for m in 1..16 {
            [fourth[2 * m - 1], fourth[2 * m]] = join_fourth(a[m], b[16 - m]);
        }
        let mut x = [0.0; 64];
        for j in 0..16 {
            [x[j], x[31 - j], x[32 + j], x[63 - j]] = join_back_64([p[j], q[j]], [fourth[j], fourth[31 - j]]);
        }
        assert_eq!(x.map(f32::to_bits), back_64(y).map(f32::to_bits));
    }

    #[test]
    fn turns_are_the_nearest_to_cosine_and_sine() {
        let tables: [&[[f32; 2]]; 5] = [&TURNS_2, &TURNS_4, &TURNS_8, &TURNS_16, &TURNS_32];
        for table in tables {
            for (j, turn) in table.iter().enumerate() {
                let angle = (2 * j + 1) as f64 * core::f64::consts::PI / (8 * table.len()) as f64;
                assert_eq!(*turn, [angle.cos() as f32, angle.sin() as f32]);
            }
        }
    }

    #[test]
    fn a_line_is_the_sum_of_its_cosines() {
        let x: [f32; 64] = core::array::from_fn(|j| ((j * j * 7 + 3 * j) % 19) as f32 - 9.0);
        let (y, angle) = (second_64(x), core::f64::consts::PI / 128.0);
        for (k, y) in y.iter().enumerate() {
            let terms = x.iter().enumerate().map(|(j, x)| f64::from(*x) * ((k * (2 * j + 1)) as f64 * angle).cos());
            assert!((f64::from(*y) - terms.sum::<f64>()).abs() < 1e-4, "{k}: {y}");
        }
        let mut lines = y;
        for (k, y) in lines.iter_mut().enumerate() {
            *y *= if k == 0 { 1.0 / 64.0 } else { 1.0 / 32.0 };
        }
        let back = back_64(lines);
        assert!(back.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-5), "{back:?}");
    }

    #[test]
    fn blocks_cover_the_elements_and_each_begins_at_a_multiple_of_its_length() {
        for n in 1..700 {
            for most in [2, 4, 6, 8] {
                let mut at = 0;
                while at < n {
                    let log2 = block_of(at, n, most);
                    assert!(log2 <= most && at % (1 << log2) == 0 && at + (1 << log2) <= n, "{at} of {n}");
                    assert!(log2 == most || n - at < 2 << log2, "{at} of {n}");
                    assert!((at..at + (1 << log2)).all(|other| block_of(other, n, most) == log2));
                    at += 1 << log2;
                }
            }
        }
    }

    #[test]
    fn scales_are_the_roots_of_both_directions() {
        for log2 in 0..=12 {
            let row = 1 << row_log2(log2);
            let root = |at: u32, n: u32| (if at == 0 { 1.0 } else { 2.0 } / f64::from(n)).sqrt();
            for place in 0..1 << log2 {
                let exact = root(place / row, (1 << log2) / row) * root(place % row, row);
                assert!((f64::from(scale_of(place, log2)) / exact - 1.0).abs() < 6e-8, "{place} of 2^{log2}");
            }
        }
    }
}
