//! What the values of a bucket fold into: integers, so that the order in which it is done does not matter.

/// Something that values fold into. Merging is associative and commutative.
pub trait Fold: Copy {
    /// The fold of no value.
    const NONE: Self;

    /// The fold of two sets of values, from each one's.
    #[must_use]
    fn merge(self, other: Self) -> Self;
}

/// The largest of some integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Max(pub u32);

/// The smallest of some integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Min(pub u32);

/// The sum of some integers, modulo 2^64. Sums of a bucket fit; words that no kernel wrote may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum(pub u64);

impl Fold for Max {
    const NONE: Self = Self(0);

    #[inline(always)]
    fn merge(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }
}

impl Fold for Min {
    const NONE: Self = Self(u32::MAX);

    #[inline(always)]
    fn merge(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

impl Fold for Sum {
    const NONE: Self = Self(0);

    #[inline(always)]
    fn merge(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0))
    }
}

/// Nothing, where one look at the values is enough.
impl Fold for () {
    const NONE: Self = ();

    #[inline(always)]
    fn merge(self, (): Self) -> Self {}
}

/// Two folds of the same values.
impl<A: Fold, B: Fold> Fold for (A, B) {
    const NONE: Self = (A::NONE, B::NONE);

    #[inline(always)]
    fn merge(self, other: Self) -> Self {
        (self.0.merge(other.0), self.1.merge(other.1))
    }
}

/// The low word.
#[inline(always)]
pub fn low(value: u64) -> u32 {
    value as u32
}

/// The high word.
#[inline(always)]
pub fn high(value: u64) -> u32 {
    (value >> 32) as u32
}

/// The integer of these words, low one first.
#[inline(always)]
pub fn join([low, high]: [u32; 2]) -> u64 {
    u64::from(low) | u64::from(high) << 32
}
