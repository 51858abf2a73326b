//! Messages that are under way. MPI reads and writes their bytes until their requests are done, so that the bytes
//! belong to them, and are leaked where a request never ends.

use std::sync::Arc;

use gradwire::CollectiveError;

use super::message::{FIRST, HEAD, Head, parts};
use super::table::{Bits, Calls, Code};
use super::world::ENGINE;
use crate::op::Op;

/// Which of MPI's messages are this engine's operations, and which are alarms.
pub(super) const TAG: i32 = 0;
pub(super) const ALARM_TAG: i32 = 1;

/// What stopped a flight.
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
    from: u32,
    first: Vec<u8>,
    buffer: Vec<u8>,
    requests: Vec<Bits>,
    /// Whether the first part has come, and with it the length.
    known: bool,
}

fn at(function: &'static str, rank: u32) -> impl FnOnce(Code) -> Stop {
    move |code| Stop::Mpi { function, code, rank }
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
    pub(super) unsafe fn receive(
        &mut self,
        calls: &dyn Calls,
        way: Way,
        from: u32,
        buffer: Vec<u8>,
    ) -> Result<(), Stop> {
        let mut first = vec![0; FIRST];
        // SAFETY: the bytes move into the flight, and stay where they are as long as it lives.
        let request = unsafe { calls.receive(first.as_mut_ptr(), count(FIRST), from.cast_signed(), TAG, way.comm) };
        let requests = vec![request.map_err(at("MPI_Irecv", from))?];
        self.receives.push(Receiving { from, first, buffer, requests, known: false });
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
        let (with_head, rest) = parts(bytes.len(), way.largest);
        let mut first = Vec::with_capacity(HEAD + with_head);
        first.extend(Head { op, len: bytes.len() as u64 }.to_bytes());
        first.extend(&bytes[..with_head]);
        self.sends.push(Sending { to, first, bytes, requests: Vec::new() });
        let Some(Sending { first, bytes, requests, .. }) = self.sends.last_mut() else { return Ok(()) };
        for part in std::iter::once(first.as_slice()).chain(rest.map(|part| &bytes[part])) {
            // SAFETY: the bytes are those of the flight, which nobody changes, and which stay where they are.
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
            // SAFETY: as the caller says.
            moved |= unsafe { finished(calls, &mut receiving.requests, receiving.from)? };
            if receiving.requests.is_empty() && !receiving.known {
                // SAFETY: as the caller says.
                unsafe { receiving.go_on(calls, way, op)? };
            }
        }
        for sending in &mut self.sends {
            // SAFETY: as the caller says.
            moved |= unsafe { finished(calls, &mut sending.requests, sending.to)? };
        }
        Ok(moved)
    }

    /// The rank that is waited for: one that has to send before one that has to receive. Nothing where all is done.
    pub(super) fn waits_for(&self) -> Option<u32> {
        let receives = self.receives.iter().filter(|one| !one.requests.is_empty()).map(|one| one.from);
        receives.chain(self.sends.iter().filter(|one| !one.requests.is_empty()).map(|one| one.to)).next()
    }

    /// Whether bytes may be on their way. A message is begun once both sides ask for it; some libraries move it only while
    /// somebody looks.
    pub(super) fn is_moving(&self) -> bool {
        let is_absent = |rank: u32| self.receives.iter().any(|one| one.from == rank && !one.known);
        self.receives.iter().any(|one| one.known && !one.requests.is_empty())
            || self.sends.iter().any(|one| !one.requests.is_empty() && !is_absent(one.to))
    }

    /// The ranks whose messages have not begun to arrive, or that have not taken theirs.
    pub(super) fn pending(&self) -> impl Iterator<Item = u32> + '_ {
        let receives = self.receives.iter().filter(|one| !one.known).map(|one| one.from);
        receives.chain(self.sends.iter().filter(|one| !one.requests.is_empty()).map(|one| one.to))
    }

    /// What was received, in the order in which it was asked for.
    pub(super) fn received(self) -> impl Iterator<Item = (u32, Vec<u8>)> {
        self.receives.into_iter().map(|one| (one.from, one.buffer))
    }
}

impl Receiving {
    /// The first part has come: looks at its head, and begins to receive the others.
    ///
    /// # Safety
    ///
    /// As [`Flight::receive`].
    unsafe fn go_on(&mut self, calls: &dyn Calls, way: Way, op: Op) -> Result<(), Stop> {
        let other = |reason: String| Stop::Other(CollectiveError::Engine { engine: ENGINE, code: None, reason });
        let from = self.from;
        let Some(head) = Head::from_bytes(&self.first) else {
            return Err(other(format!(
                "a message of rank {from} is none of this engine; let every rank run the same release"
            )));
        };
        if !op.agrees(head.op) {
            let (asked, found) = (op.to_string(), head.op.to_string());
            return Err(Stop::Other(CollectiveError::Mismatch { rank: from, asked, found }));
        }
        self.buffer.clear();
        let len = usize::try_from(head.len).ok().filter(|len| self.buffer.try_reserve_exact(*len).is_ok());
        let Some(len) = len else {
            return Err(other(format!("there is no memory for a message of {} bytes of rank {from}", head.len)));
        };
        self.buffer.resize(len, 0);
        self.known = true;
        let (with_head, rest) = parts(len, way.largest);
        self.buffer[..with_head].copy_from_slice(&self.first[HEAD..HEAD + with_head]);
        for part in rest {
            let part = &mut self.buffer[part];
            // SAFETY: the bytes are the flight's own, are not looked at before all is done, and stay where they are.
            let request =
                unsafe { calls.receive(part.as_mut_ptr(), count(part.len()), from.cast_signed(), TAG, way.comm) };
            self.requests.push(request.map_err(at("MPI_Irecv", from))?);
        }
        Ok(())
    }
}

/// Takes out the requests that are done, and says whether there were any.
///
/// # Safety
///
/// The requests are under way.
unsafe fn finished(calls: &dyn Calls, requests: &mut Vec<Bits>, rank: u32) -> Result<bool, Stop> {
    let before = requests.len();
    let mut failed = None;
    requests.retain_mut(|request| {
        // SAFETY: as the caller says. A request that is done is taken out, and not asked for again.
        match unsafe { calls.test(request) } {
            Ok(done) => !done,
            Err(code) => {
                failed = failed.or(Some(code));
                false
            }
        }
    });
    failed.map_or(Ok(requests.len() < before), |code| Err(at("MPI_Test", rank)(code)))
}
