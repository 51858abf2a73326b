//! A step that is taken back.

use super::core::Compressor;
use crate::error::{Error, ExchangeError};

impl Compressor {
    /// Takes back the last step: residual, momentum, estimates, factors and steps are as before it, to the bit. The
    /// next step is made anew, with the same draws.
    ///
    /// For a step of several compressors of which one fails: [`Compressor::exchange_all`] does that by itself. The
    /// gradient is the caller's: the mean stays in it. Nothing is copied for this but factors, since the state before a
    /// step is kept beside the state after it anyway.
    ///
    /// Every rank takes back what any rank does. Where one does not, the next step fails with [`ExchangeError::Step`],
    /// or with [`CollectiveError::Mismatch`](crate::CollectiveError::Mismatch).
    ///
    /// ```
    /// # use gradwire::{Collective, Compressor, Device, Error};
    /// # fn step(group: &mut impl Collective) -> Result<(), Error> {
    /// let mut compressor = Compressor::new("topk:0.01+ef", [[64, 64]], 7)?;
    /// let before = compressor.state()?;
    /// compressor.exchange(&Device::cpu(), group, &mut [0.5; 4096])?;
    /// compressor.undo()?;
    /// assert_eq!(compressor.state()?, before);
    /// assert!(compressor.undo().is_err(), "one step is kept, no more");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ExchangeError::NothingToUndo`] if the last call was not an exchange that succeeded: after another that
    /// failed, a state that was restored or taken over, a residual that was cleared, and in a clone.
    /// [`ExchangeError::BrokenOff`]. Nothing has changed then.
    pub fn undo(&mut self) -> Result<(), Error> {
        self.expect_whole()?;
        let before = self.last.0.take().ok_or(ExchangeError::NothingToUndo)?;
        self.steps = self.steps.wrapping_sub(1);
        (self.work.bytes, self.digest) = (before.bytes, before.digest);
        if !before.skipped {
            // What keeps a step, and swaps both sides.
            self.planes.commit();
            let mut factors = before.factors.into_iter();
            for part in &mut self.parts {
                if let Some(dense) = part.method.dense_mut() {
                    dense.owner.undo();
                }
                if let Some(low_rank) = part.method.low_rank_mut()
                    && let Some(step) = factors.next()
                {
                    low_rank.state.undo(step);
                }
            }
        }
        // Other ranks may have kept the step: the next one asks them.
        self.agreed = false;
        Ok(())
    }
}
