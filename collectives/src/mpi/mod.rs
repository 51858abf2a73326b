//! The engine whose ranks are processes under MPI.

mod flight;
mod group;
mod message;
mod table;
mod world;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gradwire::{Collective, CollectiveError};

use self::flight::Wanted;
use self::group::Group;
use self::world::World;
use crate::op::Op;
use crate::sent::Sent;
use crate::sum::{add, share, to_bytes};

/// What an [`Mpi`] group is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpiSettings {
    /// The file of the MPI library, as `/opt/openmpi/lib/libmpi.so`. Without it, the environment's `GRADWIRE_MPI` is
    /// taken; without that, the names under which OpenMPI and MPICH install it are tried, those of the launcher that
    /// started the process first.
    ///
    /// A process has one MPI: only the first group's counts.
    pub library: Option<PathBuf>,
    /// The longest time that a call waits while no message arrives or leaves; then it fails with
    /// [`CollectiveError::Late`]. 5 minutes by default.
    ///
    /// It has to be longer than what ranks compute between two calls may differ by.
    pub deadline: Duration,
    /// Most bytes of one of MPI's messages, at least 1; longer ones are split. 2^30 by default, and 2^31 - 1 at most,
    /// since MPI counts in an `int`. The same on every rank.
    pub largest: usize,
}

impl Default for MpiSettings {
    fn default() -> Self {
        Self { library: None, deadline: Duration::from_secs(300), largest: 1 << 30 }
    }
}

/// A rank of a group whose ranks are processes, which an MPI launcher started.
///
/// The library is found at run time: OpenMPI, MPICH and those that share its binary interface (Intel MPI, MVAPICH, Cray
/// MPICH), and libraries with the binary interface of MPI 5.0. One build runs on all of them. [`MpiSettings`] has the
/// order of the search.
///
/// - Results have the same bits as with [`Threads`](crate::Threads): a sum is added in the order of ranks, by the same
///   code. MPI's own all-reduce is not used, since its order is the library's.
/// - A group has a communicator of its own, so that its messages meet none of the program's.
/// - **Deadline**: no call waits longer than [`MpiSettings::deadline`] without a message. Opening is the exception:
///   MPI's own start waits for all processes.
/// - **Memory**: a sum takes memory for its own values. For a message whose length its sender alone knows, a rank takes
///   16 MiB, and then as much again as has come of it, whatever length the sender names.
/// - **Failure**: the rank that notices tells the others, so that each gives the same error. MPI may still write into
///   messages that were under way, so their memory is never freed, and MPI is not finalised any more. The launcher may
///   report that, and end the job.
/// - **A rank that ends**: its launcher ends the job, unless it was told not to. Under OpenMPI 5 with
///   `mpirun --with-ft ulfm` the others get [`CollectiveError::Left`].
/// - **End**: call [`Mpi::finish`] on every rank. A group that is dropped without it is left, as by a panic.
/// - **Threads**: a handle may move between threads. Calls into MPI are made one at a time. A program that also calls
///   MPI itself, from other threads, has to initialise it with `MPI_THREAD_MULTIPLE` before it opens a group.
///
/// Source: MPI Forum, "MPI: A Message-Passing Interface Standard", version 4.1, chapters 3 and 7, and version 5.0,
/// chapter 20.
///
/// # Example
///
/// ```no_run
/// use gradwire_collectives::{Collective, CollectiveError, Mpi, MpiSettings};
///
/// // mpirun -np 4 target/release/train
/// let mut group = Mpi::open(&MpiSettings::default())?;
/// let mut values = [group.rank() as f32];
/// group.all_reduce_sum(&mut values)?;
/// assert_eq!(values, [6.0]);
/// group.finish()?;
/// # Ok::<(), CollectiveError>(())
/// ```
pub struct Mpi(Group);

impl Mpi {
    /// A group of all processes that the launcher started. Every rank opens it, with the same settings.
    ///
    /// The first group of a process initialises MPI, unless the program has done that.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Unavailable`] if no MPI library is found, if the library is not the launcher's, or
    /// if MPI was finalised; [`CollectiveError::Engine`] if MPI fails, not all ranks open the group within the
    /// deadline, or [`MpiSettings::largest`] is out of its range.
    pub fn open(settings: &MpiSettings) -> Result<Self, CollectiveError> {
        let MpiSettings { library, deadline, largest } = settings;
        if *largest == 0 || *largest > i32::MAX as usize {
            let reason =
                format!("messages of {largest} bytes cannot be made; MpiSettings::largest is 1 to {}", i32::MAX);
            return Err(CollectiveError::Engine { engine: world::ENGINE, code: None, reason });
        }
        let world = World::get(library.as_deref())?;
        Ok(Self(Group::new(world, *deadline, *largest)?))
    }

    /// Ends the group, on every rank. The last group of a process finalises MPI, where this crate initialised it: then
    /// no further group can be opened.
    ///
    /// # Errors
    ///
    /// As the contract of [`Collective`] says: a rank failed, or did not come to its end within the deadline.
    pub fn finish(mut self) -> Result<(), CollectiveError> {
        self.0.finish()
    }

    /// The bytes that this rank sends, counted from the group's beginning.
    #[must_use]
    pub fn sent(&self) -> Sent {
        self.0.bytes.clone()
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let (rank, ranks) = (self.0.rank, self.0.ranks);
        (1..ranks).map(move |far| (rank + far) % ranks)
    }

    /// Gives `part(r)` to every other rank `r`, and receives what each had for this one, in `from[r]`: `len(r)` bytes,
    /// where that is known.
    fn with_all(
        &mut self,
        op: Op,
        mut part: impl FnMut(u32) -> Arc<[u8]>,
        from: &mut [Vec<u8>],
        len: impl Fn(u32) -> Option<usize>,
    ) -> Result<(), CollectiveError> {
        let out = self.others().map(|to| (to, part(to)));
        let wanted = self.others().map(|rank| {
            let buffer = std::mem::take(&mut from[rank as usize]);
            Wanted { from: rank, buffer, len: len(rank) }
        });
        for (rank, bytes) in self.0.pass(op, out, wanted)? {
            from[rank as usize] = bytes;
        }
        Ok(())
    }

    /// Refuses a rank that is not in the group, on behalf of all ranks, which would wait for this one.
    fn expect_rank(&mut self, got: u32, allowed: bool) -> Result<(), CollectiveError> {
        let ranks = self.0.ranks;
        if got < ranks && allowed { Ok(()) } else { Err(self.0.fail(CollectiveError::Rank { got, ranks })) }
    }
}

impl Collective for Mpi {
    fn rank(&self) -> u32 {
        self.0.rank
    }

    fn ranks(&self) -> u32 {
        self.0.ranks
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.0.begin()?;
        all.resize_with(self.ranks() as usize, Vec::new);
        let shared: Arc<[u8]> = mine.into();
        fill(&mut all[self.rank() as usize], mine);
        self.with_all(Op::AllGather, |_| Arc::clone(&shared), all, |_| None)
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.0.begin()?;
        let ranks = self.ranks();
        if to.len() != ranks as usize {
            return Err(self.0.fail(CollectiveError::Parts { got: to.len(), ranks }));
        }
        from.resize_with(ranks as usize, Vec::new);
        fill(&mut from[self.rank() as usize], to[self.rank() as usize]);
        self.with_all(Op::AllToAll, |rank| to[rank as usize].into(), from, |_| None)
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.0.begin()?;
        let op = Op::AllReduce { values: values.len() };
        let (rank, ranks, len) = (self.rank(), self.ranks(), values.len());
        let share = |of: u32| share(len, ranks, of);
        let mut parts = vec![Vec::new(); ranks as usize];
        parts[rank as usize] = to_bytes(&values[share(rank)]);
        let own = |_| Some(4 * share(rank).len());
        self.with_all(op, |to| to_bytes(&values[share(to)]).into(), &mut parts, own)?;
        add(&parts, &mut values[share(rank)]);
        let sums: Arc<[u8]> = to_bytes(&values[share(rank)]).into();
        parts[rank as usize] = sums.to_vec();
        self.with_all(op, |_| Arc::clone(&sums), &mut parts, |from| Some(4 * share(from).len()))?;
        for (from, part) in (0..).zip(&parts) {
            values[share(from)].iter_mut().zip(crate::sum::floats(part)).for_each(|(into, value)| *into = value);
        }
        Ok(())
    }

    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.0.begin()?;
        self.expect_rank(peer, peer != self.rank())?;
        let out = [(peer, Arc::from(mine))];
        let wanted = [Wanted { from: peer, buffer: std::mem::take(theirs), len: None }];
        for (_, bytes) in self.0.pass(Op::Exchange { peer }, out, wanted)? {
            *theirs = bytes;
        }
        Ok(())
    }

    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.0.begin()?;
        self.expect_rank(root, true)?;
        // The others send nothing but the operation, so that ranks that name different roots find out.
        let own = self.rank();
        let shared: Arc<[u8]> = if own == root { bytes.as_slice().into() } else { Arc::new([]) };
        let mut from = vec![Vec::new(); self.ranks() as usize];
        if own != root {
            from[root as usize] = std::mem::take(bytes);
        }
        let len = |rank| (rank != root).then_some(0);
        self.with_all(Op::Broadcast { root }, |_| Arc::clone(&shared), &mut from, len)?;
        if own != root {
            *bytes = std::mem::take(&mut from[root as usize]);
        }
        Ok(())
    }
}

impl fmt::Debug for Mpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mpi").field("rank", &self.0.rank).field("ranks", &self.0.ranks).finish_non_exhaustive()
    }
}

/// Puts `bytes` where others were, in the same memory if there is enough of it.
fn fill(into: &mut Vec<u8>, bytes: &[u8]) {
    into.clear();
    into.extend_from_slice(bytes);
}

#[cfg(test)]
mod stand_in;

#[cfg(test)]
mod tests {
    use super::flight::TAG;
    use super::stand_in::{StandIn, message};
    use super::*;

    /// Rank 0 of two, with the messages of rank 1 that will come.
    fn beside(messages: impl IntoIterator<Item = Vec<u8>>) -> Mpi {
        let calls = StandIn::new(2);
        messages.into_iter().for_each(|message| calls.arrives(1, TAG, message));
        let world = World::of(Box::new(calls));
        Mpi(Group::new(world, Duration::from_secs(5), 1 << 30).expect("a group"))
    }

    #[test]
    fn a_sum_takes_the_shares_that_it_expects() {
        let op = Op::AllReduce { values: 99 };
        let shares = [to_bytes(&[2.0; 50]), to_bytes(&[3.0; 49])];
        let mut group = beside(shares.map(|share| message(op, share.len() as u64, &share)));
        let mut values = [1.0; 99];
        group.all_reduce_sum(&mut values).expect("a sum");
        assert_eq!(values, [3.0; 99]);
    }

    #[test]
    fn a_length_that_a_rank_knows_is_the_one_that_comes() {
        let sum = Op::AllReduce { values: 99 };
        let share = message(sum, 200, &to_bytes(&[2.0; 50]));
        let root = Op::Broadcast { root: 0 };
        for (label, messages, call, words) in [
            ("a share", vec![message(sum, 1 << 40, &[])], sum, "has 1099511627776 bytes"),
            ("a sum", vec![share, message(sum, 200, &[0; 200])], sum, "has 200 bytes"),
            ("an answer to a root", vec![message(root, 1 << 40, &[])], root, "has 1099511627776 bytes"),
        ] {
            let mut group = beside(messages);
            let made = match call {
                Op::Broadcast { root } => group.broadcast(root, &mut b"mine".to_vec()),
                _ => group.all_reduce_sum(&mut [1.0; 99]),
            };
            let error = made.expect_err(label);
            let CollectiveError::Engine { reason, .. } = &error else { panic!("{label}: {error}") };
            assert!(reason.contains("rank 1") && reason.contains(words), "{label}: {reason}");
            assert_eq!(group.all_gather(&[], &mut Vec::new()), Err(error), "{label}: the group goes on");
        }
    }

    #[test]
    fn lengths_that_an_int_does_not_count_are_refused() {
        for largest in [0, 1 << 31] {
            let error = Mpi::open(&MpiSettings { largest, ..MpiSettings::default() }).expect_err("no such message");
            assert!(
                matches!(&error, CollectiveError::Engine { reason, .. } if reason.contains("2147483647")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_handle_may_move_to_another_thread() {
        fn moves<T: Send>() {}
        moves::<Mpi>();
    }
}
