//! Calls that begin together.

use std::cell::RefCell;

use crate::codes::{IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, SUCCESS, because};
use crate::comm::{Comm, of};
use crate::work::Step;

/// A communicator's calls in a group.
struct Calls {
    comm: *mut Comm,
    stream: usize,
    steps: Vec<Step>,
}

#[derive(Default)]
struct Open {
    depth: u32,
    calls: Vec<Calls>,
    /// The first code of a call in the group.
    failed: Option<i32>,
}

thread_local! {
    static OPEN: RefCell<Open> = RefCell::default();
}

/// Queues a call, or keeps it for the end of the thread's group.
///
/// # Safety
/// The handle is null, or was given out and not taken back.
pub(crate) unsafe fn call(comm: *mut Comm, stream: usize, step: Result<Step, i32>) -> i32 {
    // SAFETY: as the caller says.
    let ready = unsafe { of(comm) }.and_then(|comm| comm.ready().map(|()| comm));
    let result = ready.and_then(|ready| {
        let step = step?;
        OPEN.with_borrow_mut(|open| {
            if open.depth == 0 {
                return ready.operate(stream, vec![step]);
            }
            match open.calls.iter_mut().find(|calls| calls.comm == comm) {
                Some(calls) if calls.stream != stream => {
                    return Err(because(INVALID_USAGE, "a group on two streams"));
                }
                Some(calls) => calls.steps.push(step),
                None => open.calls.push(Calls { comm, stream, steps: vec![step] }),
            }
            Ok(())
        })
    });
    if let Err(code) = result {
        OPEN.with_borrow_mut(|open| open.failed = open.failed.or(Some(code).filter(|_| open.depth > 0)));
    }
    result.err().unwrap_or(SUCCESS)
}

/// Calls of this thread begin together from here on.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ncclGroupStart() -> i32 {
    OPEN.with_borrow_mut(|open| open.depth += 1);
    SUCCESS
}

/// Queues the calls since the beginning.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ncclGroupEnd() -> i32 {
    let open = OPEN.with_borrow_mut(|open| match open.depth {
        0 => Err(because(INVALID_USAGE, "no group was begun")),
        1 => Ok(Some(std::mem::take(open))),
        _ => {
            open.depth -= 1;
            Ok(None)
        }
    });
    let open = match open {
        Ok(Some(open)) => open,
        Ok(None) => return SUCCESS,
        Err(code) => return code,
    };
    if let Some(code) = open.failed {
        return code;
    }
    let mut result = SUCCESS;
    for Calls { comm, stream, steps } in open.calls {
        // SAFETY: the handle was good in the group, whose maker answers for it until the end.
        let queued = unsafe { of(comm) }.and_then(|comm| comm.operate(stream, steps));
        match queued {
            Err(IN_PROGRESS) => result = IN_PROGRESS,
            Err(code) => return code,
            Ok(()) => {}
        }
    }
    result
}

/// An address that is not null where there are bytes.
pub(crate) fn address(at: *const std::ffi::c_void, bytes: usize) -> Result<u64, i32> {
    match at.is_null() && bytes > 0 {
        true => Err(because(INVALID_ARGUMENT, "a null address")),
        false => Ok(at.addr() as u64),
    }
}
