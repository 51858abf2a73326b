//! What ranks that work together do with one another: the trait that an engine of communication implements.

use std::time::Duration;

/// Ranks that work together: the exchange of bytes that compressed data-parallel training needs.
///
/// A group has [`ranks`](Self::ranks) ranks, numbered from 0. Each rank has a handle of its own.
///
/// # Contract
///
/// - Every rank calls the same operations in the same order. [`exchange`](Self::exchange) counts only for the two ranks
///   that take part in it.
/// - An operation may wait for other ranks. It ends when what it needs has arrived.
/// - Bytes arrive as they were given. Their meaning is the caller's.
/// - Where a call fails, its outputs hold anything, and the group cannot be used any further. Every later call fails
///   with an error, on every rank, and no call waits for ever. Make a new group.
/// - A wrong argument counts as a failure of the group as well, since the other ranks wait for this one.
///
/// # Engines
///
/// `gradwire-collectives` has one whose ranks are threads of a process, one whose ranks are processes under MPI, and
/// one over NCCL, which is a [`StreamCollective`](crate::StreamCollective) too.
///
/// # Example
///
/// Code that takes any engine, called with a group of one rank:
///
/// ```
/// use gradwire::{Collective, CollectiveError};
///
/// fn mean(group: &mut dyn Collective, values: &mut [f32]) -> Result<(), CollectiveError> {
///     group.all_reduce_sum(values)?;
///     let ranks = group.ranks() as f32;
///     values.iter_mut().for_each(|value| *value /= ranks);
///     Ok(())
/// }
///
/// struct Alone;
///
/// impl Collective for Alone {
///     fn rank(&self) -> u32 { 0 }
///     fn ranks(&self) -> u32 { 1 }
///     fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
///         *all = vec![mine.to_vec()];
///         Ok(())
///     }
///     fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
///         let [mine] = to else { return Err(CollectiveError::Parts { got: to.len(), ranks: 1 }) };
///         *from = vec![mine.to_vec()];
///         Ok(())
///     }
///     fn all_reduce_sum(&mut self, _: &mut [f32]) -> Result<(), CollectiveError> { Ok(()) }
///     fn exchange(&mut self, peer: u32, _: &[u8], _: &mut Vec<u8>) -> Result<(), CollectiveError> {
///         Err(CollectiveError::Rank { got: peer, ranks: 1 })
///     }
///     fn broadcast(&mut self, _: u32, _: &mut Vec<u8>) -> Result<(), CollectiveError> { Ok(()) }
/// }
///
/// let mut values = [1.0, 2.0];
/// mean(&mut Alone, &mut values)?;
/// assert_eq!(values, [1.0, 2.0]);
/// # Ok::<(), CollectiveError>(())
/// ```
pub trait Collective {
    /// The number of this rank, from 0.
    fn rank(&self) -> u32;

    /// How many ranks the group has, at least 1.
    fn ranks(&self) -> u32;

    /// `all[r]` becomes the bytes that rank `r` gave as `mine`, for every rank, this one among them.
    ///
    /// Lengths may differ from rank to rank, and may be 0. `all` gets one buffer per rank. Buffers that it has are used
    /// again if they fit.
    ///
    /// # Errors
    ///
    /// As the trait's contract says: a rank has left, ranks asked for different things, or the engine failed.
    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError>;

    /// Rank `r` receives `to[r]` of every rank: `from[s]` becomes what rank `s` had for this one.
    ///
    /// `to` has one part per rank, this one among them. Lengths may differ from part to part, and may be 0. Buffers of
    /// `from` are used again if they fit.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Parts`] where `to` has another count of parts than there are ranks; else as the trait's
    /// contract says.
    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError>;

    /// `values` become their sum over all ranks, the same bits on every rank.
    ///
    /// Every rank gives the same number of values. The order of the additions is the engine's own; each sum is rounded
    /// to f32. `Threads` of `gradwire-collectives` adds in the order of ranks: ((rank 0 + rank 1) + rank 2) and so on.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Mismatch`] where ranks give different numbers of values; else as the trait's contract says.
    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError>;

    /// Gives `mine` to one other rank, and receives in `theirs` what that one gave. Both call this, with each other's
    /// rank.
    ///
    /// Lengths may differ, and may be 0. Ranks that take no part call nothing.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Rank`] where `peer` is not in the group, or is this rank; else as the trait's contract says.
    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError>;

    /// `bytes` become those of rank `root`, on every rank. Every rank names the same root.
    ///
    /// What `bytes` held on the other ranks is gone, their length among it.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Rank`] where `root` is not in the group; else as the trait's contract says.
    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError>;
}

/// Passes every call on to what a pointer leads to.
macro_rules! pass_on {
    ($($pointer:ty),*) => {$(
        impl<C: Collective + ?Sized> Collective for $pointer {
            fn rank(&self) -> u32 {
                (**self).rank()
            }

            fn ranks(&self) -> u32 {
                (**self).ranks()
            }

            fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
                (**self).all_gather(mine, all)
            }

            fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
                (**self).all_to_all(to, from)
            }

            fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
                (**self).all_reduce_sum(values)
            }

            fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
                (**self).exchange(peer, mine, theirs)
            }

            fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
                (**self).broadcast(root, bytes)
            }
        }
    )*};
}

pass_on!(&mut C, Box<C>);

/// Why ranks could not work together. The group that gave it cannot be used any further.
///
/// Where one rank notices what is wrong, an engine may give its error to all ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A rank left the group while another one needed it: its handle was dropped, its thread panicked, or its process
    /// ended.
    #[error(
        "rank {rank} has left the group, and {asked} needed it; find out why it ended, and make a new group with all \
         ranks"
    )]
    Left {
        /// The rank that left.
        rank: u32,
        /// The operation that needed it, by its name.
        asked: String,
    },
    /// Ranks that asked for different things.
    #[error(
        "{asked} met {found} of rank {rank}; every rank has to call the same operations in the same order, with \
         lengths and ranks that agree. Make a new group"
    )]
    Mismatch {
        /// The rank that asked for something else than the rank that noticed.
        rank: u32,
        /// What the rank that noticed had asked for.
        asked: String,
        /// What was found: what `rank` had asked for.
        found: String,
    },
    /// A rank that is not in the group, or that cannot take this part in it.
    #[error(
        "rank {got} cannot be asked in this group of {ranks}: name one below {ranks}, and for an exchange not this \
         rank itself. Make a new group"
    )]
    Rank {
        /// The rank that was named.
        got: u32,
        /// How many ranks there are.
        ranks: u32,
    },
    /// Another count of parts than there are ranks.
    #[error("an all-to-all takes one part for each of the {ranks} ranks; got {got}. Make a new group")]
    Parts {
        /// Parts that were given.
        got: usize,
        /// How many ranks there are.
        ranks: u32,
    },
    /// A group of a size that the engine does not make.
    #[error("a group of {engine} has 1 to {most} ranks; got {got}")]
    Size {
        /// Which engine.
        engine: &'static str,
        /// Ranks that were asked for.
        got: u32,
        /// The most that are possible.
        most: u32,
    },
    /// A rank did not do its part of an operation within the engine's deadline. It may be slow, or hang.
    #[error(
        "{asked} saw nothing of rank {rank} for {} s; find out what that rank does, or set a longer deadline. Make a new \
         group",
        waited.as_secs_f64()
    )]
    Late {
        /// The rank that was waited for.
        rank: u32,
        /// The operation that needed it, by its name.
        asked: String,
        /// The engine's deadline.
        waited: Duration,
    },
    /// An operation did not end within the engine's deadline, and the engine does not tell which rank it waits for.
    #[error(
        "{asked} did not end within {} s; find out which rank hangs or has ended, or set a longer deadline. Make a new \
         group",
        waited.as_secs_f64()
    )]
    Stalled {
        /// The operation that did not end.
        asked: String,
        /// The engine's deadline.
        waited: Duration,
    },
    /// A message without the code that only ranks with the group's key can make.
    #[error(
        "{asked} got a message of rank {rank} that does not bear the group's key; give every rank the same key. Where \
         all have it, the message was changed on its way, or is not that rank's. Make a new group"
    )]
    Forged {
        /// The rank that the message was said to be of.
        rank: u32,
        /// The operation that got it, by its name.
        asked: String,
    },
    /// The engine cannot be used in this process: its library or its launcher is missing.
    #[error("{engine} cannot be used: {reason} (looked for: {})", tried.join(", "))]
    Unavailable {
        /// Which engine.
        engine: &'static str,
        /// What was looked for, in this order.
        tried: Vec<String>,
        /// What was found, and what to do.
        reason: String,
    },
    /// The engine itself failed.
    #[error("{engine} failed: {reason}")]
    Engine {
        /// Which engine.
        engine: &'static str,
        /// The code that its library gave, if it gave one.
        code: Option<i32>,
        /// What failed, and what to do.
        reason: String,
    },
}
