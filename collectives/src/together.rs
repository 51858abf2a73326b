//! A step in several parts, each exchanged as soon as it is there, and all of them kept or none.

use std::fmt;

use gradwire::{Collective, Compressor, Device};

use crate::background::{Background, BackgroundError};

/// A step in several parts that is made whole or not at all, on a thread of its own, while the caller computes.
///
/// As [`Background`], of which it takes this contract, these results and these devices: parts are
/// [started](Self::start) as backpropagation has them, in the same order on every rank. But a step has all parts, is
/// [finished](Self::finish) at once, and where the exchange of one part fails, all others are taken back: no gradient
/// and no state has changed ([`Compressor::undo`]; [`Compressor::exchange_all`] is the same without a thread). For the
/// messages of a plan.
///
/// - **Memory**: a gradient is copied when its part starts, 4 bytes per element.
/// - **Failure**: if a rank refuses a NaN, every rank takes the step back, and the next step can be made. After any
///   other failure the group is dropped, as by [`Background`].
///
/// # Example
///
/// ```
/// use gradwire::{Compressor, Device};
/// use gradwire_collectives::{Threads, Together};
///
/// let mut ranks = Vec::new();
/// for group in Threads::group(2)? {
///     let compressor = |shape, run| Compressor::new("none+finite", [[shape]], run);
///     ranks.push(Together::new(Device::cpu(), group, [compressor(3, 1)?, compressor(2, 2)?])?);
/// }
/// // Rank 1 has a NaN in its second part, which it refuses.
/// let mut gradients = [[vec![1.0, 2.0, 3.0], vec![4.0, 5.0]], [vec![3.0, 2.0, 1.0], vec![f32::NAN, 1.0]]];
/// for made in [false, true] {
///     for (rank, parts) in ranks.iter_mut().zip(&gradients) {
///         rank.start(0, &parts[0])?;
///         // ... more of backpropagation ...
///         rank.start(1, &parts[1])?;
///     }
///     for (rank, parts) in ranks.iter_mut().zip(&mut gradients) {
///         assert_eq!(rank.finish(parts.iter_mut().map(Vec::as_mut_slice)).is_ok(), made);
///     }
///     gradients[1][1][0] = 0.0;
/// }
/// // The first part was taken back, and then exchanged once.
/// assert_eq!(gradients[0][0], [2.0, 2.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Together<C> {
    work: Background<C>,
    /// What each part exchanges, in place of the caller's memory.
    copies: Vec<Vec<f32>>,
    /// The parts of this step, in the order in which they were started, and their elements.
    started: Vec<(usize, usize)>,
}

impl<C: Collective + Send + 'static> Together<C> {
    /// Starts the thread, which owns device and group from here on; compressors are numbered in their order.
    ///
    /// # Errors
    ///
    /// [`BackgroundError::Thread`] where the system gives no thread.
    pub fn new(
        device: Device,
        group: C,
        compressors: impl IntoIterator<Item = Compressor>,
    ) -> Result<Self, BackgroundError> {
        let compressors: Vec<Compressor> = compressors.into_iter().collect();
        let copies = vec![Vec::new(); compressors.len()];
        Ok(Self { work: Background::new(device, group, compressors)?, copies, started: Vec::new() })
    }

    /// Starts the exchange of a part, and returns at once. The gradient is copied.
    ///
    /// # Errors
    ///
    /// As [`Background::start`]. After [`BackgroundError::Ended`] the step is given up: the parts that were exchanged
    /// are taken back, and none is in progress.
    pub fn start(&mut self, part: usize, gradient: &[f32]) -> Result<(), BackgroundError> {
        let parts = self.copies.len();
        let copy = self.copies.get_mut(part).ok_or(BackgroundError::Part { got: part, parts })?;
        if self.started.iter().any(|(started, _)| *started == part) {
            return Err(BackgroundError::UnderWay { part });
        }
        copy.clear();
        copy.extend_from_slice(gradient);
        if let Err(error) = self.work.start(part, copy) {
            let (made, _) = self.collect();
            self.take_back(made)?;
            return Err(error);
        }
        self.started.push((part, gradient.len()));
        Ok(())
    }

    /// Waits for the parts that were started: those that were exchanged, and the error of the first that was not.
    fn collect(&mut self) -> (Vec<usize>, Option<BackgroundError>) {
        let started = std::mem::take(&mut self.started);
        let (mut made, mut first) = (Vec::with_capacity(started.len()), None);
        for (part, _) in started {
            match self.work.finish(part, &mut self.copies[part]) {
                Ok(()) => made.push(part),
                // What failed after it failed because of it.
                Err(error) => first = first.or(Some(error)),
            }
        }
        (made, first)
    }

    /// Takes back the parts that were exchanged.
    fn take_back(&mut self, made: Vec<usize>) -> Result<(), BackgroundError> {
        for part in made {
            if let Some(compressor) = self.work.compressor_mut(part) {
                compressor.undo().map_err(|source| BackgroundError::Exchange { part, source })?;
            }
        }
        Ok(())
    }

    /// Waits for all parts, and makes each gradient the mean over all ranks; `gradients` are those of the parts, in the
    /// order of the compressors.
    ///
    /// # Errors
    ///
    /// [`BackgroundError::Exchange`] of the part that failed first: gradients and compressors are as before the step,
    /// and the next step can be started, with these gradients or others.
    ///
    /// [`BackgroundError::NotStarted`] of a part that was not started, [`BackgroundError::Gradients`] and
    /// [`BackgroundError::Gradient`] for gradients that are not those of the parts: nothing has changed, and the step
    /// is under way still.
    ///
    /// [`BackgroundError::Ended`] if the group panicked: the gradients are as they were. The exchanges in progress are
    /// lost; make a new group, and restore the compressors from saved states.
    pub fn finish<'g>(&mut self, gradients: impl IntoIterator<Item = &'g mut [f32]>) -> Result<(), BackgroundError> {
        let gradients: Vec<&mut [f32]> = gradients.into_iter().collect();
        let (found, parts) = (gradients.len(), self.copies.len());
        if found != parts {
            return Err(BackgroundError::Gradients { found, parts });
        }
        for (part, gradient) in gradients.iter().enumerate() {
            let elements = self.started.iter().find(|(started, _)| *started == part).map(|(_, elements)| *elements);
            let (found, expected) = (gradient.len(), elements.ok_or(BackgroundError::NotStarted { part })?);
            if found != expected {
                return Err(BackgroundError::Gradient { part, found, expected });
            }
        }
        let (made, first) = self.collect();
        let Some(error) = first else {
            // An exchange leaves the length as it was.
            gradients.into_iter().zip(&self.copies).for_each(|(gradient, mean)| gradient.copy_from_slice(mean));
            return Ok(());
        };
        self.take_back(made)?;
        Err(error)
    }

    /// The compressor of a part: for its bytes, or to save its state. None while a step is under way.
    pub fn compressor(&self, part: usize) -> Option<&Compressor> {
        self.work.compressor(part).filter(|_| self.started.is_empty())
    }

    /// The same, to restore or clear its state.
    pub fn compressor_mut(&mut self, part: usize) -> Option<&mut Compressor> {
        let idle = self.started.is_empty();
        self.work.compressor_mut(part).filter(|_| idle)
    }

    /// Ends the thread, and gives back the group and the compressors.
    ///
    /// # Errors
    ///
    /// As [`Background::close`].
    pub fn close(&mut self) -> Result<(C, Vec<Compressor>), BackgroundError> {
        self.work.close()
    }
}

impl<C> fmt::Debug for Together<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Together").field("work", &self.work).field("started", &self.started).finish_non_exhaustive()
    }
}
