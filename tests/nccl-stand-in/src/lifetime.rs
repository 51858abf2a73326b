//! Communicators from their beginning to their end.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::SeqCst};

use crate::codes::{INVALID_ARGUMENT, INVALID_USAGE, SUCCESS, UNHANDLED_CUDA, because};
use crate::comm::{Comm, of};
use crate::driver::driver;
use crate::hub::{Id, What, join};
use crate::work::{Shared, Step};

/// Where the environment has it, two ranks on one device are refused, as NCCL does.
const ONE_EACH: &str = "GRADWIRE_NCCL_ONE_EACH";

/// `ncclUniqueId`, which is passed by value.
#[repr(C)]
pub(crate) struct UniqueId(Id);

/// The beginning of `ncclConfig_t`.
#[repr(C)]
pub(crate) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
}

fn done(result: Result<(), i32>) -> i32 {
    result.err().unwrap_or(SUCCESS)
}

/// 2.18.3, the oldest that is taken.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ncclGetVersion(version: *mut i32) -> i32 {
    // SAFETY: as `nccl.h` has it.
    unsafe { version.write(21_803) };
    SUCCESS
}

/// A number that was not given before.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> i32 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let mut bytes = [0x5a; 128];
    bytes[..8].copy_from_slice(&LAST.fetch_add(1, SeqCst).to_le_bytes());
    // SAFETY: as `nccl.h` has it.
    unsafe { id.write(UniqueId(bytes)) };
    SUCCESS
}

/// Does not wait for the other ranks: the communicator is in progress until all have come.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ncclCommInitRankConfig(
    place: *mut *mut Comm,
    ranks: i32,
    id: UniqueId,
    rank: i32,
    config: *const Config,
) -> i32 {
    // SAFETY: as `nccl.h` has it.
    let Some(Config { size, magic, version, blocking }) = (unsafe { config.as_ref() }) else {
        return because(INVALID_ARGUMENT, "no settings");
    };
    if *magic != 0xcafe_beef || *size < size_of::<Config>() || *version < 21_400 {
        return because(INVALID_ARGUMENT, "the settings were not initialised");
    }
    if *blocking != 0 {
        return because(INVALID_ARGUMENT, "the stand-in has no communicators that wait");
    }
    let (Ok(rank), Ok(ranks)) = (u32::try_from(rank), u32::try_from(ranks)) else {
        return because(INVALID_ARGUMENT, "a negative rank");
    };
    if rank >= ranks {
        return because(INVALID_ARGUMENT, "no such rank");
    }
    // The device is the only one that there is.
    if ranks > 1 && std::env::var_os(ONE_EACH).is_some() {
        return because(INVALID_USAGE, "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 0");
    }
    let driver = match driver() {
        Ok(driver) => driver,
        Err(error) => return because(UNHANDLED_CUDA, &error),
    };
    let context = driver.current();
    if context == 0 {
        return because(UNHANDLED_CUDA, "the thread has no context");
    }
    let hub = match join(&id.0, rank, ranks) {
        Ok(hub) => hub,
        Err(code) => return code,
    };
    let (state, failed, aborted) = (AtomicI32::new(SUCCESS), AtomicBool::new(false), AtomicBool::new(false));
    let comm = Comm::new(Shared { id: id.0, rank, hub, driver, context, state, failed, aborted });
    let begun = comm.progress(Step::All { what: What::Join, from: 0, to: 0 });
    // SAFETY: as `nccl.h` has it.
    unsafe { place.write(Box::into_raw(Box::new(comm))) };
    done(begun)
}

/// The state of what goes on by itself.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ncclCommGetAsyncError(comm: *mut Comm, state: *mut i32) -> i32 {
    // SAFETY: as `nccl.h` has it.
    done(unsafe { of(comm).map(|comm| state.write(comm.shared.state.load(SeqCst))) })
}

/// How many ranks there are.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ncclCommCount(comm: *mut Comm, count: *mut i32) -> i32 {
    // SAFETY: as `nccl.h` has it.
    done(unsafe { of(comm).map(|comm| count.write(comm.shared.hub.ranks.cast_signed())) })
}

/// The number of this one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ncclCommUserRank(comm: *mut Comm, rank: *mut i32) -> i32 {
    // SAFETY: as `nccl.h` has it.
    done(unsafe { of(comm).map(|comm| rank.write(comm.shared.rank.cast_signed())) })
}

/// Ends together with the other ranks. Does not wait for them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ncclCommFinalize(comm: *mut Comm) -> i32 {
    // SAFETY: as `nccl.h` has it.
    let comm = match unsafe { of(comm) } {
        Ok(comm) => comm,
        Err(code) => return code,
    };
    done(comm.ready().and_then(|()| comm.progress(Step::All { what: What::Finish, from: 0, to: 0 })))
}

/// Gives it back; what is queued is done before.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ncclCommDestroy(comm: *mut Comm) -> i32 {
    // SAFETY: as `nccl.h` has it.
    if let Err(code) = unsafe { of(comm) } {
        return code;
    }
    // SAFETY: as `nccl.h` has it, the handle was given out, and is used by nobody any more.
    unsafe { Box::from_raw(comm) }.end();
    SUCCESS
}

/// Gives it back; what is queued is let go, and what waits for other ranks stops.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ncclCommAbort(comm: *mut Comm) -> i32 {
    // SAFETY: as `nccl.h` has it.
    let shared = match unsafe { of(comm) } {
        Ok(comm) => &comm.shared,
        Err(code) => return code,
    };
    shared.failed.store(true, SeqCst);
    shared.aborted.store(true, SeqCst);
    shared.hub.wake();
    // SAFETY: as above.
    unsafe { Box::from_raw(comm) }.end();
    SUCCESS
}
