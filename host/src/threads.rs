//! Work that is shared out to rayon's threads: each piece of it runs in the standard floating-point environment.
//!
//! A thread of the pool has the environment of the thread that made it, or what other code of the process left there.
//! The pool is not this crate's alone, so an environment is set for a piece, and given back behind it. Files of this
//! crate use rayon through here, which a test of the repository holds.

use rayon::iter::{Enumerate, IntoParallelIterator, Map, MinLen, Zip};
use rayon::prelude::*;
use rayon::slice::{Chunks, ChunksExactMut, ChunksMut};

use crate::float_environment::FloatEnvironment;

/// Items that threads take in pieces.
pub(crate) struct Parallel<I>(I);

/// The items of a collection, a range or a slice.
pub(crate) fn items<T: IntoParallelIterator>(of: T) -> Parallel<T::Iter> {
    Parallel(of.into_par_iter())
}

/// Neighbours, `size` at a time.
pub(crate) fn chunks<T: Sync>(of: &[T], size: usize) -> Parallel<Chunks<'_, T>> {
    Parallel(of.par_chunks(size))
}

/// Neighbours to be written, `size` at a time.
pub(crate) fn chunks_mut<T: Send>(of: &mut [T], size: usize) -> Parallel<ChunksMut<'_, T>> {
    Parallel(of.par_chunks_mut(size))
}

/// The same without what is left over at the end.
pub(crate) fn chunks_exact_mut<T: Send>(of: &mut [T], size: usize) -> Parallel<ChunksExactMut<'_, T>> {
    Parallel(of.par_chunks_exact_mut(size))
}

/// What both come to. Either may run on another thread.
pub(crate) fn join<A: Send, B: Send>(first: impl FnOnce() -> A + Send, second: impl FnOnce() -> B + Send) -> (A, B) {
    rayon::join(|| FloatEnvironment::within(first), || FloatEnvironment::within(second))
}

/// Threads of the pool that this is called from.
pub(crate) fn count() -> usize {
    rayon::current_num_threads()
}

impl<I: IndexedParallelIterator> Parallel<I> {
    pub(crate) fn zip<J: IndexedParallelIterator>(self, other: Parallel<J>) -> Parallel<Zip<I, J>> {
        Parallel(self.0.zip(other.0))
    }

    pub(crate) fn enumerate(self) -> Parallel<Enumerate<I>> {
        Parallel(self.0.enumerate())
    }

    /// At least so many items to a piece.
    pub(crate) fn with_min_len(self, items: usize) -> Parallel<MinLen<I>> {
        Parallel(self.0.with_min_len(items))
    }
}

impl<I: ParallelIterator> Parallel<I> {
    pub(crate) fn map<R: Send, F: Fn(I::Item) -> R + Send + Sync>(self, of: F) -> Parallel<Map<I, F>> {
        Parallel(self.0.map(of))
    }

    pub(crate) fn for_each(self, work: impl Fn(I::Item) + Send + Sync) {
        self.in_pieces(work).for_each(drop);
    }

    pub(crate) fn collect(self) -> Vec<I::Item> {
        self.in_pieces(|item| item).collect()
    }

    /// The first that is not none, in the order of the items.
    pub(crate) fn find_map_first<R: Send>(self, of: impl Fn(I::Item) -> Option<R> + Send + Sync) -> Option<R> {
        self.in_pieces(of).find_map_first(|found| found)
    }

    /// All put together; `zero` is nothing yet.
    pub(crate) fn reduce(
        self,
        zero: impl Fn() -> I::Item + Send + Sync,
        both: impl Fn(I::Item, I::Item) -> I::Item + Send + Sync,
    ) -> I::Item {
        // Pieces are put together outside of them.
        self.in_pieces(|item| item).reduce(zero, |a, b| FloatEnvironment::within(|| both(a, b)))
    }

    /// What `of` makes of the items: rayon makes an environment before the first item of each piece, and drops it behind
    /// the last, on the thread that runs the piece.
    fn in_pieces<R: Send>(self, of: impl Fn(I::Item) -> R + Send + Sync) -> impl ParallelIterator<Item = R> {
        self.0.map_init(FloatEnvironment::standard, move |_, item| of(item))
    }
}
