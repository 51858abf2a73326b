//! What became of a tensor in a step.

/// What became of a tensor in a step that was finished: [`LowRankState::outcome`](crate::LowRankState::outcome).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The output holds its sent values.
    Sent,
    /// A factor, or an element of a tensor that is not compressed, came back other than finite, or a factor too large
    /// to be multiplied. The matrix is NaN in the output; nothing of it was sent. The residual keeps the finite part of
    /// the gradient.
    Kept,
    /// The same, but nothing was kept. Of a matrix the residual was dropped, so the gradients of this step and of the
    /// one that was kept are lost, and what had waited before them; of a tensor that is not compressed, the elements
    /// that were not finite. So it is when it happens for the second time within three steps, since the residual
    /// itself may be what overflows; and without feedback.
    Dropped,
}

/// What became of a tensor in the last finished step, and for how many steps more it drops what it would keep.
///
/// Two, because steps that are one-sided ask for each product every other time: a residual that overflows in one of
/// them alone would else poison every other step for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fate {
    pub(crate) outcome: Option<Outcome>,
    /// 0 to [`Fate::WARY`].
    pub(crate) wary: u8,
}

impl Fate {
    /// Steps that follow one that was poisoned.
    pub(crate) const WARY: u8 = 2;

    /// After a step in which the tensor did or did not come back as it should.
    pub(crate) fn next(self, well: bool, feedback: bool) -> Self {
        let outcome = match (well, feedback && self.wary == 0) {
            (true, _) => Outcome::Sent,
            (false, true) => Outcome::Kept,
            (false, false) => Outcome::Dropped,
        };
        Self { outcome: Some(outcome), wary: if well { self.wary.saturating_sub(1) } else { Self::WARY } }
    }
}
