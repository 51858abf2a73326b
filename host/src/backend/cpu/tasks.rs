//! Tasks of the pool.

use crate::threads;

/// Elements that a thread takes at a time: a whole number of the largest buckets, small enough for a second-level
/// cache.
pub(super) const TASK: usize = 8 * 8192;

/// Runs tasks on the pool; a single one where it is, on the calling thread, since waking a thread costs more than a
/// small tensor does.
pub(super) fn for_each<T: Send>(tasks: Vec<T>, work: impl Fn(T) + Send + Sync) {
    if tasks.len() <= 1 {
        tasks.into_iter().for_each(work);
    } else {
        threads::items(tasks).for_each(work);
    }
}
