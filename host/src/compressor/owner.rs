//! The residual of a piece's owner: the part of the sum that its payload did not hold. The sum is of the ranks' pieces,
//! each times the inverse of [`power`](super::mean::power).

use super::planes::zeros;
use crate::error::{Error, ExchangeError};

/// The owner's residual, and memory for its values after the next step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owner {
    /// The rank and the number of ranks whose piece it is of; none before the first step.
    place: Option<(u32, u32)>,
    now: Vec<f32>,
    next: Vec<f32>,
    /// What `place` is once the step is kept.
    begun: Option<(u32, u32)>,
    /// What `place` was before the last step, where that changed the residual.
    before: Option<Option<(u32, u32)>>,
}

impl Owner {
    /// A saved residual of this place.
    pub(crate) fn of(place: Option<(u32, u32)>, now: Vec<f32>) -> Self {
        Self { place, now, ..Self::default() }
    }

    /// The place, and the residual of its piece.
    pub(crate) fn kept(&self) -> (Option<(u32, u32)>, &[f32]) {
        (self.place, &self.now)
    }

    /// Refuses to go on with other ranks than those of the residual.
    pub(crate) fn expect(&self, rank: u32, ranks: u32) -> Result<(), Error> {
        match self.place {
            Some((of, of_ranks)) if (of, of_ranks) != (rank, ranks) => {
                Err(ExchangeError::Owner { of, of_ranks, rank, ranks }.into())
            }
            _ => Ok(()),
        }
    }

    /// Refuses to gather beside a residual that only two phases send.
    pub(crate) fn expect_none(&self, rank: u32, ranks: u32) -> Result<(), Error> {
        match self.place {
            Some((of, of_ranks)) => Err(ExchangeError::Owner { of, of_ranks, rank, ranks }.into()),
            None => Ok(()),
        }
    }

    /// A step begins: the residual of this rank's piece, to be written anew. Without feedback it has no elements.
    pub(crate) fn begin(&mut self, rank: u32, ranks: u32, elements: usize) -> Result<&mut [f32], Error> {
        self.expect(rank, ranks)?;
        if self.next.len() != elements {
            self.next = zeros(elements)?;
        }
        match self.place {
            Some(_) if self.now.len() == elements => self.next.copy_from_slice(&self.now),
            _ => self.next.fill(0.0),
        }
        self.begun = (elements > 0).then_some((rank, ranks));
        Ok(&mut self.next)
    }

    /// Forgets a step that was begun, and the one before it.
    pub(crate) fn forget(&mut self) {
        (self.begun, self.before) = (None, None);
    }

    /// Keeps the step that was begun.
    pub(crate) fn commit(&mut self) {
        if self.begun.is_some() {
            self.before = Some(std::mem::replace(&mut self.place, self.begun.take()));
            std::mem::swap(&mut self.now, &mut self.next);
        }
    }

    /// Takes back the last step that was kept.
    pub(crate) fn undo(&mut self) {
        if let Some(place) = self.before.take() {
            self.place = place;
            std::mem::swap(&mut self.now, &mut self.next);
        }
    }

    /// Makes it zero.
    pub(crate) fn clear(&mut self) {
        self.now.fill(0.0);
    }
}
