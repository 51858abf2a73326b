//! The functions of NCCL that this engine calls, looked up at run time. Types and constants are those of `nccl.h`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;

use gradwire::CollectiveError;

use super::library::{Wanted, files, open, table};

/// The engine's name in errors.
pub(super) const ENGINE: &str = "NCCL";
/// Names the library, where the settings do not.
pub(super) const VARIABLE: &str = "GRADWIRE_NCCL";
/// The names under which NCCL is installed. PyPI's wheels have the first one alone.
#[cfg(not(windows))]
const LIBRARIES: &[&str] = &["libnccl.so.2", "libnccl.so"];
#[cfg(windows)]
const LIBRARIES: &[&str] = &["nccl.dll"];
/// The oldest version that is taken, as `ncclGetVersion` gives it: 2.18.0.
const OLDEST: c_int = 21_800;

/// `ncclSuccess`.
pub(super) const SUCCESS: c_int = 0;
/// `ncclInProgress`.
pub(super) const IN_PROGRESS: c_int = 7;
/// `ncclUint8`.
pub(super) const UINT8: c_int = 1;
/// `ncclFloat32`.
pub(super) const FLOAT32: c_int = 7;
/// `ncclSum`.
pub(super) const SUM: c_int = 0;
/// `NCCL_UNIQUE_ID_BYTES`.
pub(super) const ID_BYTES: usize = 128;

/// `ncclComm_t`.
pub(super) type Comm = *mut c_void;
/// `cudaStream_t`, which is the driver's `CUstream`.
pub(super) type Stream = *mut c_void;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId(pub(super) [u8; ID_BYTES]);

/// The fields of `ncclConfig_t` that version 2.18 has. Later versions read as many bytes as `size` says.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl Config {
    /// `NCCL_CONFIG_INITIALIZER`, with calls that do not wait for other ranks.
    pub(super) fn without_waiting() -> Self {
        /// `NCCL_CONFIG_UNDEF_INT`.
        const UNDEFINED: c_int = c_int::MIN;
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: OLDEST.cast_unsigned(),
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
        }
    }
}

table! {
    /// The functions, by pointer. They are valid until the process ends.
    Table, "C":
    get_version: "ncclGetVersion" = fn(*mut c_int) -> c_int;
    get_unique_id: "ncclGetUniqueId" = fn(*mut UniqueId) -> c_int;
    get_error_string: "ncclGetErrorString" = fn(c_int) -> *const c_char;
    get_last_error: "ncclGetLastError" = fn(Comm) -> *const c_char;
    comm_init_rank_config: "ncclCommInitRankConfig" = fn(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> c_int;
    comm_finalize: "ncclCommFinalize" = fn(Comm) -> c_int;
    comm_destroy: "ncclCommDestroy" = fn(Comm) -> c_int;
    comm_abort: "ncclCommAbort" = fn(Comm) -> c_int;
    comm_get_async_error: "ncclCommGetAsyncError" = fn(Comm, *mut c_int) -> c_int;
    comm_count: "ncclCommCount" = fn(Comm, *mut c_int) -> c_int;
    comm_user_rank: "ncclCommUserRank" = fn(Comm, *mut c_int) -> c_int;
    all_gather: "ncclAllGather" = fn(*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> c_int;
    all_reduce: "ncclAllReduce" = fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
    broadcast: "ncclBroadcast" = fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
    send: "ncclSend" = fn(*const c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
    recv: "ncclRecv" = fn(*mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
    group_start: "ncclGroupStart" = fn() -> c_int;
    group_end: "ncclGroupEnd" = fn() -> c_int;
}

impl Table {
    /// NCCL, from the named file, or else from the folders in which it is installed.
    pub(super) fn load(named: Option<&PathBuf>) -> Result<Self, CollectiveError> {
        let advice =
            "install NCCL 2.18 or newer (PyPI's nvidia-nccl-cu12 has it), or name its library in GRADWIRE_NCCL";
        let wanted = Wanted { engine: ENGINE, files: files(named, VARIABLE, LIBRARIES), advice };
        // SAFETY: these names belong to NCCL, which is made to be loaded and keeps the signatures of `nccl.h`; who
        // names another library answers for it.
        let (table, name) = unsafe { open(&wanted, Self::resolve) }?;
        let mut version = 0;
        // SAFETY: the place is one for an `int`.
        table.check("ncclGetVersion", unsafe { (table.get_version)(&raw mut version) })?;
        if version < OLDEST {
            let (major, minor) = if version < 10_000 {
                (version / 1000, version / 100 % 10)
            } else {
                (version / 10_000, version / 100 % 100)
            };
            let reason = format!("{name} is NCCL {major}.{minor}, which is too old; {advice}");
            return Err(CollectiveError::Unavailable { engine: ENGINE, tried: vec![name], reason });
        }
        Ok(table)
    }

    /// An error where a function without a communicator gave a code.
    pub(super) fn check(&self, function: &str, code: c_int) -> Result<(), CollectiveError> {
        if code == SUCCESS { Ok(()) } else { Err(self.error(function, code, std::ptr::null_mut())) }
    }

    /// The error of a code: the words that NCCL has for it, and those for what happened last.
    ///
    /// `comm` is null or a communicator that is there.
    pub(super) fn error(&self, function: &str, code: c_int, comm: Comm) -> CollectiveError {
        let words = |text: *const c_char| {
            // SAFETY: NCCL gives null or a text that ends in NUL, and that stays valid until its next call.
            let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
            text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        // SAFETY: the function takes any code.
        let kind = words(unsafe { (self.get_error_string)(code) }).unwrap_or_else(|| "a code without words".to_owned());
        // SAFETY: `comm` is null or a communicator, and the function takes both.
        let last = words(unsafe { (self.get_last_error)(comm) }).map(|last| format!(" ({last})")).unwrap_or_default();
        let reason = format!("{function} gave {code}: {kind}{last}; NCCL_DEBUG=WARN says more. Make a new group");
        CollectiveError::Engine { engine: ENGINE, code: Some(code), reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let error = Table::load(Some(&"/nonexistent/libnccl.so.2".into())).err().expect("nothing to open");
        let text = error.to_string();
        let named = |tried: &[String]| tried == ["/nonexistent/libnccl.so.2"];
        assert!(matches!(&error, CollectiveError::Unavailable { tried, .. } if named(tried)), "{error:?}");
        assert!(text.contains("No such file") && text.contains(VARIABLE), "{text}");
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn a_library_of_another_kind_is_told_by_what_it_lacks() {
        let error = Table::load(Some(&"libc.so.6".into())).err().expect("the C library");
        assert!(error.to_string().contains("libc.so.6 has no function ncclGetVersion"), "{error}");
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn the_settings_lie_as_the_header_has_them() {
        // Offsets of `ncclConfig_t` in nccl.h of 2.18 and 2.32, by a C compiler.
        assert_eq!(std::mem::offset_of!(Config, blocking), 16);
        assert_eq!(std::mem::offset_of!(Config, net_name), 32);
        assert_eq!(size_of::<Config>(), 48);
        assert_eq!(size_of::<UniqueId>(), 128);
    }
}
