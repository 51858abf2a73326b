//! The bytes that a rank sends, counted by its engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that a rank has sent to each other rank, since its group was opened.
///
/// A rank that gives its payload to an all-gather of 8 ranks sends it 7 times. This counts every message of every
/// operation. It leaves out the bytes that the engine and the transport add to a message, and the messages
/// by which ranks of MPI report that they fail or leave. A clone goes on counting while the group is in use, on another
/// thread too.
///
/// ```
/// use gradwire_collectives::{Collective, Threads};
///
/// let sent = std::thread::scope(|scope| {
///     let threads: Vec<_> = Threads::group(3)?
///         .into_iter()
///         .map(|mut group| {
///             scope.spawn(move || {
///                 let sent = group.sent();
///                 group.all_gather(&[0; 100], &mut Vec::new()).map(|()| sent)
///             })
///         })
///         .collect();
///     threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect::<Result<Vec<_>, _>>()
/// })?;
/// assert_eq!((sent[0].total(), sent[0].to(1), sent[0].to(0)), (200, 100, 0));
/// # Ok::<(), gradwire_collectives::CollectiveError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sent(Arc<[AtomicU64]>);

impl Sent {
    pub(crate) fn new(ranks: u32) -> Self {
        Self((0..ranks).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn add(&self, to: u32, bytes: usize) {
        // Relaxed is enough: no other memory is read because of these counts.
        if let Some(sent) = self.0.get(to as usize) {
            sent.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Bytes to one rank; 0 for this rank, and for one that is not in the group.
    #[must_use]
    pub fn to(&self, rank: u32) -> u64 {
        self.0.get(rank as usize).map_or(0, |sent| sent.load(Ordering::Relaxed))
    }

    /// Bytes to all ranks together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().map(|sent| sent.load(Ordering::Relaxed)).sum()
    }
}
