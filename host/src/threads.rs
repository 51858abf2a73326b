//! Work that is shared out to rayon's threads: each piece of it runs in the standard floating-point environment.
//!
//! A thread of the pool has the environment of the thread that made it, or what other code of the process left there.
//! The pool is not this crate's alone, so an environment is set for a piece, and given back after it. Files of this
//! crate use rayon through here, which a test of the repository holds.
//!
//! A process that was forked off one whose pool had started has that pool without its threads, and would wait for them
//! forever. It gets a pool of its own. Processes are told apart by their numbers, so that a child in a namespace where
//! it has its parent's number is taken for it.

use std::sync::{Mutex, PoisonError};

use rayon::iter::{Enumerate, IntoParallelIterator, Map, MinLen, Zip};
use rayon::prelude::*;
use rayon::slice::{Chunks, ChunksExactMut, ChunksMut};

use crate::error::Error;
use crate::float_environment::FloatEnvironment;
use crate::words::reserved;

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
    forked::in_pool(|| rayon::join(|| FloatEnvironment::within(first), || FloatEnvironment::within(second)))
}

/// Threads of the pool that this is called from.
pub(crate) fn count() -> usize {
    forked::in_pool(rayon::current_num_threads)
}

impl<I: IndexedParallelIterator> Parallel<I> {
    /// All, in the order of the items. The memory for them is allocated before the first is made.
    ///
    /// # Errors
    /// That of an item, or a lack of memory for `what`.
    pub(crate) fn try_collect<T: Default + Send>(self, what: &str) -> Result<Vec<T>, Error>
    where
        I: IndexedParallelIterator<Item = Result<T, Error>>,
    {
        let mut all = reserved(self.0.len(), what)?;
        let failed = Mutex::new(None);
        let of = |item: Result<T, Error>| {
            item.unwrap_or_else(|error| {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                T::default()
            })
        };
        forked::in_pool(|| {
            self.0.map_init(FloatEnvironment::standard, |_, item| of(item)).collect_into_vec(&mut all);
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(all), Err)
    }

    pub(crate) fn zip<J: IndexedParallelIterator>(self, other: Parallel<J>) -> Parallel<Zip<I, J>> {
        Parallel(self.0.zip(other.0))
    }

    pub(crate) fn enumerate(self) -> Parallel<Enumerate<I>> {
        Parallel(self.0.enumerate())
    }

    /// At least `items` items to a piece.
    pub(crate) fn with_min_len(self, items: usize) -> Parallel<MinLen<I>> {
        Parallel(self.0.with_min_len(items))
    }
}

impl<I: ParallelIterator> Parallel<I> {
    pub(crate) fn map<R: Send, F: Fn(I::Item) -> R + Send + Sync>(self, of: F) -> Parallel<Map<I, F>> {
        Parallel(self.0.map(of))
    }

    pub(crate) fn for_each(self, work: impl Fn(I::Item) + Send + Sync) {
        forked::in_pool(|| self.in_pieces(work).for_each(drop));
    }

    pub(crate) fn collect(self) -> Vec<I::Item> {
        forked::in_pool(|| self.in_pieces(|item| item).collect())
    }

    /// The first that is not none, in the order of the items.
    pub(crate) fn find_map_first<R: Send>(self, of: impl Fn(I::Item) -> Option<R> + Send + Sync) -> Option<R> {
        forked::in_pool(|| self.in_pieces(of).find_map_first(|found| found))
    }

    /// All put together; `zero` is nothing yet.
    pub(crate) fn reduce(
        self,
        zero: impl Fn() -> I::Item + Send + Sync,
        both: impl Fn(I::Item, I::Item) -> I::Item + Send + Sync,
    ) -> I::Item {
        // Pieces are put together outside of them.
        forked::in_pool(|| self.in_pieces(|item| item).reduce(zero, |a, b| FloatEnvironment::within(|| both(a, b))))
    }

    /// What `of` makes of the items: rayon makes an environment before the first item of each piece, and drops it after
    /// the last, on the thread that runs the piece.
    fn in_pieces<R: Send>(self, of: impl Fn(I::Item) -> R + Send + Sync) -> impl ParallelIterator<Item = R> {
        self.0.map_init(FloatEnvironment::standard, move |_, item| of(item))
    }
}

/// Pools of processes that were forked.
#[cfg(unix)]
mod forked {
    use std::cell::Cell;
    use std::process;
    use std::sync::OnceLock;

    use rayon::{ThreadPool, ThreadPoolBuilder};

    /// The first process that shared work out: rayon's global pool is its own.
    static FIRST: OnceLock<u32> = OnceLock::new();

    /// One pool per generation of forks.
    static FORKED: OnceLock<Forked> = OnceLock::new();

    struct Forked {
        process: u32,
        pool: ThreadPool,
        next: OnceLock<Box<Self>>,
    }

    thread_local! {
        /// Whether this is a thread of such a pool.
        static IS_OF_POOL: Cell<bool> = const { Cell::new(false) };
    }

    impl Forked {
        fn new(process: u32) -> Self {
            let builder = || ThreadPoolBuilder::new().start_handler(|_| IS_OF_POOL.set(true));
            // If that many threads cannot be had, one may do.
            let pool = builder().build().or_else(|_| builder().num_threads(1).build());
            let pool = pool.expect("a forked process can start a thread, as rayon expects of every process");
            Self { process, pool, next: OnceLock::new() }
        }
    }

    /// Runs work in the pool that it was called from, or in that of this process.
    pub(super) fn in_pool<R: Send>(work: impl FnOnce() -> R + Send) -> R {
        let process = process::id();
        if *FIRST.get_or_init(|| process) == process || IS_OF_POOL.get() {
            return work();
        }
        let mut forked = FORKED.get_or_init(|| Forked::new(process));
        while forked.process != process {
            forked = forked.next.get_or_init(|| Box::new(Forked::new(process)));
        }
        forked.pool.install(work)
    }
}

/// No process forks here.
#[cfg(not(unix))]
mod forked {
    pub(super) fn in_pool<R>(work: impl FnOnce() -> R) -> R {
        work()
    }
}
