//! What a message takes between two ranks.

use std::time::Instant;

use gradwire::{Collective, CollectiveError};

/// How long messages of one size take from rank 0 to rank 1 and back at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Ping {
    /// Bytes of the message of either side.
    pub bytes: usize,
    /// Seconds of each repetition: those of the slower of the two ranks.
    pub seconds: Vec<f64>,
}

impl Ping {
    /// The middle of all repetitions, or the mean of the two in the middle; 0 if there are none.
    pub fn median(&self) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => 0.0,
            odd if odd % 2 == 1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        }
    }
}

/// Measures messages of these sizes between the ranks 0 and 1 of a group, each so often, after one that does not
/// count.
///
/// Every rank calls this with the same sizes and repetitions, and gets the same numbers. Both ranks send at once, as in
/// the steps of an all-reduce. The rank that begins first waits for the other too: of the two times the larger is that
/// of a whole message, and on a busy machine may be more.
///
/// The medians are what `Network::fit` of `gradwire-planner` takes: a start-up time and a time per byte, with
/// residuals.
///
/// # Errors
///
/// [`CollectiveError::Rank`] for a group of one rank, which has no link; what the group's operations fail with.
///
/// ```
/// use gradwire_collectives::{Threads, ping};
///
/// let pings = std::thread::scope(|scope| {
///     let of_rank = |mut group: Threads| scope.spawn(move || ping(&mut group, &[0, 4096], 5));
///     let threads: Vec<_> = Threads::group(2)?.into_iter().map(of_rank).collect();
///     threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect::<Result<Vec<_>, _>>()
/// })?;
/// assert_eq!(pings[0], pings[1]);
/// assert!(pings[0].iter().all(|ping| ping.seconds.len() == 5 && ping.median() > 0.0));
/// # Ok::<(), gradwire_collectives::CollectiveError>(())
/// ```
pub fn ping<C: Collective + ?Sized>(
    group: &mut C,
    sizes: &[usize],
    repetitions: usize,
) -> Result<Vec<Ping>, CollectiveError> {
    let (rank, ranks) = (group.rank(), group.ranks());
    if ranks < 2 {
        return Err(CollectiveError::Rank { got: 1, ranks });
    }
    let mut own = Vec::with_capacity(8 * sizes.len() * repetitions);
    let mut theirs = Vec::new();
    for &bytes in sizes.iter().filter(|_| rank < 2) {
        let mine = vec![0u8; bytes];
        for repetition in 0..=repetitions {
            let start = Instant::now();
            group.exchange(1 - rank, &mine, &mut theirs)?;
            if repetition > 0 {
                own.extend_from_slice(&start.elapsed().as_secs_f64().to_le_bytes());
            }
        }
    }
    let (mut first, mut second) = (own.clone(), own);
    group.broadcast(0, &mut first)?;
    group.broadcast(1, &mut second)?;
    let (first, second) = (first.as_chunks::<8>().0, second.as_chunks::<8>().0);
    let mut slower = first.iter().zip(second).map(|(a, b)| f64::from_le_bytes(*a).max(f64::from_le_bytes(*b)));
    Ok(sizes.iter().map(|&bytes| Ping { bytes, seconds: slower.by_ref().take(repetitions).collect() }).collect())
}
