//! A group of processes: its communicator, the alarms of its ranks, and waits that end.

use std::fmt::Display;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gradwire::CollectiveError;

use super::flight::{ALARM_TAG, Flight, Stop, Wanted, Way};
use super::message::{ALARM, Alarm};
use super::table::{Bits, Code};
use super::world::{ENGINE, World};
use crate::op::Op;
use crate::pause::{SPIN, pause};
use crate::sent::Sent;

/// How long a rank that fails or leaves sees to it that its alarms go out.
const PARTING: Duration = Duration::from_secs(1);

pub(super) struct Group {
    world: &'static World,
    way: Way,
    pub(super) rank: u32,
    pub(super) ranks: u32,
    pub(super) bytes: Sent,
    deadline: Duration,
    /// The alarm of each rank that has not come yet. MPI may write into it as long as the process lives.
    alarms: Vec<Option<ManuallyDrop<Waiting>>>,
    /// Messages of operations, to and from each rank.
    sent: Vec<u64>,
    received: Vec<u64>,
    /// How many messages a rank sent that has left.
    left: Vec<Option<u64>>,
    /// The first failure, which every later call gives again.
    failed: Option<CollectiveError>,
    over: bool,
}

/// An alarm that is under way.
struct Waiting {
    bytes: Vec<u8>,
    request: Bits,
}

impl Group {
    /// A group of all processes, over a communicator of its own.
    pub(super) fn new(world: &'static World, deadline: Duration, largest: usize) -> Result<Self, CollectiveError> {
        let whole = {
            let (calls, _life) = world.calls();
            // SAFETY: `World::get` initialised MPI, and the communicator is the library's own.
            let number = unsafe { calls.size(calls.world()) }.map_err(|code| world.engine("MPI_Comm_size", code))?;
            u32::try_from(number).unwrap_or(1).max(1)
        };
        world.expect_ranks(whole)?;
        // What a group that was not made leaves under way forbids MPI's end.
        Self::over(world, whole, deadline, largest).inspect_err(|_| world.calls().1.broken = true)
    }

    /// The group of all processes of a communicator.
    fn over(world: &'static World, whole: u32, deadline: Duration, largest: usize) -> Result<Self, CollectiveError> {
        let comm = duplicate(world, whole, deadline)?;
        let (calls, mut life) = world.calls();
        // SAFETY: the communicator is a new one, and MPI is initialised.
        let rank = unsafe {
            calls.return_errors(comm).map_err(|code| world.engine("MPI_Comm_set_errhandler", code))?;
            calls.rank(comm).map_err(|code| world.engine("MPI_Comm_rank", code))?
        };
        let rank = rank.cast_unsigned();
        let mut alarms = Vec::with_capacity(whole as usize);
        for from in 0..whole {
            let mut bytes = vec![0; ALARM];
            alarms.push(if from == rank {
                None
            } else {
                // SAFETY: nobody uses the bytes before the request is done, and they are leaked if it never is.
                let request =
                    unsafe { calls.receive(bytes.as_mut_ptr(), ALARM as i32, from.cast_signed(), ALARM_TAG, comm) };
                let request = request.map_err(|code| world.engine("MPI_Irecv", code));
                Some(ManuallyDrop::new(Waiting { request: request?, bytes }))
            });
        }
        life.groups += 1;
        drop(life);
        let none = vec![0; whole as usize];
        Ok(Self {
            world,
            way: Way { comm, largest },
            rank,
            ranks: whole,
            bytes: Sent::new(whole),
            deadline,
            alarms,
            sent: none.clone(),
            received: none,
            left: vec![None; whole as usize],
            failed: None,
            over: false,
        })
    }

    /// Fails where an earlier operation did.
    pub(super) fn begin(&self) -> Result<(), CollectiveError> {
        self.failed.as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Sends messages and receives others, and waits for all of them. What comes is in the order of `into`, in the
    /// buffers that stand there.
    pub(super) fn pass(
        &mut self,
        op: Op,
        out: impl IntoIterator<Item = (u32, Arc<[u8]>)>,
        into: impl IntoIterator<Item = Wanted>,
    ) -> Result<Vec<(u32, Vec<u8>)>, CollectiveError> {
        self.begin()?;
        // Whatever stops this function, the flight is leaked unless all its requests are done.
        let mut flight = ManuallyDrop::new(Flight::default());
        match self.fly(op, out, into, &mut flight) {
            Ok(()) => {
                let received: Vec<_> = ManuallyDrop::into_inner(flight).received().collect();
                received.iter().for_each(|(from, _)| self.received[*from as usize] += 1);
                Ok(received)
            }
            Err(Stop::Mpi { function, code, rank }) => {
                let error = self.explain(&op, function, code, rank);
                Err(self.fail(error))
            }
            Err(Stop::Other(error)) => Err(self.fail(error)),
        }
    }

    fn fly(
        &mut self,
        op: Op,
        out: impl IntoIterator<Item = (u32, Arc<[u8]>)>,
        into: impl IntoIterator<Item = Wanted>,
        flight: &mut ManuallyDrop<Flight>,
    ) -> Result<(), Stop> {
        let (world, way) = (self.world, self.way);
        {
            let (calls, _life) = world.calls();
            for wanted in into {
                // SAFETY: the group is whole, and the caller leaks the flight.
                unsafe { flight.receive(calls, way, wanted)? };
            }
            for (to, bytes) in out {
                self.sent[to as usize] += 1;
                self.bytes.add(to, bytes.len());
                // SAFETY: as above.
                unsafe { flight.send(calls, way, to, op, bytes)? };
            }
        }
        let mut moved = Instant::now();
        loop {
            let progress = {
                let (calls, _life) = world.calls();
                // SAFETY: as above.
                unsafe { flight.look(calls, way, op)? }
            };
            let Some(rank) = flight.waits_for() else { return Ok(()) };
            if progress {
                moved = Instant::now();
                continue;
            }
            let waited = moved.elapsed();
            if waited > SPIN {
                self.listen(&op)?;
                self.expect_present(op, flight)?;
                if waited > self.deadline {
                    let asked = op.to_string();
                    return Err(Stop::Other(CollectiveError::Late { rank, asked, waited: self.deadline }));
                }
            }
            // A sleep would slow a message that moves while somebody looks.
            if flight.is_moving() { std::thread::yield_now() } else { pause(waited) }
        }
    }

    /// Takes the alarms that have come.
    fn listen(&mut self, asked: &dyn Display) -> Result<(), Stop> {
        let world = self.world;
        let (calls, _life) = world.calls();
        for (rank, (slot, left)) in (0..).zip(self.alarms.iter_mut().zip(&mut self.left)) {
            // SAFETY: the request is under way: one that is done leaves its place.
            match slot.as_mut().map_or(Ok(false), |waiting| unsafe { calls.test(&mut waiting.request) }) {
                Ok(false) => continue,
                Ok(true) => {}
                Err(code) => {
                    *slot = None;
                    return Err(Stop::Mpi { function: "MPI_Test", code, rank });
                }
            }
            let Some(waiting) = slot.take().map(ManuallyDrop::into_inner) else { continue };
            match Alarm::from_bytes(&waiting.bytes) {
                Some(Alarm::Leaves { sent }) => *left = Some(sent),
                Some(Alarm::Failed(error)) => return Err(Stop::Other(error)),
                None => {
                    return Err(Stop::Other(CollectiveError::Left { rank, asked: asked.to_string() }));
                }
            }
        }
        Ok(())
    }

    /// Fails where a rank has left that this operation needs. Its earlier messages still arrive.
    fn expect_present(&self, op: Op, flight: &Flight) -> Result<(), Stop> {
        let gone = |rank: &u32| self.left[*rank as usize].is_some_and(|sent| sent <= self.received[*rank as usize]);
        match flight.pending().find(gone) {
            Some(rank) => Err(Stop::Other(CollectiveError::Left { rank, asked: op.to_string() })),
            None => Ok(()),
        }
    }

    fn explain(&self, asked: &dyn Display, function: &str, code: Code, rank: u32) -> CollectiveError {
        let (calls, _life) = self.world.calls();
        // SAFETY: MPI is initialised and not finalised.
        if unsafe { calls.is_process_failure(code) } {
            return CollectiveError::Left { rank, asked: asked.to_string() };
        }
        self.world.engine(function, code)
    }

    /// Ends the group with an error, which the other ranks are told.
    pub(super) fn fail(&mut self, error: CollectiveError) -> CollectiveError {
        if let Some(first) = &self.failed {
            return first.clone();
        }
        self.failed = Some(error.clone());
        self.part(|_| Alarm::Failed(error.clone()));
        error
    }

    /// Tells every other rank something, and gives up the group without waiting for them.
    fn part(&mut self, alarm: impl Fn(u32) -> Alarm) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        {
            let (_, mut life) = self.world.calls();
            life.groups = life.groups.saturating_sub(1);
            life.broken = true;
        }
        let mut sends = self.send_alarms(alarm);
        let start = Instant::now();
        while !self.gone(&mut sends) && start.elapsed() < PARTING {
            pause(start.elapsed());
        }
    }

    /// Ends the group on all ranks: waits until each has come to its end, and finalises MPI if this was the last group.
    pub(super) fn finish(&mut self) -> Result<(), CollectiveError> {
        self.begin()?;
        let asked = "the end of the group";
        let sent = self.sent.clone();
        let mut sends = self.send_alarms(|rank| Alarm::Leaves { sent: sent[rank as usize] });
        let start = Instant::now();
        loop {
            match self.listen(&asked) {
                Ok(()) => {}
                Err(Stop::Mpi { function, code, rank }) => {
                    let error = self.explain(&asked, function, code, rank);
                    return Err(self.fail(error));
                }
                Err(Stop::Other(error)) => return Err(self.fail(error)),
            }
            let sent = self.gone(&mut sends);
            let here = (0..self.ranks).find(|rank| *rank != self.rank && self.left[*rank as usize].is_none());
            let Some(rank) = here.or((!sent).then_some(self.rank)) else { break };
            if start.elapsed() > self.deadline {
                return Err(self.fail(CollectiveError::Late { rank, asked: asked.to_owned(), waited: self.deadline }));
            }
            pause(start.elapsed());
        }
        self.over = true;
        self.failed = Some(CollectiveError::Engine {
            engine: ENGINE,
            code: None,
            reason: "the group has ended; make a new one".to_owned(),
        });
        {
            let (calls, mut life) = self.world.calls();
            life.groups = life.groups.saturating_sub(1);
            // SAFETY: nothing is under way over the communicator, which is this group's own.
            unsafe { calls.free(self.way.comm) }.map_err(|code| self.world.engine("MPI_Comm_free", code))?;
        }
        self.world.end()
    }

    /// Begins to send an alarm to every other rank. What cannot be sent is left out: that rank has its deadline.
    fn send_alarms(&self, alarm: impl Fn(u32) -> Alarm) -> Vec<ManuallyDrop<Waiting>> {
        let (calls, _life) = self.world.calls();
        let others = (0..self.ranks).filter(|rank| *rank != self.rank);
        let send = |rank: u32| {
            let bytes = alarm(rank).to_bytes();
            // SAFETY: nobody changes the bytes before the request is done, and they are leaked if it never is.
            let request =
                unsafe { calls.send(bytes.as_ptr(), ALARM as i32, rank.cast_signed(), ALARM_TAG, self.way.comm) };
            request.ok().map(|request| ManuallyDrop::new(Waiting { bytes, request }))
        };
        others.filter_map(send).collect()
    }

    /// Whether all alarms have gone out.
    fn gone(&self, sends: &mut Vec<ManuallyDrop<Waiting>>) -> bool {
        let (calls, _life) = self.world.calls();
        let mut under_way = Vec::new();
        for mut one in sends.drain(..) {
            // SAFETY: the request is under way: one that is done is not asked for again.
            match unsafe { calls.test(&mut one.request) } {
                Ok(false) => under_way.push(one),
                Ok(true) | Err(_) => drop(ManuallyDrop::into_inner(one)),
            }
        }
        *sends = under_way;
        sends.is_empty()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let sent = self.sent.clone();
        self.part(|rank| Alarm::Leaves { sent: sent[rank as usize] });
    }
}

/// A communicator of this group's own, so that its messages meet no others.
fn duplicate(world: &'static World, ranks: u32, deadline: Duration) -> Result<Bits, CollectiveError> {
    // MPI writes there when it is done, however late.
    let place: *mut Bits = Box::leak(Box::new(0));
    let failed = |code| world.engine("MPI_Comm_idup", code);
    let mut request = {
        let (calls, _life) = world.calls();
        // SAFETY: MPI is initialised, the place is never freed before the request is done, and nobody looks at it.
        unsafe { calls.duplicate(calls.world(), place) }.map_err(failed)?
    };
    let start = Instant::now();
    loop {
        let (calls, life) = world.calls();
        // SAFETY: the request is under way.
        if unsafe { calls.test(&mut request) }.map_err(failed)? {
            // SAFETY: the place is of a box of this function, and MPI is done with it.
            return Ok(calls.duplicated(*unsafe { Box::from_raw(place) }));
        }
        drop(life);
        if start.elapsed() > deadline {
            let waited = deadline.as_secs_f64();
            let reason = format!(
                "not all of {ranks} ranks came to make a group within {waited} s; let every rank open it, or set a \
                 longer deadline"
            );
            return Err(CollectiveError::Engine { engine: ENGINE, code: None, reason });
        }
        pause(start.elapsed());
    }
}
