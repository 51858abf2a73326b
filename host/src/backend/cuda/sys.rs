//! The part of the CUDA driver's C interface that Gradwire calls, looked up at run time.
//!
//! Nothing links against `libcuda`: a program that embeds Gradwire has to start on a machine that has no NVIDIA driver.
//! The library is opened once, every function is resolved once, and what is missing is an error with names in it.
//!
//! The types keep NVIDIA's names, so that a signature here can be laid beside its declaration in `cuda.h`.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use libloading::Library;

use super::error::DriverUnavailable;

/// What every driver function returns; a newtype and no enum, because a newer driver may return codes not listed here.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CUresult(pub(super) i32);

impl CUresult {
    /// The call did what it was asked.
    pub(super) const SUCCESS: CUresult = CUresult(0);
}

/// A device, as the driver numbers it.
pub(super) type CUdevice = c_int;

/// An address in device memory.
pub(super) type CUdeviceptr = u64;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) struct $name(pub(super) *mut c_void);

        impl $name {
            /// No object.
            pub(super) const NULL: $name = $name(ptr::null_mut());
        }
    )*};
}

handles! {
    /// A context: the driver's counterpart of a process on one device.
    CUcontext;
    /// A loaded module.
    CUmodule;
    /// A kernel of a loaded module.
    CUfunction;
    /// A stream; null is the legacy default stream of the current context.
    CUstream;
    /// An event.
    CUevent;
    /// A linker at work.
    CUlinkState;
}

/// `CU_STREAM_NON_BLOCKING`: the stream does not wait for the legacy default stream, nor that stream for it.
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_LEGACY`: the other spelling of the null stream, which leaves zero free for a meaning of our own.
pub(super) const STREAM_LEGACY: u64 = 1;
/// `CU_EVENT_DEFAULT`: an event that keeps the time.
pub(super) const EVENT_DEFAULT: c_uint = 0;
/// `CU_EVENT_DISABLE_TIMING`: an event for the order of streams alone.
pub(super) const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_EVENT_WAIT_DEFAULT`.
pub(super) const EVENT_WAIT_DEFAULT: c_uint = 0;
/// No flag of `cuMemHostAlloc`: memory that is page-locked for the context alone, with the processor's caches.
pub(super) const HOST_ALLOC_DEFAULT: c_uint = 0;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
pub(super) const ATTRIBUTE_MULTIPROCESSOR_COUNT: c_int = 16;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
pub(super) const ATTRIBUTE_CAPABILITY_MAJOR: c_int = 75;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
pub(super) const ATTRIBUTE_CAPABILITY_MINOR: c_int = 76;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
pub(super) const POINTER_MEMORY_TYPE: c_uint = 2;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
pub(super) const POINTER_DEVICE_ORDINAL: c_uint = 9;
/// `CU_POINTER_ATTRIBUTE_IS_MANAGED`.
pub(super) const POINTER_IS_MANAGED: c_uint = 8;
/// `CU_POINTER_ATTRIBUTE_RANGE_START_ADDR`.
pub(super) const POINTER_RANGE_START: c_uint = 11;
/// `CU_POINTER_ATTRIBUTE_RANGE_SIZE`.
pub(super) const POINTER_RANGE_SIZE: c_uint = 12;
/// `CU_MEMORYTYPE_HOST`.
pub(super) const MEMORY_HOST: c_uint = 1;
/// `CU_MEMORYTYPE_DEVICE`; managed memory is of this type as well.
pub(super) const MEMORY_DEVICE: c_uint = 2;
/// `CU_JIT_INFO_LOG_BUFFER`.
pub(super) const JIT_INFO_LOG: c_uint = 3;
/// `CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES`.
pub(super) const JIT_INFO_LOG_SIZE: c_uint = 4;
/// `CU_JIT_ERROR_LOG_BUFFER`.
pub(super) const JIT_ERROR_LOG: c_uint = 5;
/// `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
pub(super) const JIT_ERROR_LOG_SIZE: c_uint = 6;

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`: the kernel waits by itself for the one before it in the
/// stream, and so may begin while that one drains.
pub(super) const LAUNCH_PROGRAMMATIC: c_uint = 6;

/// `CUlaunchAttribute`: an attribute of a launch, and its value.
#[repr(C)]
#[allow(dead_code, reason = "the driver reads it")]
pub(super) struct CUlaunchAttribute {
    pub(super) id: c_uint,
    /// The value begins at a multiple of 8.
    pub(super) pad: [u8; 4],
    pub(super) value: CUlaunchAttributeValue,
}

/// `CUlaunchAttributeValue`: a union of 64 bytes, of which the attribute above takes a number.
#[repr(C, align(8))]
#[allow(dead_code, reason = "the driver reads it")]
pub(super) struct CUlaunchAttributeValue {
    pub(super) number: c_int,
    pub(super) rest: [u8; 60],
}

/// `CUlaunchConfig`.
#[repr(C)]
#[allow(dead_code, reason = "the driver reads it")]
pub(super) struct CUlaunchConfig {
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    pub(super) stream: CUstream,
    pub(super) attributes: *mut CUlaunchAttribute,
    pub(super) count: c_uint,
}

// As cuda.h of CUDA 11.8 and later lays them out, where a pointer has 8 bytes.
const _: () = assert!(size_of::<CUlaunchAttribute>() == 72 && std::mem::offset_of!(CUlaunchAttribute, value) == 8);
#[cfg(target_pointer_width = "64")]
const _: () = assert!(
    size_of::<CUlaunchConfig>() == 56
        && std::mem::offset_of!(CUlaunchConfig, stream) == 32
        && std::mem::offset_of!(CUlaunchConfig, count) == 48
);

/// `CU_JIT_INPUT_PTX`.
pub(super) const JIT_INPUT_PTX: c_uint = 1;
/// `CU_STREAM_CAPTURE_STATUS_NONE`.
pub(super) const CAPTURE_NONE: c_uint = 0;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub(super) const CAPTURE_MODE_RELAXED: c_uint = 2;

/// Declares the table and the code that fills it. A second name after `or` is an older symbol of the same signature.
/// What stands under `[optional]` may be missing from a driver.
macro_rules! api {
    (
        $($field:ident: $symbol:literal $(or $older:literal)* = fn($($arg:ty),*);)*
        [optional] $($late:ident: $late_symbol:literal = fn($($late_arg:ty),*);)*
    ) => {
        /// The driver's functions, by pointer.
        ///
        /// The pointers stay valid until the process ends, because [`Api::load`] never closes the library they came
        /// from.
        #[derive(Clone, Copy)]
        pub(super) struct Api {
            $(#[doc = concat!("`", $symbol, "`.")]
            pub(super) $field: unsafe extern "system" fn($($arg),*) -> CUresult,)*
            $(#[doc = concat!("`", $late_symbol, "`, where the driver has it.")]
            pub(super) $late: Option<unsafe extern "system" fn($($late_arg),*) -> CUresult>,)*
        }

        impl Api {
            /// Looks up every function of the table.
            ///
            /// # Safety
            ///
            /// Where `library` exports one of these names, it is the function that `cuda.h` declares under that name.
            unsafe fn resolve(library: &Library) -> Result<Api, &'static str> {
                Ok(Api {$(
                    $field: {
                        type Function = unsafe extern "system" fn($($arg),*) -> CUresult;
                        // SAFETY: the signature above is the one in `cuda.h`, and the caller answers for the library.
                        unsafe { symbol::<Function>(library, &[$symbol $(, $older)*]) }.ok_or($symbol)?
                    },
                )* $(
                    $late: {
                        type Function = unsafe extern "system" fn($($late_arg),*) -> CUresult;
                        // SAFETY: as above.
                        unsafe { symbol::<Function>(library, &[$late_symbol]) }
                    },
                )*})
            }
        }
    };
}

api! {
    init: "cuInit" = fn(c_uint);
    driver_get_version: "cuDriverGetVersion" = fn(*mut c_int);
    get_error_name: "cuGetErrorName" = fn(CUresult, *mut *const c_char);
    get_error_string: "cuGetErrorString" = fn(CUresult, *mut *const c_char);
    device_get_count: "cuDeviceGetCount" = fn(*mut c_int);
    device_get: "cuDeviceGet" = fn(*mut CUdevice, c_int);
    device_get_name: "cuDeviceGetName" = fn(*mut c_char, c_int, CUdevice);
    device_get_attribute: "cuDeviceGetAttribute" = fn(*mut c_int, c_int, CUdevice);
    device_total_mem: "cuDeviceTotalMem_v2" = fn(*mut usize, CUdevice);
    primary_ctx_retain: "cuDevicePrimaryCtxRetain" = fn(*mut CUcontext, CUdevice);
    primary_ctx_release: "cuDevicePrimaryCtxRelease_v2" or "cuDevicePrimaryCtxRelease" = fn(CUdevice);
    ctx_push_current: "cuCtxPushCurrent_v2" = fn(CUcontext);
    ctx_pop_current: "cuCtxPopCurrent_v2" = fn(*mut CUcontext);
    ctx_get_device: "cuCtxGetDevice" = fn(*mut CUdevice);
    ctx_synchronize: "cuCtxSynchronize" = fn();
    mem_get_info: "cuMemGetInfo_v2" = fn(*mut usize, *mut usize);
    mem_alloc: "cuMemAlloc_v2" = fn(*mut CUdeviceptr, usize);
    mem_free: "cuMemFree_v2" = fn(CUdeviceptr);
    mem_host_alloc: "cuMemHostAlloc" = fn(*mut *mut c_void, usize, c_uint);
    mem_free_host: "cuMemFreeHost" = fn(*mut c_void);
    memcpy_htod_async: "cuMemcpyHtoDAsync_v2" = fn(CUdeviceptr, *const c_void, usize, CUstream);
    memcpy_dtoh_async: "cuMemcpyDtoHAsync_v2" = fn(*mut c_void, CUdeviceptr, usize, CUstream);
    memcpy_dtod_async: "cuMemcpyDtoDAsync_v2" = fn(CUdeviceptr, CUdeviceptr, usize, CUstream);
    memset_d8_async: "cuMemsetD8Async" = fn(CUdeviceptr, c_uchar, usize, CUstream);
    memset_d32_async: "cuMemsetD32Async" = fn(CUdeviceptr, c_uint, usize, CUstream);
    stream_create: "cuStreamCreate" = fn(*mut CUstream, c_uint);
    stream_destroy: "cuStreamDestroy_v2" = fn(CUstream);
    stream_get_ctx: "cuStreamGetCtx" = fn(CUstream, *mut CUcontext);
    pointer_get_attributes: "cuPointerGetAttributes" = fn(c_uint, *const c_uint, *mut *mut c_void, CUdeviceptr);
    stream_synchronize: "cuStreamSynchronize" = fn(CUstream);
    event_create: "cuEventCreate" = fn(*mut CUevent, c_uint);
    event_record: "cuEventRecord" = fn(CUevent, CUstream);
    stream_wait_event: "cuStreamWaitEvent" = fn(CUstream, CUevent, c_uint);
    event_synchronize: "cuEventSynchronize" = fn(CUevent);
    event_elapsed_time: "cuEventElapsedTime" = fn(*mut f32, CUevent, CUevent);
    event_destroy: "cuEventDestroy_v2" = fn(CUevent);
    module_load_data_ex: "cuModuleLoadDataEx" = fn(*mut CUmodule, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
    module_unload: "cuModuleUnload" = fn(CUmodule);
    module_get_function: "cuModuleGetFunction" = fn(*mut CUfunction, CUmodule, *const c_char);
    launch_kernel: "cuLaunchKernel" = fn(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void
    );

    [optional]
    link_create: "cuLinkCreate_v2" = fn(c_uint, *mut c_uint, *mut *mut c_void, *mut CUlinkState);
    link_add_data: "cuLinkAddData_v2" = fn(
        CUlinkState, c_uint, *mut c_void, usize, *const c_char, c_uint, *mut c_uint, *mut *mut c_void
    );
    link_complete: "cuLinkComplete" = fn(CUlinkState, *mut *mut c_void, *mut usize);
    link_destroy: "cuLinkDestroy" = fn(CUlinkState);
    launch_kernel_ex: "cuLaunchKernelEx" = fn(*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void);
    stream_is_capturing: "cuStreamIsCapturing" = fn(CUstream, *mut c_uint);
    exchange_capture_mode: "cuThreadExchangeStreamCaptureMode" = fn(*mut c_uint);
}

/// The names the driver goes by. The versioned one comes first: it belongs to the driver, while an unversioned
/// `libcuda.so` may be the toolkit's link-time stub, whose every function fails.
#[cfg(not(windows))]
const LIBRARIES: &[&str] = &["libcuda.so.1", "libcuda.so"];
#[cfg(windows)]
const LIBRARIES: &[&str] = &["nvcuda.dll"];

impl Api {
    /// The driver of this machine; looked for once a process, and the same answer ever after.
    pub(super) fn get() -> Result<&'static Api, DriverUnavailable> {
        static API: OnceLock<Result<Api, DriverUnavailable>> = OnceLock::new();
        API.get_or_init(|| {
            // SAFETY: these names belong to NVIDIA's driver, which is made to be loaded by any process that asks for it
            // and keeps the signatures of `cuda.h` for the names above.
            unsafe { Api::load(LIBRARIES) }
        })
        .as_ref()
        .map_err(Clone::clone)
    }

    /// The driver in the first of `libraries` that can be opened and has every function.
    ///
    /// # Safety
    ///
    /// - Opening the libraries runs their initialisers; whoever names them answers for those.
    /// - Where a library exports a name of the table, it is the function that `cuda.h` declares under that name.
    pub(super) unsafe fn load<P: AsRef<Path>>(libraries: &[P]) -> Result<Api, DriverUnavailable> {
        let mut reasons = Vec::new();
        for path in libraries {
            let path = path.as_ref();
            // SAFETY: the caller answers for what opening this library runs.
            let library = match unsafe { Library::new(path.as_os_str()) } {
                Ok(library) => library,
                Err(error) => {
                    reasons.push(explain(path, &error));
                    continue;
                }
            };
            // SAFETY: the caller answers for the signatures.
            match unsafe { Api::resolve(&library) } {
                Ok(api) => {
                    // The driver starts threads and registers exit handlers, so it is never closed again; that is also
                    // what lets the table be copied about without a lifetime.
                    std::mem::forget(library);
                    return Ok(api);
                }
                Err(symbol) => reasons.push(format!(
                    "{} has no function {symbol}: it is no CUDA driver, or one that is too old",
                    path.display()
                )),
            }
        }
        let tried = libraries.iter().map(|path| path.as_ref().display().to_string());
        Err(DriverUnavailable { tried: tried.collect(), reason: reasons.join("; ") })
    }

    /// The driver's name and description of a result, such as `CUDA_ERROR_NO_DEVICE`.
    pub(super) fn describe(&self, result: CUresult) -> (String, String) {
        let text = |function: unsafe extern "system" fn(CUresult, *mut *const c_char) -> CUresult| {
            let mut text = ptr::null();
            // SAFETY: `text` is a place for one pointer. These two functions take any code and need no initialisation.
            let status = unsafe { function(result, &raw mut text) };
            if status != CUresult::SUCCESS || text.is_null() {
                return None;
            }
            // SAFETY: on success it is one of the driver's own constant strings, which end in NUL and are never freed.
            Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        (
            text(self.get_error_name).unwrap_or_else(|| "a code the driver has no name for".into()),
            text(self.get_error_string).unwrap_or_else(|| "no description".into()),
        )
    }
}

/// The function under the first of `names` that the library has.
///
/// # Safety
///
/// `F` is a function pointer type, and the right one for whatever the library exports under these names.
unsafe fn symbol<F: Copy>(library: &Library, names: &[&str]) -> Option<F> {
    names.iter().find_map(|name| {
        // SAFETY: the caller answers for `F`, and an `Option` of a function pointer is a pointer that may be null,
        // which is what the lookup of a symbol yields.
        unsafe { library.get::<Option<F>>(*name) }.ok().and_then(|found| *found)
    })
}

/// Why a library could not be opened: the system's own words, which the error keeps in its source.
fn explain(path: &Path, error: &libloading::Error) -> String {
    let words = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    // `dlerror` mostly begins with the name, the Windows text never has it.
    let path = path.display().to_string();
    if words.starts_with(&path) { words } else { format!("{path}: {words}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named() {
        // SAFETY: nothing is at this path, so nothing runs.
        let error = unsafe { Api::load(&["/nonexistent/libcuda.so.1"]) }.err().expect("nothing to load");
        assert_eq!(error.tried, ["/nonexistent/libcuda.so.1"]);
        assert!(error.to_string().contains("/nonexistent/libcuda.so.1"), "{error}");
        assert!(!error.reason.is_empty());
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn a_library_that_is_no_driver_is_told_by_the_function_it_lacks() {
        // SAFETY: the C library is loaded already, and exports none of the names that would be looked up.
        let error = unsafe { Api::load(&["libc.so.6"]) }.err().expect("libc is no CUDA driver");
        assert!(error.reason.contains("libc.so.6 has no function cuInit"), "{error}");
    }

    #[test]
    fn looking_for_the_driver_is_an_answer_on_every_machine() {
        match Api::get() {
            Ok(api) => assert_eq!(api.describe(CUresult(100)).0, "CUDA_ERROR_NO_DEVICE"),
            Err(error) => {
                println!("not run against a driver: {error}");
                assert_eq!(error.tried, LIBRARIES);
                assert!(LIBRARIES.iter().all(|name| error.reason.contains(name)), "{error}");
            }
        }
    }
}
