//! Exchanges on a thread of their own.

use std::fmt;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use gradwire::{Collective, CollectiveError, Compressor, Device, Error, ExchangeError};

/// Exchanges that run on a thread of their own, while the caller computes.
///
/// The thread owns the group. A gradient in several parts, with a compressor for each, goes part by part: each is
/// [started](Self::start) as soon as backpropagation has it, and [finished](Self::finish) when its mean is needed. So
/// communication overlaps the rest of backpropagation: wait-free backpropagation (Zhang et al., "Poseidon", USENIX ATC
/// 2017, section 3.1; Shi et al., 2018). Exchanges run one after the other, in the order in which they are started.
///
/// - **Contract**: every rank starts the same parts in the same order. When they are finished, and in which order, is
///   each rank's own business.
/// - **Results** are those of [`Compressor::exchange`], bit for bit. Each part's is its own:
///   [`Together`](crate::Together) makes a step of all parts or of none.
/// - **Memory**: a gradient is lent, not copied. `start` leaves an empty vector, and `finish` puts it back.
/// - **Failure**: an exchange that fails gives its error to `finish`, with the gradient as it was. If a rank refuses a
///   NaN, all know of it, and the queued exchanges go on. After any other failure the group is dropped, since the ranks
///   may have exchanged different parts; every further exchange reports that this rank has left.
/// - **End**: [`close`](Self::close) gives back the group and the compressors. A `Background` that is dropped without
///   it does not wait: an exchange under way goes on, those after it are left out, and then the group is dropped.
/// - **Devices**: any that a [`Device`] stands for. On the CPU the exchange shares rayon's threads with the caller.
///
/// # Example
///
/// Two ranks, each with a gradient in two parts:
///
/// ```
/// use gradwire::{Compressor, Device};
/// use gradwire_collectives::{Background, Threads};
///
/// let mut ranks = Vec::new();
/// for group in Threads::group(2)? {
///     let compressor = |shape, run| Compressor::new("none", [[shape]], run);
///     ranks.push(Background::new(Device::cpu(), group, [compressor(3, 1)?, compressor(2, 2)?])?);
/// }
/// let mut gradients = [[vec![1.0, 2.0, 3.0], vec![4.0, 5.0]], [vec![3.0, 2.0, 1.0], vec![0.0, 1.0]]];
/// for (rank, parts) in ranks.iter_mut().zip(&mut gradients) {
///     rank.start(1, &mut parts[1])?; // backpropagation has the last layers first
///     // ... more of backpropagation ...
///     rank.start(0, &mut parts[0])?;
/// }
/// for (rank, parts) in ranks.iter_mut().zip(&mut gradients) {
///     rank.finish(0, &mut parts[0])?;
///     rank.finish(1, &mut parts[1])?;
///     assert_eq!(*parts, [vec![2.0, 2.0, 2.0], vec![2.0, 3.0]]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Background<C> {
    parts: Vec<Part>,
    /// None if the thread is to end.
    orders: Option<Sender<Order>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<Option<C>>>,
}

/// A compressor: here, or on the thread.
enum Part {
    Idle(Box<Compressor>),
    UnderWay,
    Done(Done),
}

/// An exchange that is to be done.
struct Order {
    part: usize,
    compressor: Box<Compressor>,
    gradient: Vec<f32>,
}

/// What came of it.
struct Done {
    part: usize,
    compressor: Box<Compressor>,
    gradient: Vec<f32>,
    result: Result<(), Error>,
}

impl<C: Collective + Send + 'static> Background<C> {
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
        let (orders, queue) = channel::<Order>();
        let (answers, done) = channel();
        let work = move || {
            let rank = group.rank();
            let mut group = Some(group);
            for Order { part, mut compressor, mut gradient } in queue {
                let result = match &mut group {
                    Some(group) => compressor.exchange(&device, group, &mut gradient),
                    None => {
                        let asked = "an exchange behind one that failed".to_owned();
                        Err(CollectiveError::Left { rank, asked }.into())
                    }
                };
                // Of a refusal every rank knows. Of other failures they may not, and would take the next part for this
                // one.
                let known = |error: &Error| match error {
                    Error::NotFinite { .. } => true,
                    Error::Exchange(error) => {
                        matches!(error, ExchangeError::Refused { .. } | ExchangeError::Told { .. })
                    }
                    _ => false,
                };
                if result.as_ref().is_err_and(|error| !known(error)) {
                    group = None;
                }
                // If nobody waits for this, nobody waits for what comes after it.
                if answers.send(Done { part, compressor, gradient, result }).is_err() {
                    break;
                }
            }
            group
        };
        let thread = std::thread::Builder::new().name("gradwire exchange".to_owned()).spawn(work);
        let thread = thread.map_err(|source| BackgroundError::Thread { source })?;
        let parts = compressors.into_iter().map(|compressor| Part::Idle(Box::new(compressor))).collect();
        Ok(Self { parts, orders: Some(orders), done, thread: Some(thread) })
    }

    /// Starts the exchange of a part, and returns at once. The gradient's memory goes along, and an empty vector is
    /// left.
    ///
    /// # Errors
    ///
    /// [`BackgroundError::Part`], [`BackgroundError::UnderWay`], [`BackgroundError::Ended`]. The gradient is then as it
    /// was.
    pub fn start(&mut self, part: usize, gradient: &mut Vec<f32>) -> Result<(), BackgroundError> {
        let parts = self.parts.len();
        let slot = self.parts.get_mut(part).ok_or(BackgroundError::Part { got: part, parts })?;
        let orders = self.orders.as_ref().ok_or(BackgroundError::Ended)?;
        let compressor = match std::mem::replace(slot, Part::UnderWay) {
            Part::Idle(compressor) => compressor,
            other => {
                *slot = other;
                return Err(BackgroundError::UnderWay { part });
            }
        };
        let order = Order { part, compressor, gradient: std::mem::take(gradient) };
        if let Err(refused) = orders.send(order) {
            let Order { compressor, gradient: mine, .. } = refused.0;
            (*slot, *gradient) = (Part::Idle(compressor), mine);
            return Err(BackgroundError::Ended);
        }
        Ok(())
    }

    /// Waits for the exchange of a part, and puts the mean over all ranks in `gradient`, which holds nothing of use
    /// until then.
    ///
    /// # Errors
    ///
    /// [`BackgroundError::Exchange`] if the exchange has failed: the gradient then has the values given to
    /// [`start`](Self::start), and the compressor is as before it. [`BackgroundError::Part`],
    /// [`BackgroundError::NotStarted`] and [`BackgroundError::Ended`] change nothing.
    pub fn finish(&mut self, part: usize, gradient: &mut Vec<f32>) -> Result<(), BackgroundError> {
        let parts = self.parts.len();
        loop {
            let slot = self.parts.get_mut(part).ok_or(BackgroundError::Part { got: part, parts })?;
            match std::mem::replace(slot, Part::UnderWay) {
                Part::Idle(compressor) => {
                    *slot = Part::Idle(compressor);
                    return Err(BackgroundError::NotStarted { part });
                }
                Part::Done(Done { compressor, gradient: mean, result, .. }) => {
                    (*slot, *gradient) = (Part::Idle(compressor), mean);
                    return result.map_err(|source| BackgroundError::Exchange { part, source });
                }
                Part::UnderWay => {
                    let done = self.done.recv().map_err(|_| BackgroundError::Ended)?;
                    let at = done.part;
                    self.parts[at] = Part::Done(done);
                }
            }
        }
    }

    /// The compressor of a part: for its bytes, or to save its state. None while an exchange of the part is not
    /// finished.
    pub fn compressor(&self, part: usize) -> Option<&Compressor> {
        match self.parts.get(part) {
            Some(Part::Idle(compressor)) => Some(compressor),
            _ => None,
        }
    }

    /// The same, to restore or clear its state.
    pub fn compressor_mut(&mut self, part: usize) -> Option<&mut Compressor> {
        match self.parts.get_mut(part) {
            Some(Part::Idle(compressor)) => Some(compressor),
            _ => None,
        }
    }

    /// Ends the thread, and gives back the group and the compressors.
    ///
    /// # Errors
    ///
    /// [`BackgroundError::UnderWay`] where a part is not finished: nothing has changed. [`BackgroundError::Ended`]
    /// where the group was dropped after a failure, or the thread was closed before.
    pub fn close(&mut self) -> Result<(C, Vec<Compressor>), BackgroundError> {
        if let Some(part) = self.parts.iter().position(|part| !matches!(part, Part::Idle(_))) {
            return Err(BackgroundError::UnderWay { part });
        }
        self.orders = None;
        let thread = self.thread.take().ok_or(BackgroundError::Ended)?;
        let group = thread.join().ok().flatten().ok_or(BackgroundError::Ended)?;
        let compressor = |part| match part {
            Part::Idle(compressor) => Some(*compressor),
            Part::UnderWay | Part::Done(_) => None,
        };
        Ok((group, self.parts.drain(..).filter_map(compressor).collect()))
    }
}

impl<C> fmt::Debug for Background<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let idle = self.parts.iter().filter(|part| matches!(part, Part::Idle(_))).count();
        f.debug_struct("Background").field("parts", &self.parts.len()).field("idle", &idle).finish_non_exhaustive()
    }
}

/// Why a call of a [`Background`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackgroundError {
    /// A part that there is not.
    #[error("there is no part {got}: the compressors given are numbered from 0, and there are {parts}")]
    Part {
        /// The number that was named.
        got: usize,
        /// How many parts there are.
        parts: usize,
    },
    /// A part whose exchange was started, and is not finished.
    #[error("the exchange of part {part} was started and is not finished: call finish({part}, ...) first")]
    UnderWay {
        /// Which part.
        part: usize,
    },
    /// A part that has nothing to finish.
    #[error("no exchange of part {part} was started since the last one was finished: call start({part}, ...) first")]
    NotStarted {
        /// Which part.
        part: usize,
    },
    /// The exchange failed.
    #[error("the exchange of part {part} failed: {source}")]
    Exchange {
        /// Which part.
        part: usize,
        /// Why.
        source: Error,
    },
    /// Another number of gradients than there are parts.
    #[error("a step of {parts} parts is finished with a gradient for each, in their order; got {found}")]
    Gradients {
        /// How many were given.
        found: usize,
        /// How many parts there are.
        parts: usize,
    },
    /// A gradient of another length than the one that was started.
    #[error(
        "the gradient of part {part} had {expected} elements when it was started, and has {found} now; finish with the same"
    )]
    Gradient {
        /// Which part.
        part: usize,
        /// Elements that it has.
        found: usize,
        /// Elements that it had.
        expected: usize,
    },
    /// There is no thread any more.
    #[error(
        "the thread of the exchanges has ended: it was closed, or the group panicked. What was under way is lost; make a \
         new group, and restore the compressors from what was saved"
    )]
    Ended,
    /// The system gave no thread.
    #[error("no thread could be started for the exchanges: {source}")]
    Thread {
        /// The error of the system.
        source: io::Error,
    },
}
