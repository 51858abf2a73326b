//! What the driver remembers: the machine, contexts, streams, modules.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use gradwire::backend::cuda::driver::DriverError;
use gradwire_ptx_machine::Machine;

/// `CUDA_ERROR_INVALID_VALUE`.
pub(crate) const INVALID_VALUE: i32 = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: i32 = 2;
/// `CUDA_ERROR_INVALID_DEVICE`.
pub(crate) const INVALID_DEVICE: i32 = 101;
/// `CUDA_ERROR_INVALID_CONTEXT`.
pub(crate) const INVALID_CONTEXT: i32 = 201;
/// `CUDA_ERROR_INVALID_PTX`.
pub(crate) const INVALID_PTX: i32 = 218;
/// `CUDA_ERROR_INVALID_HANDLE`.
pub(crate) const INVALID_HANDLE: i32 = 400;
/// `CUDA_ERROR_NOT_FOUND`.
pub(crate) const NOT_FOUND: i32 = 500;
/// `CUDA_ERROR_NOT_READY`.
pub(crate) const NOT_READY: i32 = 600;
/// `CUDA_ERROR_LAUNCH_FAILED`.
pub(crate) const LAUNCH_FAILED: i32 = 719;
/// `CUDA_ERROR_NOT_SUPPORTED`.
pub(crate) const NOT_SUPPORTED: i32 = 801;

/// The primary context's handle; later ones count up from it.
pub(crate) const PRIMARY: usize = 0x1000;

/// Handles that were given out, by number.
#[derive(Default)]
pub(crate) struct Handles {
    last: usize,
    /// Streams, each with its context.
    pub(crate) streams: HashMap<usize, usize>,
    /// Events.
    pub(crate) events: HashSet<usize>,
    /// Linkers, each with the PTX that it was given.
    pub(crate) linkers: HashMap<usize, Vec<u8>>,
    /// Page-locked memory of the host, and its bytes.
    pub(crate) host: HashMap<usize, usize>,
    /// Functions, each with its module.
    pub(crate) functions: HashMap<usize, u64>,
}

impl Handles {
    /// A number that was not given out before, far from those of contexts.
    pub(crate) fn number(&mut self) -> usize {
        self.last += 16;
        0x10_0000 + self.last
    }
}

thread_local! {
    /// The thread's contexts, the current one last.
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Works on the thread's stack of contexts.
pub(crate) fn contexts<T>(work: impl FnOnce(&mut Vec<usize>) -> T) -> T {
    CURRENT.with_borrow_mut(work)
}

/// The current context.
pub(crate) fn current() -> Result<usize, i32> {
    contexts(|stack| stack.last().copied()).filter(|context| *context != 0).ok_or(INVALID_CONTEXT)
}

/// The handles.
pub(crate) fn handles() -> MutexGuard<'static, Handles> {
    static HANDLES: OnceLock<Mutex<Handles>> = OnceLock::new();
    // A thread that panicked under the lock left a map that is whole.
    HANDLES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Compute capability: major, minor.
pub(crate) fn capability() -> (u32, u32) {
    let asked = std::env::var("GRADWIRE_STAND_IN").unwrap_or_default();
    let parsed = asked.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    parsed.unwrap_or((9, 0))
}

/// The device.
pub(crate) fn machine() -> &'static Machine {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    MACHINE.get_or_init(|| Machine::new(capability(), 0x57a9d))
}

/// The code of an error of the machine's, whose words go to standard error, since a code is all that the interface has.
pub(crate) fn code(error: &DriverError) -> i32 {
    eprintln!("the stand-in for a CUDA device: {error}");
    match error {
        DriverError::OutOfMemory { .. } => OUT_OF_MEMORY,
        DriverError::Jit { .. } => INVALID_PTX,
        DriverError::MissingFunction { .. } => NOT_FOUND,
        DriverError::NotLoaded { .. } => INVALID_HANDLE,
        DriverError::Call { name, .. } if name == "LAUNCH_FAILED" => LAUNCH_FAILED,
        _ => INVALID_VALUE,
    }
}

/// Writes a result to where the caller wants it.
///
/// # Safety
/// `place` is null or a place for a `T`.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Result<(), i32> {
    if place.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the place is not null, so it is one for a `T`.
    unsafe { place.write(value) };
    Ok(())
}
