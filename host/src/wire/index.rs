//! How many bytes the indices of a sparse payload take, in each of four ways, and the rule that chooses.

/// How the indices are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexFormat {
    /// Not at all: every entry is there.
    All,
    /// A list of 32-bit numbers.
    List,
    /// Elias and Fano's code: within half a bit an index of the least there is.
    EliasFano,
    /// A bit per element.
    Bitmap,
}

impl IndexFormat {
    pub(crate) const fn tag(self) -> u8 {
        match self {
            Self::All => 0,
            Self::List => 1,
            Self::EliasFano => 2,
            Self::Bitmap => 3,
        }
    }

    /// The smallest for `count` of `n` indices; of several, the one that is first here.
    #[must_use]
    pub fn choose(n: u64, count: u64) -> Self {
        if n == count {
            return Self::All;
        }
        let mut best = Self::List;
        for format in [Self::EliasFano, Self::Bitmap] {
            if format.bytes(n, count) < best.bytes(n, count) {
                best = format;
            }
        }
        best
    }

    /// Bytes of `count` of `n` indices: whole 32-bit words. `u64::MAX` if they are more than that.
    #[must_use]
    pub fn bytes(self, n: u64, count: u64) -> u64 {
        match self {
            Self::All => 0,
            Self::List => count.saturating_mul(4),
            Self::EliasFano => {
                let split = Split::new(n, count);
                split.low_words.saturating_add(split.high_bits.div_ceil(32)).saturating_mul(4)
            }
            Self::Bitmap => n.div_ceil(32).saturating_mul(4),
        }
    }
}

/// Where Elias and Fano's code divides an index: the low bits of each side by side, then the high ones in unary.
pub(crate) struct Split {
    pub(crate) low: u32,
    pub(crate) low_words: u64,
    pub(crate) high_bits: u64,
}

impl Split {
    pub(crate) fn new(n: u64, count: u64) -> Self {
        if count == 0 {
            return Self { low: 0, low_words: 0, high_bits: 0 };
        }
        let low = (n / count).max(1).ilog2();
        // Up to the format's 2^31 elements nothing saturates; beyond, a size that is too large is still too large.
        let low_words = count.saturating_mul(low.into()).div_ceil(32);
        Self { low, low_words, high_bits: count.saturating_add(n.saturating_sub(1) >> low) }
    }
}
