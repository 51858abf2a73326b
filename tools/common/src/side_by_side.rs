//! Several jobs at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Does each job, as many at once as there are cores; gives the results in the jobs' order. A core opens what it works
/// with once, for all of its jobs.
pub fn side_by_side<J: Sync, W, R: Send>(
    jobs: &[J],
    open: impl Fn() -> W + Sync,
    work: impl Fn(&W, &J) -> R + Sync,
) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let core = || {
        let with = open();
        while let Some((index, job)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, jobs.get(i)?)))
        {
            let result = work(&with, job);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(core))));
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::side_by_side;

    #[test]
    fn results_come_in_the_order_of_the_jobs() {
        let jobs: Vec<u64> = (0..100).rev().collect();
        assert_eq!(
            side_by_side(&jobs, || 7, |with, job| with * job),
            (0..100).rev().map(|j| 7 * j).collect::<Vec<_>>()
        );
        assert_eq!(side_by_side(&[], || (), |(), job: &u64| *job), Vec::<u64>::new());
    }
}
