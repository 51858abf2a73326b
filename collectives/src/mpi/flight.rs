//! Messages that are under way. MPI reads and writes their bytes until their requests are done, so that the bytes
//! belong to them, and are leaked where a request never ends.
//!
//! A head is what another rank claims. Memory is taken for the length that is expected, or else for what has come and
//! as much again. What has come is what MPI counted.

use std::sync::Arc;

use gradwire::CollectiveError;

use super::message::{FIRST, HEAD, Head, parts, reach, with_head};
use super::table::{Bits, Calls, Code};
use super::world::ENGINE;
use crate::op::Op;

/// Which of MPI's messages are this engine's operations, and which are alarms.
pub(super) const TAG: i32 = 0;
pub(super) const ALARM_TAG: i32 = 1;

/// What stopped a flight.
#[derive(Debug)]
pub(super) enum Stop {
    /// A function of MPI, and the rank that it was about.
    Mpi { function: &'static str, code: Code, rank: u32 },
    /// Anything else.
    Other(CollectiveError),
}

/// How messages go: the communicator, and the most bytes of one of MPI's messages.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub(super) comm: Bits,
    pub(super) largest: usize,
}

/// A message that is asked for.
pub(super) struct Wanted {
    pub(super) from: u32,
    /// Its bytes come to stand there, in place of those that it has.
    pub(super) buffer: Vec<u8>,
    /// How many bytes there have to be, where this rank knows it.
    pub(super) len: Option<usize>,
}

/// The messages of an operation.
#[derive(Default)]
pub(super) struct Flight {
    sends: Vec<Sending>,
    receives: Vec<Receiving>,
}

struct Sending {
    to: u32,
    first: Vec<u8>,
    bytes: Arc<[u8]>,
    requests: Vec<Bits>,
}

struct Receiving {
    wanted: Wanted,
    first: Vec<u8>,
    requests: Vec<Bits>,
    /// The length, once the first part has come. The buffer is as long as all that came or was asked for.
    len: Option<usize>,
    /// Bytes that came, the head's among them.
    come: usize,
}

fn at(function: &'static str, rank: u32) -> impl FnOnce(Code) -> Stop {
    move |code| Stop::Mpi { function, code, rank }
}

fn engine(reason: String) -> Stop {
    Stop::Other(CollectiveError::Engine { engine: ENGINE, code: None, reason })
}

fn no_memory(len: u64, from: u32) -> Stop {
    engine(format!("there is no memory for a message of {len} bytes of rank {from}"))
}

/// A count for MPI. Parts are never longer than an `int` counts.
fn count(bytes: usize) -> i32 {
    i32::try_from(bytes).unwrap_or(i32::MAX)
}

impl Flight {
    /// Begins to receive a message of a rank.
    ///
    /// # Safety
    ///
    /// MPI is initialised and not finalised, the communicator is whole, and the flight is leaked unless all is done.
    pub(super) unsafe fn receive(&mut self, calls: &dyn Calls, way: Way, wanted: Wanted) -> Result<(), Stop> {
        let (mut first, from) = (vec![0; FIRST], wanted.from);
        // SAFETY: the bytes move into the flight, and keep their address as long as it lives.
        let request = unsafe { calls.receive(first.as_mut_ptr(), count(FIRST), from.cast_signed(), TAG, way.comm) };
        let requests = vec![request.map_err(at("MPI_Irecv", from))?];
        self.receives.push(Receiving { wanted, first, requests, len: None, come: 0 });
        Ok(())
    }

    /// Begins to send a message to a rank.
    ///
    /// # Safety
    ///
    /// As [`Flight::receive`].
    pub(super) unsafe fn send(
        &mut self,
        calls: &dyn Calls,
        way: Way,
        to: u32,
        op: Op,
        bytes: Arc<[u8]>,
    ) -> Result<(), Stop> {
        let with_head = with_head(bytes.len());
        let mut first = Vec::with_capacity(HEAD + with_head);
        first.extend(Head { op, len: bytes.len() as u64 }.to_bytes());
        first.extend(&bytes[..with_head]);
        self.sends.push(Sending { to, first, bytes, requests: Vec::new() });
        let Some(Sending { first, bytes, requests, .. }) = self.sends.last_mut() else { return Ok(()) };
        let rest = parts(with_head..bytes.len(), way.largest).map(|part| &bytes[part]);
        for part in std::iter::once(first.as_slice()).chain(rest) {
            // SAFETY: the bytes are those of the flight, which nobody changes, and which keep their address.
            let request = unsafe { calls.send(part.as_ptr(), count(part.len()), to.cast_signed(), TAG, way.comm) };
            requests.push(request.map_err(at("MPI_Isend", to))?);
        }
        Ok(())
    }

    /// Looks at every request once: whether any of them ended.
    ///
    /// # Safety
    ///
    /// As [`Flight::receive`].
    pub(super) unsafe fn look(&mut self, calls: &dyn Calls, way: Way, op: Op) -> Result<bool, Stop> {
        let mut moved = false;
        for receiving in &mut self.receives {
            moved |= finished(&mut receiving.requests, receiving.wanted.from, |request| {
                // SAFETY: as the caller says. A request that is done is taken out, and not asked for again.
                let bytes = unsafe { calls.received(request) }?;
                receiving.come += bytes.unwrap_or(0);
                Ok(bytes.is_some())
            })?;
            if receiving.requests.is_empty() && !receiving.is_whole() {
                // SAFETY: as the caller says, and nothing of this message is under way.
                unsafe { receiving.go_on(calls, way, op)? };
            }
        }
        for sending in &mut self.sends {
            // SAFETY: as above.
            moved |= finished(&mut sending.requests, sending.to, |request| unsafe { calls.test(request) })?;
        }
        Ok(moved)
    }

    /// The rank that is waited for: one that has to send before one that has to receive. Nothing where all is done.
    pub(super) fn waits_for(&self) -> Option<u32> {
        let receives = self.receives.iter().filter(|one| !one.requests.is_empty()).map(|one| one.wanted.from);
        receives.chain(self.sends.iter().filter(|one| !one.requests.is_empty()).map(|one| one.to)).next()
    }

    /// Whether bytes may be on their way. A message is begun once both sides ask for it; some libraries move it only while
    /// somebody looks.
    pub(super) fn is_moving(&self) -> bool {
        let is_absent = |rank: u32| self.receives.iter().any(|one| one.wanted.from == rank && one.len.is_none());
        self.receives.iter().any(|one| one.len.is_some() && !one.requests.is_empty())
            || self.sends.iter().any(|one| !one.requests.is_empty() && !is_absent(one.to))
    }

    /// The ranks whose messages have not begun to arrive, or that have not taken theirs.
    pub(super) fn pending(&self) -> impl Iterator<Item = u32> + '_ {
        let receives = self.receives.iter().filter(|one| one.len.is_none()).map(|one| one.wanted.from);
        receives.chain(self.sends.iter().filter(|one| !one.requests.is_empty()).map(|one| one.to))
    }

    /// The received messages, in the order of the requests.
    pub(super) fn received(self) -> impl Iterator<Item = (u32, Vec<u8>)> {
        self.receives.into_iter().map(|one| (one.wanted.from, one.wanted.buffer))
    }
}

impl Receiving {
    fn is_whole(&self) -> bool {
        self.len.is_some_and(|len| self.come == HEAD + len)
    }

    /// Receives that were asked for are done: looks at the head if that is new, and begins to receive what follows, as
    /// far as memory is taken for it.
    ///
    /// # Safety
    ///
    /// As [`Flight::receive`], and no request of this message is under way, so that its bytes may move.
    unsafe fn go_on(&mut self, calls: &dyn Calls, way: Way, op: Op) -> Result<(), Stop> {
        let (len, first) = match self.len {
            Some(len) => (len, 0..0),
            None => {
                let len = self.read_head(op)?;
                self.wanted.buffer.clear();
                (len, HEAD..HEAD + with_head(len))
            }
        };
        let Wanted { from, buffer, len: expected } = &mut self.wanted;
        let come = buffer.len() + first.len();
        if self.come != HEAD + come {
            return Err(engine(format!(
                "a message of rank {from} has {len} bytes by its head, and {} of the first {come} came; let every rank \
                 run the same release, and make a new group",
                self.come.saturating_sub(HEAD)
            )));
        }
        let until = if expected.is_some() { len } else { reach(come, len) };
        buffer.try_reserve_exact(until - buffer.len()).map_err(|_| no_memory(len as u64, *from))?;
        buffer.extend_from_slice(&self.first[first]);
        buffer.resize(until, 0);
        self.len = Some(len);
        let start = buffer.as_mut_ptr();
        for part in parts(come..until, way.largest) {
            let (place, from) = (start.wrapping_add(part.start), *from);
            // SAFETY: the place and the bytes after it lie in the buffer, which nobody looks at or changes before all
            // these requests are done.
            let request = unsafe { calls.receive(place, count(part.len()), from.cast_signed(), TAG, way.comm) };
            self.requests.push(request.map_err(at("MPI_Irecv", from))?);
        }
        Ok(())
    }

    /// The length that the head names. Nothing is taken on its word.
    fn read_head(&self, op: Op) -> Result<usize, Stop> {
        let Wanted { from, len: expected, .. } = self.wanted;
        let Some(head) = Head::from_bytes(&self.first) else {
            return Err(engine(format!(
                "a message of rank {from} is none of this engine; let every rank run the same release"
            )));
        };
        if !op.agrees(head.op) {
            let (asked, found) = (op.to_string(), head.op.to_string());
            return Err(Stop::Other(CollectiveError::Mismatch { rank: from, asked, found }));
        }
        if let Some(expected) = expected.filter(|expected| *expected as u64 != head.len) {
            return Err(engine(format!(
                "a message of rank {from} has {} bytes, and {op} needs {expected} of it; let every rank run the same \
                 release, and make a new group",
                head.len
            )));
        }
        // A vector has no more bytes than that.
        isize::try_from(head.len).map(isize::cast_unsigned).map_err(|_| no_memory(head.len, from))
    }
}

/// Takes out the requests that are done, and says whether there were any. Each is asked for once.
fn finished(
    requests: &mut Vec<Bits>,
    rank: u32,
    mut is_done: impl FnMut(&mut Bits) -> Result<bool, Code>,
) -> Result<bool, Stop> {
    let before = requests.len();
    let mut failed = None;
    requests.retain_mut(|request| match is_done(request) {
        Ok(done) => !done,
        Err(code) => {
            failed = failed.or(Some(code));
            false
        }
    });
    failed.map_or(Ok(requests.len() < before), |code| Err(at("MPI_Test", rank)(code)))
}

#[cfg(test)]
mod tests {
    use super::super::message::AHEAD;
    use super::super::stand_in::{StandIn, message};
    use super::*;

    const LARGEST: usize = 1 << 30;

    /// A flight that waits for a message of rank 1, and the calls that it is made with.
    fn waiting(len: Option<usize>) -> (Flight, StandIn) {
        let (mut flight, calls) = (Flight::default(), StandIn::new(2));
        let wanted = Wanted { from: 1, buffer: Vec::new(), len };
        // SAFETY: the stand-in is no library. It writes only while it is asked, and the flight lives until then.
        unsafe { flight.receive(&calls, Way { comm: 0, largest: LARGEST }, wanted) }.expect("a receive");
        (flight, calls)
    }

    fn look(flight: &mut Flight, calls: &StandIn, op: Op, largest: usize) -> Result<bool, Stop> {
        // SAFETY: as above.
        unsafe { flight.look(calls, Way { comm: 0, largest }, op) }
    }

    fn capacity(flight: &Flight) -> usize {
        flight.receives[0].wanted.buffer.capacity()
    }

    #[test]
    fn a_head_takes_no_more_memory_than_has_come_and_some_megabytes() {
        for op in [Op::AllGather, Op::AllToAll, Op::Exchange { peer: 1 }, Op::Broadcast { root: 1 }] {
            let (mut flight, calls) = waiting(None);
            calls.arrives(1, TAG, message(op, 1 << 40, &[1; FIRST - HEAD]));
            assert!(look(&mut flight, &calls, op, LARGEST).expect("a head"));
            assert!(capacity(&flight) <= AHEAD + FIRST, "{op}: {} bytes", capacity(&flight));
            assert_eq!(calls.asked_for(), [AHEAD], "{op}");
            assert!(!look(&mut flight, &calls, op, LARGEST).expect("nothing new"));
            assert!(capacity(&flight) <= AHEAD + FIRST, "{op}: {} bytes", capacity(&flight));
            // Some megabytes have come: as much again is asked for.
            calls.arrives(1, TAG, vec![1; AHEAD]);
            assert!(look(&mut flight, &calls, op, LARGEST).expect("a part"));
            assert!(capacity(&flight) <= 2 * (AHEAD + FIRST), "{op}: {} bytes", capacity(&flight));
            assert_eq!(flight.waits_for(), Some(1));
        }
    }

    /// A part with less in it than there should be is an error, so that no number of them makes memory grow.
    #[test]
    fn parts_that_are_short_take_no_memory() {
        let (op, whole) = (Op::AllGather, FIRST - HEAD);
        let first = |bytes: usize| message(op, 1 << 40, &vec![1; bytes]);
        for (parts, words, most) in [
            (vec![first(0)], "0 of the first 4072 came", 0),
            (vec![first(0)[..20].to_vec()], "0 of the first", 0),
            (vec![first(whole - 1)], "4071 of the first 4072 came", 0),
            (vec![first(whole), vec![]], "4072 of the first 16781288 came", AHEAD + FIRST),
            (vec![first(whole), vec![1; AHEAD - 1]], "16781287 of the first 16781288 came", AHEAD + FIRST),
        ] {
            let (mut flight, calls) = waiting(None);
            parts.into_iter().for_each(|part| calls.arrives(1, TAG, part));
            let looks = (0..3).map(|_| look(&mut flight, &calls, op, LARGEST));
            let stop = looks.filter_map(Result::err).next().expect(words);
            assert!(format!("{stop:?}").contains(words), "{words}: {stop:?}");
            assert!(capacity(&flight) <= most, "{words}: {} bytes", capacity(&flight));
        }
        // The last part is no other.
        let (mut flight, calls) = waiting(None);
        calls.arrives(1, TAG, message(op, FIRST as u64, &vec![1; whole]));
        calls.arrives(1, TAG, vec![1; HEAD - 1]);
        assert!(look(&mut flight, &calls, op, LARGEST).expect("a head"));
        let stop = look(&mut flight, &calls, op, LARGEST).expect_err("a byte is missing");
        assert!(format!("{stop:?}").contains("4095 of the first 4096 came"), "{stop:?}");
    }

    #[test]
    fn a_length_that_no_memory_has_is_an_error_at_once() {
        let (mut flight, calls) = waiting(None);
        calls.arrives(1, TAG, message(Op::AllGather, 1 << 63, &[]));
        let stop = look(&mut flight, &calls, Op::AllGather, LARGEST).expect_err("no such vector");
        assert!(format!("{stop:?}").contains("no memory for a message of 9223372036854775808 bytes"), "{stop:?}");
    }

    #[test]
    fn a_length_that_is_not_the_expected_one_takes_no_memory() {
        let op = Op::AllReduce { values: 100 };
        for len in [0, 199, 201, 1 << 31, 1 << 40, u64::MAX] {
            let (mut flight, calls) = waiting(Some(200));
            calls.arrives(1, TAG, message(op, len, &[]));
            let stop = look(&mut flight, &calls, op, LARGEST).expect_err("another length");
            let Stop::Other(CollectiveError::Engine { reason, code: None, .. }) = stop else { panic!("{stop:?}") };
            let words = ["rank 1", &format!("has {len} bytes"), "needs 200", "the same release", "make a new group"];
            assert!(words.iter().all(|word| reason.contains(word)), "{reason}");
            assert!(capacity(&flight) == 0 && calls.asked_for().is_empty(), "{len}: memory was taken");
        }
    }

    #[test]
    fn what_is_sent_comes_whole() {
        let op = Op::AllGather;
        let lengths = [0, 1, FIRST - HEAD, FIRST, AHEAD + FIRST - HEAD, AHEAD + FIRST, 5 * AHEAD + 7];
        for (len, largest) in lengths.into_iter().flat_map(|len| [1 << 20, LARGEST].map(|largest| (len, largest))) {
            let bytes: Arc<[u8]> = (0..len).map(|at| (at % 251) as u8).collect();
            for expected in [None, Some(len)] {
                let (mut flight, calls) = waiting(expected);
                // SAFETY: as above.
                unsafe { flight.send(&calls, Way { comm: 0, largest }, 1, op, Arc::clone(&bytes)) }.expect("a send");
                let mut stretches = Vec::new();
                calls.sent().into_iter().for_each(|part| calls.arrives(1, TAG, part));
                while flight.waits_for().is_some() {
                    look(&mut flight, &calls, op, largest).expect("what was sent");
                    stretches.push(calls.asked_for());
                }
                let label = format!("{len} bytes, {largest} at most, {expected:?} expected: {stretches:?}");
                let (few, at_once) = (len <= FIRST + AHEAD - HEAD, expected.is_some());
                assert_eq!(stretches.iter().filter(|asked| !asked.is_empty()).count() <= 1, few || at_once, "{label}");
                assert!(flight.receives[0].wanted.buffer[..] == bytes[..], "{label}");
            }
        }
    }
}
