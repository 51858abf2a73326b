//! The functions of the stand-in for `libcuda` that are called.

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::Library;

/// What `gradwire_nccl_driver` named.
static NAMED: Mutex<Option<String>> = Mutex::new(None);

/// Names the stand-in for `libcuda`, before anything else is called.
///
/// # Safety
/// `path` is a text that ends in NUL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn gradwire_nccl_driver(path: *const c_char) {
    // SAFETY: as the caller says.
    let path = unsafe { CStr::from_ptr(path) }.to_string_lossy().into_owned();
    *NAMED.lock().unwrap_or_else(PoisonError::into_inner) = Some(path);
}

pub(crate) struct Driver {
    current: unsafe extern "C" fn(*mut usize) -> i32,
    push: unsafe extern "C" fn(usize) -> i32,
    copy_in: unsafe extern "C" fn(u64, *const c_void, usize) -> i32,
    copy_out: unsafe extern "C" fn(*mut c_void, u64, usize) -> i32,
    hold: unsafe extern "C" fn(usize),
    release: unsafe extern "C" fn(usize),
}

/// The driver; what is missing where it cannot be used.
pub(crate) fn driver() -> Result<&'static Driver, String> {
    static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
    DRIVER.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> Result<Driver, String> {
    let named = NAMED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let path = named.unwrap_or_else(|| "libcuda.so.1".to_owned());
    // SAFETY: it is a driver, or what the test named.
    let library = unsafe { Library::new(&path) }.map_err(|error| error.to_string())?;
    /// # Safety
    /// `T` is the function's type.
    unsafe fn get<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
        // SAFETY: as the caller says.
        unsafe { library.get::<T>(name) }.map(|found| *found).map_err(|error| error.to_string())
    }
    // SAFETY: the types are those of `cuda.h` and of the stand-in.
    let driver = unsafe {
        Driver {
            current: get(&library, "cuCtxGetCurrent")?,
            push: get(&library, "cuCtxPushCurrent_v2")?,
            copy_in: get(&library, "cuMemcpyHtoD_v2")?,
            copy_out: get(&library, "cuMemcpyDtoH_v2")?,
            hold: get(&library, "gradwire_stand_in_hold")?,
            release: get(&library, "gradwire_stand_in_release")?,
        }
    };
    std::mem::forget(library);
    Ok(driver)
}

impl Driver {
    /// The calling thread's context; zero if there is none.
    pub(crate) fn current(&self) -> usize {
        let mut context = 0;
        // SAFETY: `context` is a place for one.
        unsafe { (self.current)(&raw mut context) };
        context
    }

    /// Makes a context the calling thread's.
    pub(crate) fn enter(&self, context: usize) {
        // SAFETY: it was another thread's.
        unsafe { (self.push)(context) };
    }

    /// Bytes of device memory. The stand-in checks the address.
    pub(crate) fn read(&self, at: u64, bytes: usize) -> Result<Vec<u8>, i32> {
        let mut read = vec![0; bytes];
        // SAFETY: there is room for as many bytes.
        match unsafe { (self.copy_out)(read.as_mut_ptr().cast(), at, bytes) } {
            0 => Ok(read),
            code => Err(code),
        }
    }

    /// Writes device memory.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), i32> {
        // SAFETY: the slice has as many bytes.
        match unsafe { (self.copy_in)(at, bytes.as_ptr().cast(), bytes.len()) } {
            0 => Ok(()),
            code => Err(code),
        }
    }

    pub(crate) fn hold(&self, stream: usize) {
        // SAFETY: it takes any number.
        unsafe { (self.hold)(stream) };
    }

    pub(crate) fn release(&self, stream: usize) {
        // SAFETY: the stream was held.
        unsafe { (self.release)(stream) };
    }
}
