//! The seconds of messages between two ranks, and of gathers of all.

use std::time::Instant;

use gradwire::{Collective, CollectiveError};

/// The seconds of messages of one size: both ways at once between two ranks, or from every rank to all others.
#[derive(Clone, Debug, PartialEq)]
pub struct Ping {
    /// Bytes of the message of each rank.
    pub bytes: usize,
    /// Seconds of each repetition: those of the slowest rank.
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
/// [`CollectiveError::Rank`] for a group of one rank, which has no link; and the errors of the group's
/// operations.
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
    between(group, 1, sizes, repetitions)
}

/// The times of a group: messages between two ranks, and gathers.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupPings {
    /// Messages between rank 0 and another one: of ranks 1, `ranks / 2` and `ranks - 1` the slowest at each size, since
    /// neighbours may share a machine.
    pub messages: Vec<Ping>,
    /// Gathers. Each rank gives a part of the size, `1 / (ranks - 1)`, so that each gets about as many bytes as by a
    /// message. None of two ranks, whose gather is one message.
    pub gathers: Vec<Ping>,
}

/// Measures messages of these sizes between two ranks that may be far apart, and gathers in which every rank gets about
/// as many bytes, each so often, after one that does not count.
///
/// Every rank calls this with the same sizes and repetitions, and gets the same numbers. They are what `Network::fit`
/// and `Network::with_gathers` of `gradwire-planner` take.
///
/// # Errors
///
/// As [`ping`].
///
/// ```
/// use gradwire_collectives::{Threads, ping_group};
///
/// let pings = std::thread::scope(|scope| {
///     let of_rank = |mut group: Threads| scope.spawn(move || ping_group(&mut group, &[64, 4096], 5));
///     let threads: Vec<_> = Threads::group(5)?.into_iter().map(of_rank).collect();
///     threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect::<Result<Vec<_>, _>>()
/// })?;
/// assert!(pings.windows(2).all(|pair| pair[0] == pair[1]));
/// assert_eq!(pings[0].gathers.iter().map(|ping| ping.bytes).collect::<Vec<_>>(), [16, 1024]);
/// # Ok::<(), gradwire_collectives::CollectiveError>(())
/// ```
pub fn ping_group<C: Collective + ?Sized>(
    group: &mut C,
    sizes: &[usize],
    repetitions: usize,
) -> Result<GroupPings, CollectiveError> {
    let ranks = group.ranks();
    let mut messages = between(group, 1, sizes, repetitions)?;
    let mut peers = vec![ranks / 2, ranks - 1];
    peers.dedup();
    for peer in peers.into_iter().filter(|peer| *peer > 1) {
        let found = between(group, peer, sizes, repetitions)?;
        messages
            .iter_mut()
            .zip(found)
            .filter(|(slowest, ping)| ping.median() > slowest.median())
            .for_each(|(slowest, ping)| *slowest = ping);
    }
    let (others, mut all) = (ranks as usize - 1, Vec::new());
    let sizes: Vec<usize> = sizes.iter().filter(|_| ranks > 2).map(|bytes| bytes / others).collect();
    let own = timed(&sizes, repetitions, |mine| group.all_gather(mine, &mut all))?;
    group.all_gather(&own, &mut all)?;
    Ok(GroupPings { messages, gathers: slowest(&sizes, repetitions, &all) })
}

/// Messages of these sizes between rank 0 and another one.
fn between<C: Collective + ?Sized>(
    group: &mut C,
    peer: u32,
    sizes: &[usize],
    repetitions: usize,
) -> Result<Vec<Ping>, CollectiveError> {
    let (rank, ranks) = (group.rank(), group.ranks());
    if ranks < 2 {
        return Err(CollectiveError::Rank { got: 1, ranks });
    }
    let (own, mut theirs) = match [0, peer].contains(&rank) {
        true => {
            let (other, mut theirs) = (peer - rank, Vec::new());
            let own = timed(sizes, repetitions, |mine| group.exchange(other, mine, &mut theirs))?;
            (own, theirs)
        }
        false => (Vec::new(), Vec::new()),
    };
    let mut mine = own.clone();
    group.broadcast(0, &mut mine)?;
    theirs.clone_from(&own);
    group.broadcast(peer, &mut theirs)?;
    Ok(slowest(sizes, repetitions, &[mine, theirs]))
}

/// The seconds of each repetition of each size, as bytes, after one that does not count.
fn timed(
    sizes: &[usize],
    repetitions: usize,
    mut send: impl FnMut(&[u8]) -> Result<(), CollectiveError>,
) -> Result<Vec<u8>, CollectiveError> {
    let mut own = Vec::with_capacity(8 * sizes.len() * repetitions);
    for &bytes in sizes {
        let mine = vec![0u8; bytes];
        for repetition in 0..=repetitions {
            let start = Instant::now();
            send(&mine)?;
            if repetition > 0 {
                own.extend_from_slice(&start.elapsed().as_secs_f64().to_le_bytes());
            }
        }
    }
    Ok(own)
}

/// Of each repetition the seconds of the slowest rank.
fn slowest(sizes: &[usize], repetitions: usize, ranks: &[Vec<u8>]) -> Vec<Ping> {
    let of_rank = |times: &Vec<u8>, at: usize| times.as_chunks::<8>().0.get(at).map_or(0.0, |t| f64::from_le_bytes(*t));
    let slowest = |at: usize| ranks.iter().map(|times| of_rank(times, at)).fold(0.0, f64::max);
    let of_size = |(index, &bytes): (usize, &usize)| Ping {
        bytes,
        seconds: (index * repetitions..(index + 1) * repetitions).map(slowest).collect(),
    };
    sizes.iter().enumerate().map(of_size).collect()
}
