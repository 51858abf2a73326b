//! The functions of the CUDA driver that staging through device memory needs, looked up at run time.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;

use gradwire::CollectiveError;

use super::library::{Wanted, files, open, table};
use super::table::{ENGINE, Stream};

/// Names the driver, where the settings do not.
const VARIABLE: &str = "GRADWIRE_CUDA";
/// The versioned name comes first: the other one may be the toolkit's stub.
#[cfg(not(windows))]
const LIBRARIES: &[&str] = &["libcuda.so.1", "libcuda.so"];
#[cfg(windows)]
const LIBRARIES: &[&str] = &["nvcuda.dll"];

/// `CUDA_SUCCESS`.
const SUCCESS: c_int = 0;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: c_int = 600;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

/// `CUcontext`.
pub(super) type Context = *mut c_void;

table! {
    /// The functions, by pointer. They are valid until the process ends.
    Table, "system":
    init: "cuInit" = fn(c_uint) -> c_int;
    get_error_name: "cuGetErrorName" = fn(c_int, *mut *const c_char) -> c_int;
    device_get_count: "cuDeviceGetCount" = fn(*mut c_int) -> c_int;
    device_get: "cuDeviceGet" = fn(*mut c_int, c_int) -> c_int;
    primary_ctx_retain: "cuDevicePrimaryCtxRetain" = fn(*mut Context, c_int) -> c_int;
    primary_ctx_release: "cuDevicePrimaryCtxRelease_v2" = fn(c_int) -> c_int;
    ctx_push: "cuCtxPushCurrent_v2" = fn(Context) -> c_int;
    ctx_pop: "cuCtxPopCurrent_v2" = fn(*mut Context) -> c_int;
    ctx_get_current: "cuCtxGetCurrent" = fn(*mut Context) -> c_int;
    stream_create: "cuStreamCreate" = fn(*mut Stream, c_uint) -> c_int;
    stream_destroy: "cuStreamDestroy_v2" = fn(Stream) -> c_int;
    stream_get_ctx: "cuStreamGetCtx" = fn(Stream, *mut Context) -> c_int;
    stream_query: "cuStreamQuery" = fn(Stream) -> c_int;
    mem_alloc: "cuMemAlloc_v2" = fn(*mut u64, usize) -> c_int;
    mem_free: "cuMemFree_v2" = fn(u64) -> c_int;
    copy_in: "cuMemcpyHtoDAsync_v2" = fn(u64, *const c_void, usize, Stream) -> c_int;
    copy_out: "cuMemcpyDtoHAsync_v2" = fn(*mut c_void, u64, usize, Stream) -> c_int;
}

/// A context of the driver. Its functions make it current, and then restore the previous one.
pub(super) struct Driver {
    table: Table,
    context: Context,
    /// The device whose primary context this one is, where this one is ours to release.
    device: Option<c_int>,
}

// SAFETY: the driver's functions may be called from any thread, and a context belongs to none.
unsafe impl Send for Driver {}

impl Table {
    fn load(named: Option<&PathBuf>) -> Result<Self, CollectiveError> {
        let advice = "install NVIDIA's driver, or name its library in GRADWIRE_CUDA";
        let wanted = Wanted { engine: ENGINE, files: files(named, VARIABLE, LIBRARIES), advice };
        // SAFETY: these names belong to NVIDIA's driver, which keeps the signatures of `cuda.h`; who names another
        // library answers for it.
        let (table, _) = unsafe { open(&wanted, Self::resolve) }?;
        // SAFETY: it may be called any number of times.
        table.check("cuInit", unsafe { (table.init)(0) })?;
        Ok(table)
    }

    fn check(&self, function: &str, code: c_int) -> Result<(), CollectiveError> {
        if code == SUCCESS {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: `name` is a place for a pointer, and the function takes any code.
        let known = unsafe { (self.get_error_name)(code, &raw mut name) } == SUCCESS && !name.is_null();
        // SAFETY: it is one of the driver's constants, which end in NUL.
        let name = if known { unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned() } else { String::new() };
        let reason = format!("the CUDA driver's {function} gave {code} {name}; make a new group");
        Err(CollectiveError::Engine { engine: ENGINE, code: Some(code), reason })
    }
}

/// How many GPUs the driver shows to this process.
pub(super) fn gpus(named: Option<&PathBuf>) -> Result<u32, CollectiveError> {
    let table = Table::load(named)?;
    let mut count = 0;
    // SAFETY: `count` is a place for a number.
    table.check("cuDeviceGetCount", unsafe { (table.device_get_count)(&raw mut count) })?;
    Ok(u32::try_from(count).unwrap_or(0))
}

impl Driver {
    /// The primary context of a device, which every part of a program shares.
    pub(super) fn primary(named: Option<&PathBuf>, device: u32) -> Result<Self, CollectiveError> {
        let table = Table::load(named)?;
        let (mut found, mut context) = (0, std::ptr::null_mut());
        let number = c_int::try_from(device).unwrap_or(c_int::MAX);
        // SAFETY: `found` is a place for a device.
        table.check("cuDeviceGet", unsafe { (table.device_get)(&raw mut found, number) })?;
        // SAFETY: `context` is a place for one, and the device is there.
        table.check("cuDevicePrimaryCtxRetain", unsafe { (table.primary_ctx_retain)(&raw mut context, found) })?;
        Ok(Self { table, context, device: Some(found) })
    }

    /// The context of a stream; the current one for the default streams.
    ///
    /// # Safety
    ///
    /// The stream is null or one of the driver's.
    pub(super) unsafe fn of_stream(named: Option<&PathBuf>, stream: Stream) -> Result<Self, CollectiveError> {
        let table = Table::load(named)?;
        let mut context = std::ptr::null_mut();
        // The default streams are 0, 1 and 2.
        if stream.addr() <= 2 {
            // SAFETY: `context` is a place for one.
            table.check("cuCtxGetCurrent", unsafe { (table.ctx_get_current)(&raw mut context) })?;
        } else {
            // SAFETY: as above, and the caller answers for the stream.
            table.check("cuStreamGetCtx", unsafe { (table.stream_get_ctx)(stream, &raw mut context) })?;
        }
        if context.is_null() {
            let reason =
                "no context is current, so that the default stream belongs to none; make one current".to_owned();
            return Err(CollectiveError::Engine { engine: ENGINE, code: None, reason });
        }
        Ok(Self { table, context, device: None })
    }

    /// Runs `work` with the context current.
    pub(super) fn with<T>(&self, work: impl FnOnce() -> Result<T, CollectiveError>) -> Result<T, CollectiveError> {
        /// Takes the context away again, after a panic too.
        struct Pop<'t>(&'t Table);
        impl Drop for Pop<'_> {
            fn drop(&mut self) {
                let mut popped = std::ptr::null_mut();
                // SAFETY: `popped` is a place for a context, and one was pushed.
                unsafe { (self.0.ctx_pop)(&raw mut popped) };
            }
        }
        // SAFETY: the context is retained, or that of a stream which is there.
        self.check("cuCtxPushCurrent", unsafe { (self.table.ctx_push)(self.context) })?;
        let _pop = Pop(&self.table);
        work()
    }

    /// Never gives the context back: the device may be at work in it for ever.
    pub(super) fn keep(&mut self) {
        self.device = None;
    }

    fn check(&self, function: &str, code: c_int) -> Result<(), CollectiveError> {
        self.table.check(function, code)
    }

    /// A stream that waits for no other.
    pub(super) fn stream(&self) -> Result<Stream, CollectiveError> {
        let mut stream = std::ptr::null_mut();
        self.with(|| {
            // SAFETY: `stream` is a place for one.
            let code = unsafe { (self.table.stream_create)(&raw mut stream, NON_BLOCKING) };
            self.check("cuStreamCreate", code)
        })?;
        Ok(stream)
    }

    /// # Safety
    ///
    /// The stream is from [`stream`](Self::stream), and nothing uses it any more.
    pub(super) unsafe fn destroy(&self, stream: Stream) {
        // SAFETY: as the caller says. An error has nobody who could do anything about it.
        let _ = self.with(|| self.check("cuStreamDestroy", unsafe { (self.table.stream_destroy)(stream) }));
    }

    /// Whether all work of a stream is done.
    ///
    /// # Safety
    ///
    /// The stream belongs to this context.
    pub(super) unsafe fn is_done(&self, stream: Stream) -> Result<bool, CollectiveError> {
        self.with(|| {
            // SAFETY: as the caller says.
            match unsafe { (self.table.stream_query)(stream) } {
                NOT_READY => Ok(false),
                code => self.check("cuStreamQuery", code).map(|()| true),
            }
        })
    }

    pub(super) fn alloc(&self, bytes: usize) -> Result<u64, CollectiveError> {
        let mut at = 0;
        // SAFETY: `at` is a place for an address.
        self.with(|| self.check("cuMemAlloc", unsafe { (self.table.mem_alloc)(&raw mut at, bytes) }))?;
        Ok(at)
    }

    /// # Safety
    ///
    /// The address is from [`alloc`](Self::alloc), and no work that is queued uses it.
    pub(super) unsafe fn free(&self, at: u64) {
        // SAFETY: as the caller says. An error has nobody who could do anything about it.
        let _ = self.with(|| self.check("cuMemFree", unsafe { (self.table.mem_free)(at) }));
    }

    /// Copies to the device, in the stream's order. The bytes are read before the call returns, as CUDA does with
    /// memory that is not pinned.
    ///
    /// # Safety
    ///
    /// There are as many bytes of device memory, which no other stream uses, and the stream belongs to this context.
    pub(super) unsafe fn copy_in(&self, to: u64, bytes: &[u8], stream: Stream) -> Result<(), CollectiveError> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.with(|| {
            // SAFETY: as the caller says.
            let code = unsafe { (self.table.copy_in)(to, bytes.as_ptr().cast(), bytes.len(), stream) };
            self.check("cuMemcpyHtoDAsync", code)
        })
    }

    /// Copies from the device. The stream has to be done, so that the copy waits for no other rank.
    ///
    /// # Safety
    ///
    /// As [`copy_in`](Self::copy_in).
    pub(super) unsafe fn copy_out(&self, bytes: &mut [u8], from: u64, stream: Stream) -> Result<(), CollectiveError> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.with(|| {
            // SAFETY: as the caller says; the copy to memory that is not pinned is done when the call returns.
            let code = unsafe { (self.table.copy_out)(bytes.as_mut_ptr().cast(), from, bytes.len(), stream) };
            self.check("cuMemcpyDtoHAsync", code)
        })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(device) = self.device {
            // SAFETY: it was retained once.
            unsafe { (self.table.primary_ctx_release)(device) };
        }
    }
}
