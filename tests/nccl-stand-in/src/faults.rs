//! What a rank is made to do wrong.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::hub::Id;

/// A rank hangs from an operation on, until it is aborted.
const HANG: u32 = 1;
/// An operation fails on the device: the communicator gets the code.
const FAIL: u32 = 2;
/// The call of an operation returns the code.
const REFUSE: u32 = 3;
/// A rank ends: it hangs, and the others get `ncclRemoteError`.
const LOST: u32 = 4;
/// A rank sleeps before each operation, up to 300 microseconds, by pseudo-random numbers of the code.
const DELAY: u32 = 5;

#[derive(Clone, Copy)]
struct Fault {
    rank: u32,
    operation: u64,
    kind: u32,
    code: i32,
}

static FAULTS: Mutex<Option<HashMap<Id, Vec<Fault>>>> = Mutex::new(None);

/// Makes a rank of the group with the id do something wrong at an operation, counted from 0; a group of calls is one
/// operation. See the constants above for the kinds.
///
/// # Safety
/// `id` is that of a group.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn gradwire_nccl_fault(id: *const Id, rank: u32, operation: u64, kind: u32, code: i32) {
    // SAFETY: as the caller says.
    let id = unsafe { *id };
    let mut faults = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    let fault = Fault { rank, operation, kind, code };
    faults.get_or_insert_with(HashMap::new).entry(id).or_default().push(fault);
}

fn of(id: &Id, rank: u32, kinds: &[u32]) -> Option<Fault> {
    let faults = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    let of_group = faults.as_ref()?.get(id)?;
    of_group.iter().find(|fault| fault.rank == rank && kinds.contains(&fault.kind)).copied()
}

/// The code that the call of an operation returns.
pub(crate) fn refused(id: &Id, rank: u32, operation: u64) -> Option<i32> {
    of(id, rank, &[REFUSE]).filter(|fault| fault.operation == operation).map(|fault| fault.code)
}

/// What becomes of an operation.
pub(crate) enum Fate {
    Done,
    Hang,
    Fail(i32),
    Lost,
}

/// What becomes of an operation of a rank.
pub(crate) fn fate(id: &Id, rank: u32, operation: u64) -> Fate {
    if let Some(delay) = of(id, rank, &[DELAY]) {
        let mut mixed = (u64::from(delay.code.cast_unsigned()) << 40) ^ (u64::from(rank) << 32) ^ operation;
        for _ in 0..3 {
            mixed = mixed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            mixed ^= mixed >> 29;
        }
        std::thread::sleep(Duration::from_micros(mixed % 300));
    }
    match of(id, rank, &[HANG, FAIL, LOST]).filter(|fault| fault.operation == operation) {
        Some(Fault { kind: HANG, .. }) => Fate::Hang,
        Some(Fault { kind: FAIL, code, .. }) => Fate::Fail(code),
        Some(_) => Fate::Lost,
        None => Fate::Done,
    }
}
