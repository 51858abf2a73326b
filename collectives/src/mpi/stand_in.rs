//! A stand-in for an MPI library, for tests: rank 0 of a group whose other ranks send messages of the test.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::message::Head;
use super::table::{Abi, Bits, Calls, Code};
use crate::op::Op;

/// MPICH's `MPI_ERR_TRUNCATE`: a message is longer than the place for it.
const TRUNCATED: Code = Code(14);

/// The bytes after a head that names its operation, and any length.
pub(super) fn message(op: Op, len: u64, bytes: &[u8]) -> Vec<u8> {
    [&Head { op, len }.to_bytes(), bytes].concat()
}

/// It writes into the places for messages while a request is looked at, and at no other time.
#[derive(Clone)]
pub(super) struct StandIn {
    ranks: c_int,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    requests: Bits,
    /// Receives that are not done, in their order.
    receives: Vec<Receive>,
    /// Messages that no receive has taken: rank, tag, bytes.
    arrived: Vec<(c_int, c_int, Vec<u8>)>,
    sent: Vec<Vec<u8>>,
    /// Receives that are done, with the bytes that came.
    done: Vec<(Bits, usize)>,
}

struct Receive {
    request: Bits,
    from: c_int,
    tag: c_int,
    place: Bits,
    count: usize,
}

impl StandIn {
    pub(super) fn new(ranks: c_int) -> Self {
        Self { ranks, state: Arc::default() }
    }

    /// A rank sends a message of MPI's.
    pub(super) fn arrives(&self, from: c_int, tag: c_int, bytes: Vec<u8>) {
        self.lock().arrived.push((from, tag, bytes));
    }

    /// The messages sent since the last call.
    pub(super) fn sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.lock().sent)
    }

    /// The lengths of the places for messages that have not come.
    pub(super) fn asked_for(&self) -> Vec<usize> {
        self.lock().receives.iter().map(|receive| receive.count).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn request(&mut self) -> Bits {
        self.requests += 1;
        self.requests
    }
}

impl Calls for StandIn {
    fn abi(&self) -> Abi {
        Abi::Standard
    }

    fn state(&self) -> Result<(bool, bool), Code> {
        Ok((true, false))
    }

    unsafe fn init(&self) -> Result<bool, Code> {
        Ok(true)
    }

    unsafe fn is_threaded(&self) -> Result<bool, Code> {
        Ok(true)
    }

    unsafe fn finalize(&self) -> Result<(), Code> {
        Ok(())
    }

    fn world(&self) -> Bits {
        0
    }

    unsafe fn return_errors(&self, _: Bits) -> Result<(), Code> {
        Ok(())
    }

    unsafe fn rank(&self, _: Bits) -> Result<c_int, Code> {
        Ok(0)
    }

    unsafe fn size(&self, _: Bits) -> Result<c_int, Code> {
        Ok(self.ranks)
    }

    unsafe fn duplicate(&self, _: Bits, _: *mut Bits) -> Result<Bits, Code> {
        Ok(self.lock().request())
    }

    fn duplicated(&self, place: Bits) -> Bits {
        place
    }

    unsafe fn free(&self, _: Bits) -> Result<(), Code> {
        Ok(())
    }

    unsafe fn send(&self, bytes: *const u8, count: c_int, _: c_int, _: c_int, _: Bits) -> Result<Bits, Code> {
        // SAFETY: as the trait requires, `bytes` points to `count` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, count as usize) };
        let mut state = self.lock();
        state.sent.push(bytes.to_vec());
        Ok(state.request())
    }

    unsafe fn receive(&self, bytes: *mut u8, count: c_int, from: c_int, tag: c_int, _: Bits) -> Result<Bits, Code> {
        let (place, count) = (bytes.expose_provenance(), count as usize);
        let mut state = self.lock();
        let request = state.request();
        state.receives.push(Receive { request, from, tag, place, count });
        Ok(request)
    }

    unsafe fn test(&self, request: &mut Bits) -> Result<bool, Code> {
        // SAFETY: as the trait says of this function.
        Ok(unsafe { self.received(request) }?.is_some())
    }

    unsafe fn received(&self, request: &mut Bits) -> Result<Option<usize>, Code> {
        let mut state = self.lock();
        let State { receives, arrived, done, .. } = &mut *state;
        let mut longer = false;
        // Messages of a rank and a tag come in the order in which they were sent and asked for. Whatever was asked for
        // after this request waits until it is looked for itself.
        receives.retain(|receive| {
            if receive.request > *request {
                return true;
            }
            let fits = |(from, tag, _): &(c_int, c_int, Vec<u8>)| (*from, *tag) == (receive.from, receive.tag);
            let Some(found) = arrived.iter().position(fits) else { return true };
            let (_, _, bytes) = arrived.remove(found);
            longer |= bytes.len() > receive.count;
            done.push((receive.request, bytes.len()));
            let place = std::ptr::with_exposed_provenance_mut::<u8>(receive.place);
            // SAFETY: as the trait requires, nothing else uses the `count` bytes of the place.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len().min(receive.count)) };
            false
        });
        if longer {
            return Err(TRUNCATED);
        }
        let is_under_way = receives.iter().any(|receive| receive.request == *request);
        let came = done.iter().find(|(of, _)| of == request).map_or(0, |(_, came)| *came);
        Ok((!is_under_way).then_some(came))
    }

    unsafe fn is_process_failure(&self, _: Code) -> bool {
        false
    }

    unsafe fn words(&self, code: Code) -> String {
        format!("the stand-in's {}", code.0)
    }
}
