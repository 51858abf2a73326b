//! How a threshold is estimated, as a user sets it up.

/// How [`TopK::estimate`](crate::TopK::estimate) finds a threshold that about the wanted number of entries reach.
///
/// What stands in the formulas: n elements, of which k are wanted, and the part rho = k/n. Statistics are made of
/// integers, as those of [`OneBit`](crate::OneBit), [`Qsgd::l2`](crate::Qsgd::l2) and [`Sign`](crate::Sign), a sum for
/// each 8192 elements; sums are added up in their order in binary64. A threshold is rounded down to binary32, and is
/// above zero.
///
/// * **Determinism**: backend to backend; no random draw.
/// * **Not finite**: where an element is NaN or infinite there is no mean, and those elements alone are kept.
/// * **Zeros** reach no threshold, so that a gradient of zeros has an empty payload. They are sent where all entries
///   are, since indices would take more.
/// * **At least one entry**, the largest, is kept of any other gradient. So |x - C(x)|^2 <= (1 - 1/n) |x|^2, and error
///   feedback loses nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Estimate {
    /// GaussianK: elements are taken for normal. The threshold is z sigma + |mu|, where a normal variable's magnitude
    /// is above z with probability rho.
    ///
    /// Source: Shi, Chu, Cheung and See, "Understanding top-k sparsification in distributed deep learning",
    /// arXiv:1911.08772, 2019, algorithm 1; the quantile by Wichura, "Algorithm AS 241: The percentage points of the
    /// normal distribution", 1988, PPND7.
    ///
    /// * **Corrected**: while fewer than 2/3 k or more than 4/3 k entries reach the threshold, it is multiplied by 0.5
    ///   or 1.5, as theirs; between one that too few reach and one that too many do, it is halfway.
    /// * **Bounded**: ten times at the most, where theirs are four. Of all that were tried, the threshold is kept whose
    ///   number of entries is nearest to k, as a ratio: where ties are many, that may be any number.
    /// * **Reads** of the gradient: two for the statistics, and one for each threshold that is below all before it.
    /// * **Memory**: what reaches a threshold that is tried is copied to the host, 8 bytes per entry; where the first
    ///   threshold is far too high or low, that may be every entry.
    Gaussian,
    /// SIDCo with exponential fits: magnitudes are taken for exponential, stage by stage. One stage has the threshold
    /// mean |x| ln(1/rho). The first of M > 1 stages keeps the part 0.25, so its threshold is mean |x| ln(1/0.25); each
    /// other stage adds the mean by which magnitudes exceed the last threshold, times ln(0.25/rho)/(M - 1).
    ///
    /// Source: Abdelmoniem, Elzanaty, Alouini and Canini, "An efficient statistical-based gradient compression
    /// technique for distributed training systems", MLSys 2021, algorithm 1; the first stage's part and the most stages
    /// are those of the authors' code (`compression.py` and `settings.py` of sands-lab/SIDCo).
    ///
    /// * **Stages**: M is the least from 1 on with which 0.8 k to 1.2 k entries reach the last threshold. Theirs is
    ///   adapted from step to step by the same tolerance; here within a step, so that no step depends on another and
    ///   there is nothing to save. Their code takes the excess over the smallest magnitude that is left; here it is over
    ///   the threshold, as in the paper.
    /// * **Bounded**: M is at most log2(1/rho), rounded up, and 1 for rho of 0.25 or more. Of all that were tried, the
    ///   threshold is kept whose number of entries is nearest to k, as a ratio. If there are few different
    ///   magnitudes, that may be any number. If none reaches a threshold, the mean is the threshold.
    /// * **Reads** of the gradient: one for the mean, one for M = 1, and one for all others; one more if none reached a
    ///   threshold. More stages than one copy to the host what reaches the first one's threshold, a quarter of
    ///   exponential magnitudes.
    Sidco,
}

impl Estimate {
    /// Every estimate, with its word in a recipe.
    pub(crate) const WORDS: [(&'static str, Self); 2] = [("gaussian", Self::Gaussian), ("sidco", Self::Sidco)];

    /// Its word in a recipe.
    pub(crate) fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, estimate)| *estimate == self).map_or("", |(word, _)| word)
    }
}
