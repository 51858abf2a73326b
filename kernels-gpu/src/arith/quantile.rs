//! Quantile buckets (Jiang, Fu, Yang and Cui, "SketchML: Accelerating distributed machine learning with data sketches",
//! SIGMOD 2018, section 3.2: quantile-bucket quantification), with exact quantiles of buckets in the place of a sketch
//! of the whole.
//!
//! A bucket's elements are sorted, and cut at ranks into quantiles of as many elements as nearly as may be. An element
//! is sent as its quantile, and decodes to the mean of that quantile. No other value for a quantile has less squared
//! error.
//!
//! Zeros have a quantile of their own. Elements below zero and elements above it share the others in proportion to
//! their numbers. Were one quantile on both sides of zero, its mean might be zero while its elements are not: of -1,
//! -1, -1 and 3 with one edge, nothing would ever be sent, and error feedback would grow without bound. With one side
//! per quantile the error is at most (1 - 1/B) |x|^2, as in 1-bit SGD.
//!
//! Equal elements are in one quantile: the last one that begins with them. If several begin with them, the last one is
//! of the elements above them, and the one before it is theirs alone. -0 counts as +0.

use super::float::{INF_BITS, MAGNITUDE, SIGN, from_key, to_key};
use super::norm::{aligned_finely, alignment};
use super::onebit::{mean, quotient};

/// The key of zero, from which on elements are not below zero.
const ZERO: u32 = SIGN;

/// The key of what is made up after a bucket's last element: no element's is larger.
pub const PAD: u32 = u32::MAX;

/// An integer that orders as the value with these bits does, the same for both zeros.
#[inline(always)]
pub fn key(bits: u32) -> u32 {
    if bits == SIGN { ZERO } else { to_key(bits) }
}

/// Whether a sorted bucket with these first and last keys holds a NaN or an infinity: they are at the ends.
#[inline(always)]
pub fn holds_not_finite(first: u32, last: u32) -> bool {
    from_key(first) & MAGNITUDE >= INF_BITS || from_key(last) & MAGNITUDE >= INF_BITS
}

/// The first index from `from` on, and below `to`, whose key is at least this; `to` if there is none.
#[inline(always)]
fn lower_bound(mut from: u32, mut to: u32, key: u32, at: impl Fn(u32) -> u32) -> u32 {
    while from < to {
        let middle = (from + to) / 2;
        if at(middle) < key {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    from
}

/// Where a sorted bucket is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cuts {
    /// Elements of the bucket.
    elements: u32,
    /// Quantiles of the bucket.
    quantiles: u32,
    /// Elements below zero.
    below: u32,
    /// Elements that are not above zero.
    through: u32,
    /// Quantiles of elements below zero: the first ones.
    lower: u32,
    /// Quantiles of elements that are not above zero: one more if there are zeros.
    middle: u32,
}

impl Cuts {
    /// The cuts of a bucket of so many elements, at least one and at most 2^13, whose sorted keys `at` gives, into at
    /// least four and at most 2^8 quantiles.
    #[inline(always)]
    pub fn new(quantiles: u32, elements: u32, at: impl Fn(u32) -> u32) -> Self {
        let below = lower_bound(0, elements, ZERO, &at);
        let through = lower_bound(below, elements, ZERO + 1, at);
        let zeros = (through > below) as u32;
        let (sides, shared) = (elements - (through - below), quantiles - zeros);
        // In proportion, to nearest; each side that has an element has a quantile. All are below if none is above.
        let nearest = quotient(u64::from(shared * below + sides / 2), sides.max(1));
        let least = if through == elements { shared } else { (below > 0) as u32 };
        let most = shared - (through < elements) as u32;
        let lower = nearest.max(least).min(most);
        Self { elements, quantiles, below, through, lower, middle: lower + zeros }
    }

    /// The rank at which quantile `j` begins; that of the quantile after the last is the number of elements.
    #[inline(always)]
    pub fn rank(&self, j: u32) -> u32 {
        let (first, place, elements, quantiles) = if j >= self.middle {
            (self.through, j - self.middle, self.elements - self.through, self.quantiles - self.middle)
        } else if j >= self.lower {
            (self.below, 0, 0, 1)
        } else {
            (0, j, self.below, self.lower)
        };
        // If no element is above, no quantile is, and only the end is asked for.
        first + quotient(u64::from(place * elements), quantiles.max(1))
    }

    /// The mean of quantile `j` of the bucket whose sorted keys `at` gives; 0 of a quantile without elements.
    #[inline(always)]
    pub fn mean(&self, j: u32, at: impl Fn(u32) -> u32) -> f32 {
        let edge_of = |j: u32| at(self.rank(j));
        let (mut rank, next, edge) = (self.rank(j), self.rank(j + 1), edge_of(j));
        let mut end = next;
        if j + 1 < self.quantiles {
            let following = at(next);
            if following == edge {
                // Those that equal the edge have the last but one of the quantiles that begin with them.
                let theirs = j + 2 == self.quantiles || edge_of(j + 2) != edge;
                return if theirs { f32::from_bits(from_key(edge)) } else { 0.0 };
            }
            end = lower_bound(rank, next, following, &at);
        }
        let mut equal = 0;
        if j > 0 && edge_of(j - 1) == edge {
            rank = lower_bound(rank, end, edge + 1, &at);
            if rank == end {
                return 0.0;
            }
        } else {
            // Those that equal the edge and lie before its rank are the quantile's too.
            equal = rank - lower_bound(0, rank, edge, &at);
        }
        let edge = at(rank);
        mean_between(edge, at(end - 1), equal + end - rank, |to| {
            let mut sum = term(edge, to) * u64::from(equal);
            let mut index = rank;
            while index < end {
                sum += term(at(index), to);
                index += 1;
            }
            sum
        })
    }
}

/// What the element with this key adds to its quantile's sum of magnitudes, which are aligned to this exponent.
#[inline(always)]
pub fn term(key: u32, to: u32) -> u64 {
    u64::from(aligned_finely(from_key(key) & MAGNITUDE, to))
}

/// The mean of so many elements on one side of zero, from the first to the last one's key: `sum` adds up their
/// [`term`]s, aligned to what it is given.
#[inline(always)]
pub fn mean_between(first: u32, last: u32, count: u32, sum: impl FnOnce(u32) -> u64) -> f32 {
    let to = alignment((from_key(first) & MAGNITUDE).max(from_key(last) & MAGNITUDE));
    let mean = mean(sum(to), count, to);
    if first < ZERO { 0.0 - mean } else { mean }
}

/// The quantile of the element with this key: the last one of 2^`bits` whose edge is not above it, or the one before it
/// if both edges equal it.
#[inline(always)]
pub fn code(bits: u32, key: u32, edge: impl Fn(u32) -> u32) -> u32 {
    let (mut code, mut step) = (0, 1 << bits >> 1);
    while step > 0 {
        if edge(code + step) <= key {
            code += step;
        }
        step >>= 1;
    }
    let alone = code > 0 && edge(code) == key && edge(code - 1) == key;
    code - alone as u32
}

/// What a code of a bucket decodes to, from the bucket's mean that it names: that, or the one NaN.
#[inline(always)]
pub fn value(mean: u32) -> u32 {
    if mean & MAGNITUDE >= INF_BITS { super::float::NAN_BITS } else { mean }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(values: &[f32]) -> std::vec::Vec<u32> {
        let mut keys: std::vec::Vec<u32> = values.iter().map(|v| key(v.to_bits())).collect();
        keys.sort_unstable();
        keys
    }

    fn decoded(bits: u32, values: &[f32]) -> std::vec::Vec<f32> {
        let keys = sorted(values);
        let at = |i: u32| keys[i as usize];
        let cuts = Cuts::new(1 << bits, keys.len() as u32, at);
        let of = |v: &f32| cuts.mean(code(bits, key(v.to_bits()), |j| at(cuts.rank(j))), at);
        values.iter().map(of).collect()
    }

    #[test]
    fn quantiles_keep_to_a_side_of_zero() {
        // Of these, one edge at the middle rank would make one quantile of all, whose mean is zero.
        assert_eq!(decoded(2, &[-1.0, -1.0, -1.0, 3.0]), [-1.0, -1.0, -1.0, 3.0]);
        assert_eq!(
            decoded(2, &[-0.0, 0.0, -2.0, -4.0, -2.0, -4.0, -6.0, -8.0]),
            [0.0, 0.0, -2.0, -4.0, -2.0, -4.0, -7.0, -7.0]
        );
        assert_eq!(decoded(2, &[5.0; 7]), [5.0; 7]);
        assert_eq!(decoded(2, &[-5.0; 7]), [-5.0; 7]);
        assert_eq!(decoded(2, &[0.0; 7]), [0.0; 7]);
        assert_eq!(decoded(2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0]), [1.5, 1.5, 3.5, 3.5, 5.5, 5.5, 8.0, 8.0]);
    }

    /// A value that two quantiles would begin with has one, and what is above it the other.
    #[test]
    fn zeros_and_frequent_values_are_exact() {
        let mut zeros = std::vec![0.0; 255];
        zeros.push(1.0);
        assert_eq!(decoded(4, &zeros), zeros);
        for frequent in [-3.0f32, 0.5, 7.0] {
            let mut values: std::vec::Vec<f32> = (0..64).map(|i| i as f32 - 20.5).collect();
            values.extend([frequent; 70]);
            values.push(0.0);
            let decoded = decoded(4, &values);
            assert_eq!(decoded[64..], values[64..]);
            let above = values.iter().zip(&decoded).filter(|(v, _)| **v > frequent);
            assert!(above.clone().count() > 0 && above.clone().all(|(_, d)| *d > frequent), "{frequent}");
        }
    }

    #[test]
    fn ranks_rise_to_the_number_of_elements_and_leave_no_side_without_a_quantile() {
        for elements in [1u32, 2, 5, 63, 64, 1000, 4096] {
            for below in [0, 1, elements / 3, elements - 1, elements] {
                for zeros in [0, 1, elements / 2, elements - 1, elements] {
                    let through = (below + zeros).min(elements);
                    let at = |i: u32| ZERO - (i < below) as u32 + (i >= through) as u32;
                    for quantiles in [4, 64, 256] {
                        let cuts = Cuts::new(quantiles, elements, at);
                        assert_eq!((cuts.rank(0), cuts.rank(quantiles)), (0, elements));
                        assert_eq!((cuts.rank(cuts.lower), cuts.rank(cuts.middle)), (below, through));
                        assert!((0..quantiles).all(|j| cuts.rank(j) <= cuts.rank(j + 1) && cuts.rank(j) < elements));
                        assert_eq!(cuts.middle - cuts.lower, (through > below) as u32);
                        assert!(below == 0 || cuts.lower > 0);
                        assert_eq!(cuts.middle < quantiles, through < elements);
                    }
                }
            }
        }
    }

    #[test]
    fn no_more_elements_than_quantiles_stay_as_they_are() {
        for n in 1..=16usize {
            let values: std::vec::Vec<f32> = (0..n).map(|i| (i as f32 - 4.5) * 1.1).collect();
            assert_eq!(decoded(4, &values), values);
        }
    }
}
