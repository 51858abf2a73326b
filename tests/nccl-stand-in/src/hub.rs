//! Where the ranks of a group meet.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::codes::{INVALID_ARGUMENT, INVALID_USAGE, REMOTE, because};

/// The bytes of `ncclUniqueId`.
pub(crate) type Id = [u8; 128];
/// How long a wait sleeps before it looks whether its communicator was aborted.
const LOOK: Duration = Duration::from_millis(5);

/// An operation of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Join,
    Gather { bytes: usize },
    Sum { bytes: usize },
    Broadcast { bytes: usize, root: u32 },
    Finish,
}

/// An operation of all ranks that is not yet done on all of them.
struct Round {
    what: What,
    gave: Vec<Option<Arc<[u8]>>>,
    taken: usize,
    wrong: bool,
}

#[derive(Default)]
struct State {
    joined: HashSet<u32>,
    rounds: BTreeMap<u64, Round>,
    boxes: HashMap<(u32, u32), VecDeque<Vec<u8>>>,
    lost: Option<u32>,
}

pub(crate) struct Hub {
    pub(crate) ranks: u32,
    state: Mutex<State>,
    wake: Condvar,
}

/// The hub of an id, for a rank that joins.
pub(crate) fn join(id: &Id, rank: u32, ranks: u32) -> Result<Arc<Hub>, i32> {
    static HUBS: Mutex<Option<HashMap<Id, Arc<Hub>>>> = Mutex::new(None);
    let mut hubs = HUBS.lock().unwrap_or_else(PoisonError::into_inner);
    let new = || Arc::new(Hub { ranks, state: Mutex::default(), wake: Condvar::new() });
    let hub = Arc::clone(hubs.get_or_insert_with(HashMap::new).entry(*id).or_insert_with(new));
    if hub.ranks != ranks {
        return Err(because(INVALID_ARGUMENT, "ranks of one id give different numbers of ranks"));
    }
    if !hub.lock().joined.insert(rank) {
        return Err(because(INVALID_USAGE, "two ranks of one id have the same number"));
    }
    Ok(hub)
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whoever waits, so that it sees that its communicator was aborted.
    pub(crate) fn wake(&self) {
        drop(self.lock());
        self.wake.notify_all();
    }

    /// The rank ends.
    pub(crate) fn lose(&self, rank: u32) {
        self.lock().lost = Some(rank);
        self.wake.notify_all();
    }

    /// Waits until `look` finds something; a code where the communicator is aborted or a rank was lost.
    fn until<T>(
        &self,
        rank: u32,
        aborted: &AtomicBool,
        mut look: impl FnMut(&mut State) -> Option<Result<T, i32>>,
    ) -> Result<T, i32> {
        let mut state = self.lock();
        loop {
            if let Some(found) = look(&mut state) {
                self.wake.notify_all();
                return found;
            }
            if aborted.load(SeqCst) {
                return Err(INVALID_USAGE);
            }
            if state.lost.is_some_and(|lost| lost != rank) {
                return Err(because(REMOTE, "a rank has ended"));
            }
            state = self.wake.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Hangs until the communicator is aborted.
    pub(crate) fn hang(&self, rank: u32, aborted: &AtomicBool) -> i32 {
        self.until::<()>(rank, aborted, |_| None).err().unwrap_or(INVALID_USAGE)
    }

    /// Gives `mine` to the operation number `round` of all ranks; what all ranks gave.
    pub(crate) fn meet(
        &self,
        rank: u32,
        aborted: &AtomicBool,
        round: u64,
        what: What,
        mine: &[u8],
    ) -> Result<Vec<Arc<[u8]>>, i32> {
        let ranks = self.ranks as usize;
        {
            let mut state = self.lock();
            let empty = || Round { what, gave: vec![None; ranks], taken: 0, wrong: false };
            let found = state.rounds.entry(round).or_insert_with(empty);
            if found.what != what {
                found.wrong = true;
                because(INVALID_ARGUMENT, &format!("rank {rank} asks for {what:?}, another one for {:?}", found.what));
            }
            found.gave[rank as usize] = Some(mine.into());
            self.wake.notify_all();
        }
        self.until(rank, aborted, |state| {
            let found = state.rounds.get_mut(&round)?;
            if found.wrong {
                return Some(Err(INVALID_ARGUMENT));
            }
            let all = found.gave.iter().cloned().collect::<Option<Vec<_>>>()?;
            found.taken += 1;
            if found.taken == ranks {
                state.rounds.remove(&round);
            }
            Some(Ok(all))
        })
    }

    /// Puts a message into the box for another rank. Does not wait.
    pub(crate) fn send(&self, from: u32, to: u32, bytes: Vec<u8>) {
        self.lock().boxes.entry((from, to)).or_default().push_back(bytes);
        self.wake.notify_all();
    }

    /// Takes the next message of a rank, which has to have as many bytes.
    pub(crate) fn receive(&self, from: u32, to: u32, aborted: &AtomicBool, bytes: usize) -> Result<Vec<u8>, i32> {
        self.until(to, aborted, |state| {
            let found = state.boxes.get_mut(&(from, to))?.pop_front()?;
            if found.len() == bytes {
                return Some(Ok(found));
            }
            let words = format!("rank {from} sends {} bytes, and rank {to} receives {bytes}", found.len());
            Some(Err(because(INVALID_ARGUMENT, &words)))
        })
    }
}
