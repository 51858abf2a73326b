//! The engine whose ranks are threads of one process.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gradwire::{Collective, CollectiveError};

use crate::delays::Delays;
use crate::link::{Link, Throttle};
use crate::op::Op;
use crate::post::Post;
use crate::sent::Sent;
use crate::sum::{add, floats, share, to_bytes};

/// A rank of a group whose ranks are threads of one process.
///
/// [`Threads::group`] makes one handle per rank; move each into a thread of its own. Bytes go through memory, and are
/// copied once by the rank that gives them and once by each rank that receives them.
///
/// - A sum is added in the order of ranks, ((rank 0 + rank 1) + rank 2) and so on, each sum rounded to f32. So it has
///   the same bits on every rank, in every run, whichever thread is fast.
/// - An operation of the whole group ends on no rank before every rank has begun it. So ranks that ask for different
///   things are told in that very call.
/// - Dropping a handle, be it by a panic, makes the calls that need this rank fail with [`CollectiveError::Left`]. Its
///   earlier messages still arrive.
/// - A call waits five minutes for a rank at most, or as long as [`Threads::with_deadline`] says. It then fails with
///   [`CollectiveError::Late`], which names the rank that all wait for.
/// - The first failure of any rank is what every later call on every rank gives again. Slower ranks that still wait in
///   an earlier operation may get it there.
///
/// Sources: the operations are those of the MPI standard, version 4.1, chapter 6; the sum is a reduce-scatter and an
/// all-gather, as in Rabenseifner, "Optimization of collective reduction operations", 2004.
///
/// # Example
///
/// ```
/// use gradwire_collectives::{Collective, Threads};
///
/// let gathered = std::thread::scope(|scope| {
///     let threads: Vec<_> = Threads::group(3)?
///         .into_iter()
///         .map(|mut group| {
///             scope.spawn(move || {
///                 let mine = vec![7u8; group.rank() as usize]; // rank 0 has none
///                 let mut all = Vec::new();
///                 group.all_gather(&mine, &mut all).map(|()| all)
///             })
///         })
///         .collect();
///     threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect::<Result<Vec<_>, _>>()
/// })?;
/// for all in gathered {
///     assert_eq!(all, [vec![], vec![7], vec![7, 7]]);
/// }
/// # Ok::<(), gradwire_collectives::CollectiveError>(())
/// ```
pub struct Threads {
    rank: u32,
    post: Arc<Post>,
    sent: Sent,
    delays: Option<Delays>,
    throttle: Option<Throttle>,
}

impl Threads {
    /// The most ranks of a group. Each pair of ranks has a box for messages.
    pub const MOST: u32 = 1024;

    /// A group of `ranks`: the handle of rank `r` is at index `r`.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Size`] where `ranks` is 0 or more than [`Threads::MOST`].
    pub fn group(ranks: u32) -> Result<Vec<Self>, CollectiveError> {
        Self::with_deadline(ranks, Duration::from_secs(300))
    }

    /// A group whose calls wait so long for a rank, and then fail.
    ///
    /// # Errors
    ///
    /// As [`Threads::group`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use gradwire_collectives::{Collective, CollectiveError, Threads};
    ///
    /// let mut group = Threads::with_deadline(2, Duration::from_millis(10))?;
    /// let _rank_1 = group.pop(); // it does nothing
    /// let waited = group[0].all_gather(&[1], &mut Vec::new());
    /// assert!(matches!(waited, Err(CollectiveError::Late { rank: 1, .. })));
    /// # Ok::<(), CollectiveError>(())
    /// ```
    pub fn with_deadline(ranks: u32, deadline: Duration) -> Result<Vec<Self>, CollectiveError> {
        if ranks == 0 || ranks > Self::MOST {
            return Err(CollectiveError::Size { engine: "Threads", got: ranks, most: Self::MOST });
        }
        let post = Arc::new(Post::new(ranks, deadline));
        let handle = |rank| {
            let (post, sent) = (Arc::clone(&post), Sent::new(ranks));
            Self { rank, post, sent, delays: None, throttle: None }
        };
        Ok((0..ranks).map(handle).collect())
    }

    /// A group for tests: a rank sleeps before each delivery, for up to 200 microseconds, by pseudo-random numbers of
    /// `seed` and the rank.
    ///
    /// So messages arrive in other orders for other seeds, and results have to be the same bits nevertheless.
    ///
    /// # Errors
    ///
    /// As [`Threads::group`].
    ///
    /// ```
    /// use gradwire_collectives::{Collective, Threads};
    /// let group = Threads::with_delays(2, 42)?;
    /// assert_eq!((group[1].rank(), group[1].ranks()), (1, 2));
    /// # Ok::<(), gradwire_collectives::CollectiveError>(())
    /// ```
    pub fn with_delays(ranks: u32, seed: u64) -> Result<Vec<Self>, CollectiveError> {
        let group = Self::group(ranks)?.into_iter();
        Ok(group
            .map(|mut handle| {
                handle.delays = Some(Delays::new(seed, handle.rank));
                handle
            })
            .collect())
    }

    /// A group whose ranks send over links of a rate and a latency, for measurements of what a network would take.
    ///
    /// A rank is done with a message when its link has it, and does not wait until it has left. The rank that it is for
    /// waits until it arrives.
    ///
    /// # Errors
    ///
    /// As [`Threads::group`].
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use gradwire_collectives::{Collective, Link, Threads};
    ///
    /// let link = Link::new(1_000_000, Duration::from_millis(1)).expect("a link");
    /// let start = Instant::now();
    /// std::thread::scope(|scope| {
    ///     for mut group in Threads::throttled(2, link)? {
    ///         scope.spawn(move || group.all_gather(&[0; 4000], &mut Vec::new()));
    ///     }
    ///     Ok::<(), gradwire_collectives::CollectiveError>(())
    /// })?;
    /// assert!(start.elapsed() >= Duration::from_millis(5));
    /// # Ok::<(), gradwire_collectives::CollectiveError>(())
    /// ```
    pub fn throttled(ranks: u32, link: Link) -> Result<Vec<Self>, CollectiveError> {
        let mut group = Self::group(ranks)?;
        group.iter_mut().for_each(|handle| handle.throttle = Some(Throttle::new(link)));
        Ok(group)
    }

    /// The bytes that this rank sends, counted from the group's beginning.
    #[must_use]
    pub fn sent(&self) -> Sent {
        self.sent.clone()
    }

    fn send(&mut self, to: u32, op: Op, bytes: Arc<[u8]>) -> Result<(), CollectiveError> {
        self.sent.add(to, bytes.len());
        if let Some(delays) = &mut self.delays {
            delays.sleep();
        }
        let due = self.throttle.as_mut().map(|throttle| throttle.arrival(bytes.len(), Instant::now()));
        self.post.send(self.rank, to, op, bytes, due)
    }

    fn receive(&self, from: u32, op: Op) -> Result<Arc<[u8]>, CollectiveError> {
        self.post.receive(from, self.rank, op)
    }

    /// Every other rank, the next one first, so that not all ranks send to the same one at once.
    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let (rank, ranks) = (self.rank, self.post.ranks());
        (1..ranks).map(move |far| (rank + far) % ranks)
    }

    /// Refuses a rank that is not in the group, on behalf of all ranks, which would wait for this one.
    fn expect_rank(&self, got: u32, allowed: bool) -> Result<(), CollectiveError> {
        let ranks = self.post.ranks();
        if got < ranks && allowed { Ok(()) } else { Err(self.post.give_up(CollectiveError::Rank { got, ranks })) }
    }
}

impl Collective for Threads {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.post.ranks()
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.post.begin()?;
        let shared: Arc<[u8]> = mine.into();
        for to in self.others() {
            self.send(to, Op::AllGather, Arc::clone(&shared))?;
        }
        all.resize_with(self.ranks() as usize, Vec::new);
        for (from, into) in (0..).zip(all.iter_mut()) {
            if from == self.rank {
                fill(into, mine);
            } else {
                fill(into, &self.receive(from, Op::AllGather)?);
            }
        }
        Ok(())
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.post.begin()?;
        let ranks = self.ranks();
        if to.len() != ranks as usize {
            return Err(self.post.give_up(CollectiveError::Parts { got: to.len(), ranks }));
        }
        for other in self.others() {
            self.send(other, Op::AllToAll, to[other as usize].into())?;
        }
        from.resize_with(ranks as usize, Vec::new);
        for (other, into) in (0..).zip(from.iter_mut()) {
            if other == self.rank {
                fill(into, to[other as usize]);
            } else {
                fill(into, &self.receive(other, Op::AllToAll)?);
            }
        }
        Ok(())
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.post.begin()?;
        let op = Op::AllReduce { values: values.len() };
        let (rank, ranks, values_len) = (self.rank, self.ranks(), values.len());
        let share = |of: u32| share(values_len, ranks, of);
        // Each rank adds up one share of the values, so that all ranks get the bits of one sum.
        for to in self.others() {
            self.send(to, op, to_bytes(&values[share(to)]).into())?;
        }
        let mut parts = Vec::with_capacity(ranks as usize);
        for from in 0..ranks {
            parts.push(if from == rank { to_bytes(&values[share(rank)]).into() } else { self.receive(from, op)? });
        }
        let sums = &mut values[share(rank)];
        add(&parts, sums);
        let sums: Arc<[u8]> = to_bytes(sums).into();
        for to in self.others() {
            self.send(to, op, Arc::clone(&sums))?;
        }
        for from in self.others() {
            let part = self.receive(from, op)?;
            values[share(from)].iter_mut().zip(floats(&part)).for_each(|(into, value)| *into = value);
        }
        Ok(())
    }

    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.post.begin()?;
        self.expect_rank(peer, peer != self.rank)?;
        let op = Op::Exchange { peer };
        self.send(peer, op, mine.into())?;
        fill(theirs, &self.receive(peer, op)?);
        Ok(())
    }

    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.post.begin()?;
        self.expect_rank(root, true)?;
        let op = Op::Broadcast { root };
        // The others send nothing but the operation, so that ranks that name different roots find out.
        let shared: Arc<[u8]> = if self.rank == root { bytes.as_slice().into() } else { Arc::new([]) };
        for to in self.others() {
            self.send(to, op, Arc::clone(&shared))?;
        }
        for from in self.others() {
            let part = self.receive(from, op)?;
            if from == root {
                fill(bytes, &part);
            }
        }
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.post.leave(self.rank);
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads").field("rank", &self.rank).field("ranks", &self.post.ranks()).finish_non_exhaustive()
    }
}

/// Puts `bytes` where others were, in the same memory if there is enough of it.
fn fill(into: &mut Vec<u8>, bytes: &[u8]) {
    into.clear();
    into.extend_from_slice(bytes);
}
