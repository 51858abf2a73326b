//! NVIDIA's driver on one device: how it is opened, entered and left.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::marker::PhantomData;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::driver::{DeviceInfo, StreamId};
use super::error::{DriverError, NO_DEVICE};
use super::sys::{self, Api, CUcontext, CUdevice, CUfunction, CUmodule, CUresult, CUstream};

/// NVIDIA's driver on one device.
///
/// The calling thread's current context is left as it was found by every call.
pub struct RealDriver {
    pub(super) api: Api,
    pub(super) info: DeviceInfo,
    device: CUdevice,
    context: CUcontext,
    stream: CUstream,
    /// Whether the context was retained and the stream made here, and so are to be given back here.
    owned: bool,
    loaded: RwLock<Loaded>,
}

// SAFETY: the driver's handles belong to no thread and its functions may be called from any; what a thread has of its
// own is its stack of current contexts, and every call leaves that as it found it. All else that changes is behind
// locks.
unsafe impl Send for RealDriver {}
// SAFETY: as above.
unsafe impl Sync for RealDriver {}

/// The modules and functions given out, by number. Numbers are not used again, so a stale one is told from a new one.
#[derive(Default)]
pub(super) struct Loaded {
    last: u64,
    pub(super) modules: HashMap<u64, Arc<Module>>,
    pub(super) functions: HashMap<u64, Function>,
}

/// A module, and a lock that keeps it loaded during a call.
///
/// It is the module's own lock: a launch may wait until the stream has space, and so for other ranks. While it waits,
/// other threads load modules and launch their kernels, which those ranks may need.
pub(super) struct Module {
    pub(super) raw: CUmodule,
    is_loaded: RwLock<bool>,
}

// SAFETY: the driver's handles belong to no thread, and its functions may be called from any.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    pub(super) fn new(raw: CUmodule) -> Arc<Self> {
        Arc::new(Self { raw, is_loaded: RwLock::new(true) })
    }

    /// Keeps the module loaded until the guard is dropped; none if it is unloaded already.
    pub(super) fn hold(&self) -> Option<RwLockReadGuard<'_, bool>> {
        Some(self.is_loaded.read().unwrap_or_else(PoisonError::into_inner)).filter(|is_loaded| **is_loaded)
    }

    /// Waits until no call holds the module. No later one can.
    pub(super) fn end(&self) {
        *self.is_loaded.write().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

/// A kernel that was looked up.
pub(super) struct Function {
    /// The module's number.
    pub(super) number: u64,
    pub(super) name: String,
    pub(super) raw: CUfunction,
    pub(super) module: Arc<Module>,
}

impl Loaded {
    /// A number never given out before.
    pub(super) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

impl std::fmt::Debug for RealDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RealDriver").field("info", &self.info).field("owned", &self.owned).finish_non_exhaustive()
    }
}

impl RealDriver {
    /// Opens the device of that number, as CUDA counts them: on its primary context, which the process shares with
    /// every other library that uses the device, and with one non-blocking stream of its own.
    ///
    /// # Errors
    ///
    /// No driver, no device, no such device, or what the driver says. It never panics.
    pub fn open(ordinal: u32) -> Result<RealDriver, DriverError> {
        RealDriver::open_with(*Api::get()?, ordinal)
    }

    /// Opens a device with the driver library at `path`, for machines that keep it where the loader does not look.
    ///
    /// # Errors
    ///
    /// As [`RealDriver::open`].
    ///
    /// # Safety
    ///
    /// - The caller guarantees that the library at `path` is a CUDA driver: loading it runs its initialisers, and its
    ///   functions are called with the signatures of `cuda.h`.
    pub unsafe fn open_library(path: &Path, ordinal: u32) -> Result<RealDriver, DriverError> {
        // SAFETY: the caller answers for the library.
        let api = unsafe { Api::load(&[path]) }?;
        RealDriver::open_with(api, ordinal)
    }

    /// Works in a context of the caller's, with [`StreamId::OWN`] standing for a stream of the caller's. Both are used
    /// as they are: never retained, never destroyed.
    ///
    /// # Errors
    ///
    /// No driver, a null context, or what the driver says.
    ///
    /// # Safety
    ///
    /// - The caller guarantees that `context` is a `CUcontext` that is not destroyed before the `RealDriver` is
    ///   dropped.
    /// - The caller guarantees that `stream` is a `CUstream` of that context, or null for its legacy default stream,
    ///   and is not destroyed before the `RealDriver` is dropped.
    pub unsafe fn from_raw(context: *mut c_void, stream: *mut c_void) -> Result<RealDriver, DriverError> {
        let api = *Api::get()?;
        // SAFETY: the caller answers for both.
        unsafe { RealDriver::borrow_with(api, CUcontext(context), CUstream(stream)) }
    }

    /// The context that is worked in, a `CUcontext`, for others to work in as well. It lives as long as this value.
    pub fn raw_context(&self) -> *mut c_void {
        self.context.0
    }

    fn open_with(api: Api, ordinal: u32) -> Result<RealDriver, DriverError> {
        let count = device_count(&api)?;
        let bad = DriverError::BadOrdinal { asked: ordinal, count };
        let Some(number) = c_int::try_from(ordinal).ok().filter(|_| ordinal < count) else { return Err(bad) };

        let mut device: CUdevice = 0;
        // SAFETY: `device` is a place for a device, and the driver is initialised.
        check(&api, "cuDeviceGet", unsafe { (api.device_get)(&raw mut device, number) })?;
        let info = describe(&api, device)?;
        let mut context = CUcontext::NULL;
        // SAFETY: `context` is a place for a context, and the device was just given out.
        check(&api, "cuDevicePrimaryCtxRetain", unsafe { (api.primary_ctx_retain)(&raw mut context, device) })?;

        // From here on the value owns the context, and gives it back if what follows fails.
        let mut driver = RealDriver::new(api, info, device, context, CUstream::NULL, true);
        let mut stream = CUstream::NULL;
        {
            let _current = driver.enter()?;
            // Non-blocking, because the legacy default stream would otherwise wait for ours, and ours for it.
            // SAFETY: `stream` is a place for a stream, and the context is current.
            let result = unsafe { (api.stream_create)(&raw mut stream, sys::STREAM_NON_BLOCKING) };
            check(&api, "cuStreamCreate", result)?;
        }
        driver.stream = stream;
        Ok(driver)
    }

    /// # Safety
    ///
    /// As [`RealDriver::from_raw`].
    unsafe fn borrow_with(api: Api, context: CUcontext, stream: CUstream) -> Result<RealDriver, DriverError> {
        if context == CUcontext::NULL {
            return Err(DriverError::NullContext);
        }
        // The caller's context lives, so the driver is initialised; this only makes sure that it is the same driver.
        initialise(&api)?;
        let mut device: CUdevice = 0;
        {
            let _current = Current::enter(&api, context)?;
            // SAFETY: `device` is a place for a device, and a context is current.
            check(&api, "cuCtxGetDevice", unsafe { (api.ctx_get_device)(&raw mut device) })?;
        }
        Ok(RealDriver::new(api, describe(&api, device)?, device, context, stream, false))
    }

    fn new(
        api: Api,
        info: DeviceInfo,
        device: CUdevice,
        context: CUcontext,
        stream: CUstream,
        owned: bool,
    ) -> RealDriver {
        RealDriver { api, info, device, context, stream, owned, loaded: RwLock::default() }
    }

    /// Makes this driver's context the thread's current one until the guard is dropped.
    pub(super) fn enter(&self) -> Result<Current<'_>, DriverError> {
        Current::enter(&self.api, self.context)
    }

    /// The device's number.
    pub(super) fn device(&self) -> CUdevice {
        self.device
    }

    /// The context that is worked in.
    pub(super) fn context(&self) -> CUcontext {
        self.context
    }

    /// The driver's handle of a stream.
    pub(super) fn stream(&self, stream: StreamId) -> CUstream {
        if stream == StreamId::OWN { self.stream } else { CUstream(stream.to_u64() as *mut c_void) }
    }

    /// The error of a result that is no success.
    pub(super) fn check(&self, call: &'static str, result: CUresult) -> Result<(), DriverError> {
        check(&self.api, call, result)
    }

    // The lock guards two maps that are whole after every statement, so a thread that panicked left nothing half done.

    pub(super) fn loaded(&self) -> RwLockReadGuard<'_, Loaded> {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn loaded_mut(&self) -> RwLockWriteGuard<'_, Loaded> {
        self.loaded.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RealDriver {
    /// Gives back what was taken. Errors have nobody to go to, and at the end of a process the driver may be gone
    /// already.
    fn drop(&mut self) {
        if let Ok(_current) = self.enter() {
            let modules = std::mem::take(&mut self.loaded_mut().modules);
            if self.owned && self.stream != CUstream::NULL {
                // SAFETY: the stream was made by this value and is destroyed once, here; the wait comes first, so that
                // no kernel of the modules below is running on it.
                unsafe {
                    (self.api.stream_synchronize)(self.stream);
                    (self.api.stream_destroy)(self.stream);
                }
            }
            if !modules.is_empty() {
                // SAFETY: the context is current.
                unsafe { (self.api.ctx_synchronize)() };
            }
            for module in modules.into_values() {
                // SAFETY: the module was loaded by this value and is in the map until it is unloaded, and no kernel of
                // it runs any more.
                unsafe { (self.api.module_unload)(module.raw) };
            }
        }
        if self.owned {
            // SAFETY: this is the counterpart of the one retain in `open_with`.
            unsafe { (self.api.primary_ctx_release)(self.device) };
        }
    }
}

/// A context made current; dropping it brings back the one before.
pub(super) struct Current<'a> {
    api: &'a Api,
    /// The stack of contexts is the thread's, so the guard may not leave the thread.
    thread: PhantomData<*const ()>,
}

impl<'a> Current<'a> {
    fn enter(api: &'a Api, context: CUcontext) -> Result<Current<'a>, DriverError> {
        // SAFETY: the context is alive: retained by a `RealDriver`, or vouched for by the caller of `from_raw`.
        check(api, "cuCtxPushCurrent_v2", unsafe { (api.ctx_push_current)(context) })?;
        Ok(Current { api, thread: PhantomData })
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut left = CUcontext::NULL;
        // SAFETY: `left` is a place for a context, and the guard stands for one push on this very thread.
        unsafe { (self.api.ctx_pop_current)(&raw mut left) };
    }
}

/// The error of a result that is no success.
pub(super) fn check(api: &Api, call: &'static str, result: CUresult) -> Result<(), DriverError> {
    if result == CUresult::SUCCESS {
        return Ok(());
    }
    let (name, message) = api.describe(result);
    Err(DriverError::Call { call, code: result.0, name, message })
}

/// Initialises the driver, which any number of calls may do.
fn initialise(api: &Api) -> Result<(), DriverError> {
    // SAFETY: zero is the one value the flags may have.
    match unsafe { (api.init)(0) } {
        CUresult(NO_DEVICE) => Err(DriverError::NoDevice { driver_version: driver_version(api)? }),
        result => check(api, "cuInit", result),
    }
}

/// How many devices there are: at least one.
fn device_count(api: &Api) -> Result<u32, DriverError> {
    initialise(api)?;
    let mut count: c_int = 0;
    // SAFETY: `count` is a place for a number, and the driver is initialised.
    check(api, "cuDeviceGetCount", unsafe { (api.device_get_count)(&raw mut count) })?;
    match u32::try_from(count) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(DriverError::NoDevice { driver_version: driver_version(api)? }),
    }
}

/// The CUDA release the driver is for. It can be asked before the driver is initialised.
fn driver_version(api: &Api) -> Result<(u32, u32), DriverError> {
    let mut version: c_int = 0;
    // SAFETY: `version` is a place for a number.
    check(api, "cuDriverGetVersion", unsafe { (api.driver_get_version)(&raw mut version) })?;
    // CUDA 12.2 is written as 12020.
    let version = u32::try_from(version).unwrap_or(0);
    Ok((version / 1000, version % 1000 / 10))
}

fn describe(api: &Api, device: CUdevice) -> Result<DeviceInfo, DriverError> {
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: `name` has room for 256 characters, and the device is one that the driver gave out.
    let result = unsafe { (api.device_get_name)(name.as_mut_ptr(), 256, device) };
    check(api, "cuDeviceGetName", result)?;
    let name: Vec<u8> = name.iter().take_while(|c| **c != 0).map(|c| c.to_ne_bytes()[0]).collect();

    let attribute = |which: c_int| {
        let mut value: c_int = 0;
        // SAFETY: `value` is a place for a number, and the device is one that the driver gave out.
        check(api, "cuDeviceGetAttribute", unsafe { (api.device_get_attribute)(&raw mut value, which, device) })?;
        Ok::<u32, DriverError>(u32::try_from(value).unwrap_or(0))
    };
    let mut total: usize = 0;
    // SAFETY: `total` is a place for a size, and the device is one that the driver gave out.
    check(api, "cuDeviceTotalMem_v2", unsafe { (api.device_total_mem)(&raw mut total, device) })?;

    Ok(DeviceInfo {
        name: String::from_utf8_lossy(&name).into_owned(),
        compute_capability: (attribute(sys::ATTRIBUTE_CAPABILITY_MAJOR)?, attribute(sys::ATTRIBUTE_CAPABILITY_MINOR)?),
        driver_version: driver_version(api)?,
        total_memory: total as u64,
        multiprocessors: attribute(sys::ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_unavailable_by_name() {
        // SAFETY: nothing is at this path, so nothing runs.
        let error = unsafe { RealDriver::open_library(Path::new("/nonexistent/libcuda.so.1"), 0) }.unwrap_err();
        assert!(matches!(&error, DriverError::Unavailable(reason) if reason.tried == ["/nonexistent/libcuda.so.1"]));
        assert!(error.to_string().contains("/nonexistent/libcuda.so.1"), "{error}");
    }

    #[test]
    fn opening_a_device_is_an_answer_on_every_machine() {
        match RealDriver::open(0) {
            Ok(driver) => assert!(driver.info.multiprocessors > 0 && driver.info.total_memory > 0, "{driver:?}"),
            Err(error) => println!("not run against a device: {error}"),
        }
        assert!(RealDriver::open(u32::MAX).is_err());
    }
}
