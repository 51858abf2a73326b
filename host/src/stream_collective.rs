//! What ranks do with one another in the memory of CUDA devices, queued on a stream.

use std::ffi::c_void;

use crate::collective::CollectiveError;

/// Bytes that two ranks give to one another: as many in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The other rank.
    pub peer: u32,
    /// Device address of the bytes that it gets.
    pub send: u64,
    /// Device address of the room for those that it gives. The two do not overlap.
    pub receive: u64,
    /// How many bytes there are at each.
    pub bytes: usize,
}

/// Ranks that work together in device memory: operations that are queued on a CUDA stream of the caller's.
///
/// A method of this trait queues an operation and returns. What was queued on the stream before is done first, and what
/// is queued later runs after it, so that encode, exchange and decode are one queue without a wait.
///
/// # Contract
///
/// - Every rank queues the same operations with the same sizes in the same order, on streams of its own.
///   [`queue_transfers`](Self::queue_transfers) counts only for the ranks that it names. Sizes that differ may hang, or
///   damage what is received.
/// - A method may wait for other ranks in the first operations of a group alone, where the engine connects them.
/// - What fails after the queueing is told by [`check`](Self::check) and [`wait`](Self::wait), or by a later call.
///   Then outputs hold anything, and every later call fails with the same error. Make a new group.
///
/// # Safety
///
/// Of every method that is `unsafe`, the caller guarantees that
///
/// - `stream` is a `CUstream` of the context that the group was made in, null for the legacy default stream,
/// - addresses lead to as much device memory of that context as the method says, aligned to 4 bytes, which stays
///   allocated until the operation is done,
/// - and no work on another stream conflicts with the operation.
pub trait StreamCollective {
    /// The number of this rank, from 0.
    fn rank(&self) -> u32;

    /// How many ranks the group has, at least 1.
    fn ranks(&self) -> u32;

    /// Queues a gather: the `bytes` bytes at `mine` of rank `r` are copied to `all + r * bytes`, for every rank.
    ///
    /// `mine` may be this rank's own place in `all`; else the two do not overlap.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Engine`] if the engine refuses, or has failed before.
    ///
    /// # Safety
    ///
    /// As the trait says: `bytes` bytes at `mine`, and [`ranks`](Self::ranks) times as many at `all`.
    unsafe fn queue_all_gather(
        &mut self,
        mine: u64,
        all: u64,
        bytes: usize,
        stream: *mut c_void,
    ) -> Result<(), CollectiveError>;

    /// Queues a sum: the `values` f32 at `sums` become those at `mine`, added over all ranks.
    ///
    /// Every rank gets the same bits. The order of the additions is the engine's: another engine, another number of
    /// ranks or another link may give other bits. `mine` may be `sums`; else the two do not overlap.
    ///
    /// # Errors
    ///
    /// As [`queue_all_gather`](Self::queue_all_gather).
    ///
    /// # Safety
    ///
    /// As the trait says: `values` f32 at each address.
    unsafe fn queue_all_reduce_sum(
        &mut self,
        mine: u64,
        sums: u64,
        values: usize,
        stream: *mut c_void,
    ) -> Result<(), CollectiveError>;

    /// Queues a broadcast: the `bytes` bytes at `at` become those of rank `root`, on every rank.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Rank`] where `root` is not in the group; else as
    /// [`queue_all_gather`](Self::queue_all_gather).
    ///
    /// # Safety
    ///
    /// As the trait says: `bytes` bytes at `at`.
    unsafe fn queue_broadcast(
        &mut self,
        root: u32,
        at: u64,
        bytes: usize,
        stream: *mut c_void,
    ) -> Result<(), CollectiveError>;

    /// Queues messages between pairs of ranks, all at once. Each peer queues one for this rank, of the same size.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Rank`] if a peer is not in the group, or is this rank; else as
    /// [`queue_all_gather`](Self::queue_all_gather).
    ///
    /// # Safety
    ///
    /// As the trait says: [`Transfer::bytes`] bytes at the addresses of each.
    unsafe fn queue_transfers(&mut self, transfers: &[Transfer], stream: *mut c_void) -> Result<(), CollectiveError>;

    /// Asks whether an operation that was queued has failed. Waits for nothing.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Engine`] with what failed.
    fn check(&mut self) -> Result<(), CollectiveError>;

    /// Waits until all work of the stream is done, for as long as the engine's deadline says.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Stalled`] after the deadline, [`CollectiveError::Engine`] if an operation failed.
    ///
    /// # Safety
    ///
    /// As the trait says.
    unsafe fn wait(&mut self, stream: *mut c_void) -> Result<(), CollectiveError>;
}
