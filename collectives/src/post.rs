//! The state that the ranks of a group share: a queue of messages for each pair of ranks, and the operation of each
//! rank.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gradwire::CollectiveError;

use crate::op::Op;

struct Message {
    op: Op,
    bytes: Arc<[u8]>,
    /// When a throttled link delivers it.
    due: Option<Instant>,
}

/// What one rank is doing.
#[derive(Clone, Copy, Default)]
struct Place {
    /// The rank whose message this one sleeps for, and in which operation.
    waits: Option<(u32, Op)>,
    left: bool,
}

struct State {
    /// Messages of rank `s` for rank `r`, at `s * ranks + r`, in the order in which they were sent.
    boxes: Vec<VecDeque<Message>>,
    places: Vec<Place>,
    /// The first failure, which every later call gives again.
    failed: Option<CollectiveError>,
}

/// The post office of a group.
pub(crate) struct Post {
    ranks: u32,
    /// How long a call waits for a message.
    deadline: Duration,
    state: Mutex<State>,
    /// One per rank, so that a message wakes nobody but the rank that it is for.
    wake: Vec<Condvar>,
}

impl Post {
    pub(crate) fn new(ranks: u32, deadline: Duration) -> Self {
        let count = ranks as usize;
        let state = State {
            boxes: (0..count * count).map(|_| VecDeque::new()).collect(),
            places: vec![Place::default(); count],
            failed: None,
        };
        Self { ranks, deadline, state: Mutex::new(state), wake: (0..count).map(|_| Condvar::new()).collect() }
    }

    pub(crate) fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Whether an operation may begin: none may after a failure.
    ///
    /// An operation that has begun goes on while it finds messages, and fails if it would have to wait.
    pub(crate) fn begin(&self) -> Result<(), CollectiveError> {
        self.lock().failed.as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Puts a message of rank `from` into the box for rank `to`, which may take it when it is due. Does not wait.
    pub(crate) fn send(
        &self,
        from: u32,
        to: u32,
        op: Op,
        bytes: Arc<[u8]>,
        due: Option<Instant>,
    ) -> Result<(), CollectiveError> {
        let mut state = self.lock();
        if state.places[to as usize].left {
            return Err(self.fail(&mut state, CollectiveError::Left { rank: to, asked: op.to_string() }));
        }
        state.boxes[self.at(from, to)].push_back(Message { op, bytes, due });
        self.wake[to as usize].notify_one();
        Ok(())
    }

    /// Takes the next message of rank `from` for rank `to`, and waits for it if it has yet to come, until the deadline.
    pub(crate) fn receive(&self, from: u32, to: u32, op: Op) -> Result<Arc<[u8]>, CollectiveError> {
        let start = Instant::now();
        let mut state = self.lock();
        loop {
            if let Some(message) = state.boxes[self.at(from, to)].pop_front() {
                if op.agrees(message.op) {
                    drop(state);
                    if let Some(due) = message.due {
                        std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    }
                    return Ok(message.bytes);
                }
                return Err(self.mismatch(&mut state, from, op, message.op));
            }
            // What a rank sent before a failure, or before it left, counts. So these come second.
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if state.places[from as usize].left {
                return Err(self.fail(&mut state, CollectiveError::Left { rank: from, asked: op.to_string() }));
            }
            state.places[to as usize].waits = Some((from, op));
            if let Some(found) = self.stuck(&state, from, to) {
                return Err(self.mismatch(&mut state, from, op, found));
            }
            let left = self.deadline.saturating_sub(start.elapsed());
            if left.is_zero() {
                let late = CollectiveError::Late {
                    rank: Self::last(&state, from, self.ranks),
                    asked: op.to_string(),
                    waited: self.deadline,
                };
                state.places[to as usize].waits = None;
                return Err(self.fail(&mut state, late));
            }
            (state, _) = self.wake[to as usize].wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
            state.places[to as usize].waits = None;
        }
    }

    /// Makes every call of every rank fail from now on, with the first error there was, which it gives back.
    pub(crate) fn give_up(&self, error: CollectiveError) -> CollectiveError {
        self.fail(&mut self.lock(), error)
    }

    /// Marks a rank as gone.
    pub(crate) fn leave(&self, rank: u32) {
        let mut state = self.lock();
        state.places[rank as usize].left = true;
        self.wake.iter().for_each(Condvar::notify_one);
    }

    /// The operation in which rank `from` waits, if it waits for rank `to` in the end, so that neither would ever
    /// wake.
    ///
    /// Ranks that follow the contract never wait in a circle: the slowest rank has all messages that it waits for. A
    /// rank waits for one other rank. So the rank that closes a circle finds it by following them.
    fn stuck(&self, state: &State, from: u32, to: u32) -> Option<Op> {
        let (_, found) = state.places[from as usize].waits?;
        let mut rank = from;
        for _ in 0..self.ranks {
            let (next, _) = state.places[rank as usize].waits?;
            // It has a message, and has only yet to wake.
            if !state.boxes[self.at(next, rank)].is_empty() {
                return None;
            }
            if next == to {
                return Some(found);
            }
            rank = next;
        }
        // A circle without this rank: its own ranks have been told.
        None
    }

    /// The rank that rank `from` waits for in the end: one that does not wait itself.
    fn last(state: &State, from: u32, ranks: u32) -> u32 {
        let mut rank = from;
        for _ in 0..ranks {
            match state.places[rank as usize].waits {
                Some((next, _)) => rank = next,
                None => break,
            }
        }
        rank
    }

    fn mismatch(&self, state: &mut State, rank: u32, asked: Op, found: Op) -> CollectiveError {
        let error = CollectiveError::Mismatch { rank, asked: asked.to_string(), found: found.to_string() };
        self.fail(state, error)
    }

    fn fail(&self, state: &mut State, error: CollectiveError) -> CollectiveError {
        let first = state.failed.get_or_insert(error).clone();
        self.wake.iter().for_each(Condvar::notify_one);
        first
    }

    fn at(&self, from: u32, to: u32) -> usize {
        from as usize * self.ranks as usize + to as usize
    }

    /// No code but this file's runs under the lock, and it leaves the state whole wherever it could stop.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
