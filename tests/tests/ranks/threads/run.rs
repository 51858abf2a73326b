//! Runs a test's work on all ranks, and finds calls that hang.

use std::sync::mpsc;
use std::time::Duration;

use gradwire_collectives::{Collective, CollectiveError, Threads};

/// No group that works takes nearly as long. A test that meets it has found a call that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `work` on every rank of a group, and gives what each rank gives.
pub(super) fn on(group: Vec<Threads>, work: impl Fn(Threads) -> Outcome + Clone + Send + 'static) -> Vec<Outcome> {
    let (sender, receiver) = mpsc::channel();
    let ranks = group.len();
    for handle in group {
        let (sender, work, rank) = (sender.clone(), work.clone(), handle.rank() as usize);
        std::thread::spawn(move || sender.send((rank, work(handle))));
    }
    drop(sender);
    let mut outcomes: Vec<Option<Outcome>> = vec![None; ranks];
    while let Some(place) = outcomes.iter().position(Option::is_none) {
        match receiver.recv_timeout(PATIENCE) {
            Ok((rank, outcome)) => outcomes[rank] = Some(outcome),
            // A thread that panicked sends nothing.
            Err(mpsc::RecvTimeoutError::Disconnected) => outcomes[place] = Some(Ok(vec![b"panicked".to_vec()])),
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("rank {place} of {ranks} hangs"),
        }
    }
    outcomes.into_iter().flatten().collect()
}

pub(super) type Outcome = Result<Vec<Vec<u8>>, CollectiveError>;

pub(super) fn group(ranks: u32) -> Vec<Threads> {
    Threads::group(ranks).expect("a group")
}
