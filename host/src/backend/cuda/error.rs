//! What can go wrong between the CUDA backend and a driver, in words that say what to do about it.

use std::fmt;

use super::artifacts::Header;

/// No CUDA driver could be loaded on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no CUDA driver could be loaded; looked for {}: {reason}. The driver's library comes with the NVIDIA driver, not \
     with the CUDA toolkit: install or update the driver, or let the container see it",
    tried.join(" and ")
)]
pub struct DriverUnavailable {
    /// The libraries that were looked for, in that order.
    pub tried: Vec<String>,
    /// Why none of them would do: the system's own words, one reason a library.
    pub reason: String,
}

/// A failure of a [`Driver`](super::driver::Driver).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// There is no driver.
    #[error(transparent)]
    Unavailable(#[from] DriverUnavailable),
    /// There is a driver, and it shows no device.
    #[error(
        "the CUDA driver (for CUDA {}) shows no device: see whether `nvidia-smi` lists one, and whether \
         CUDA_VISIBLE_DEVICES hides it", version(*driver_version)
    )]
    NoDevice {
        /// The CUDA release the driver is for.
        driver_version: (u32, u32),
    },
    /// The device asked for is not there.
    #[error(
        "CUDA device {asked} was asked for, and the driver shows {count}, numbered from 0: ask for a lower number, or \
         let CUDA_VISIBLE_DEVICES show more"
    )]
    BadOrdinal {
        /// The number asked for.
        asked: u32,
        /// How many devices there are.
        count: u32,
    },
    /// A null pointer was handed over as a context.
    #[error("a null CUDA context was handed over: make a context first, and hand over that one")]
    NullContext,
    /// The driver's function failed.
    #[error("{call} failed with {name} ({code}): {message}{}", remedy(*code))]
    Call {
        /// The function.
        call: &'static str,
        /// The `CUresult` it returned.
        code: i32,
        /// The driver's name of the code.
        name: String,
        /// The driver's description of the code.
        message: String,
    },
    /// The device has too little memory free.
    #[error(
        "{asked} bytes of device memory were asked for, and {free} of {total} are free: free some, or compress the \
         gradient in smaller tensors"
    )]
    OutOfMemory {
        /// The bytes asked for.
        asked: u64,
        /// The bytes free when it failed; fragmentation may leave no single piece of that size.
        free: u64,
        /// The bytes of the device.
        total: u64,
    },
    /// The driver gives no page-locked memory of the host.
    #[error(
        "{asked} bytes of page-locked host memory were asked for, and the driver has none: free some, let the process \
         lock more memory (ulimit -l), or compress the gradient in smaller tensors"
    )]
    NoHostMemory {
        /// The bytes asked for.
        asked: u64,
    },
    /// A size that does not fit the address space of this process.
    #[error("{bytes} bytes are more than this process can address: use a 64-bit build, or smaller tensors")]
    TooLarge {
        /// The size asked for.
        bytes: u64,
    },
    /// The driver would not compile a PTX text.
    #[error(fmt = refused)]
    Jit {
        /// The `CUresult` of the load.
        code: i32,
        /// The driver's name of the code.
        name: String,
        /// What the driver's compiler said: errors first, then remarks. It may be empty.
        log: String,
        /// What the text says of itself, if it can be read: its PTX ISA version and its target.
        header: Option<Header>,
        /// The CUDA release the driver is for.
        driver_version: (u32, u32),
        /// The device's compute capability.
        compute_capability: (u32, u32),
    },
    /// The driver would not load a compiled module.
    #[error(
        "the driver refused a compiled module of {bytes} bytes with {name} ({code}): it was compiled for another device, or it is \
         damaged; compile it anew"
    )]
    Image {
        /// The `CUresult` of the load.
        code: i32,
        /// The driver's name of the code.
        name: String,
        /// The module's bytes.
        bytes: u64,
    },
    /// A call that this driver does not have.
    #[error("this driver does not support {what}: update the driver, or go without a cache of compiled kernels")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// A module has no kernel of that name.
    #[error(
        "the PTX module has no kernel named `{name}`: the artifact and this crate are of different versions, rebuild \
         the artifact from this source"
    )]
    MissingFunction {
        /// The name asked for.
        name: String,
    },
    /// An identifier that this driver did not give out, or whose module was unloaded.
    #[error("{what} {id} is not loaded in this driver: it was unloaded, or comes from another driver")]
    NotLoaded {
        /// `module` or `function`.
        what: &'static str,
        /// The identifier.
        id: u64,
    },
    /// A text that would be cut short on its way to the driver.
    #[error("{what} has a NUL at byte {position}, where the driver would take it to end: it is damaged, get it anew")]
    NulByte {
        /// What the text is.
        what: &'static str,
        /// Where in it.
        position: usize,
    },
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(super) const OUT_OF_MEMORY: i32 = 2;
/// `CUDA_ERROR_NO_DEVICE`.
pub(super) const NO_DEVICE: i32 = 100;
/// `CUDA_ERROR_NOT_FOUND`.
pub(super) const NOT_FOUND: i32 = 500;
/// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`.
pub(super) const CAPTURE_IMPLICIT: i32 = 906;

const INVALID_IMAGE: i32 = 200;
const NO_BINARY_FOR_GPU: i32 = 209;
const INVALID_PTX: i32 = 218;
const JIT_COMPILER_NOT_FOUND: i32 = 221;
const UNSUPPORTED_PTX_VERSION: i32 = 222;
const JIT_COMPILATION_DISABLED: i32 = 223;
const INVALID_SOURCE: i32 = 300;

/// Whether a load that ended in `code` failed for the sake of the text, so that a lower target may fare better.
pub(super) fn is_refusal(code: i32) -> bool {
    matches!(
        code,
        INVALID_IMAGE
            | NO_BINARY_FOR_GPU
            | INVALID_PTX
            | JIT_COMPILER_NOT_FOUND
            | UNSUPPORTED_PTX_VERSION
            | JIT_COMPILATION_DISABLED
            | INVALID_SOURCE
    )
}

fn version((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
}

/// What helps against an error that has a usual cause outside the program; empty for the others.
fn remedy(code: i32) -> &'static str {
    match code {
        4 => ". The process is ending, and the driver ended first: let go of the device earlier",
        34 => {
            ". This libcuda is the toolkit's link-time stub, not a driver: take its folder from the library path, or \
             install the driver"
        }
        46 => ". Another process holds the device for itself: see `nvidia-smi`",
        700 | 702 | 710 | 714..=719 => {
            ". A kernel failed, this one or an earlier one, and the context with it: nothing more runs in it, restart \
             the process"
        }
        802 => ". On a machine with NVSwitch, see whether the fabric manager runs",
        803 => ". The driver's library and its kernel module are of different versions: reboot after an update",
        804 => ". The forward-compatibility package does not serve this device: update the driver itself",
        900..=908 => {
            ". A stream is being captured into a graph, and this call is not allowed meanwhile; what compiles kernels is \
             Cuda::warm_up, before the capture"
        }
        999 => ". See the system log, and whether `nvidia-smi` works",
        _ => "",
    }
}

/// Writes [`DriverError::Jit`].
fn refused(
    code: &i32,
    name: &str,
    log: &str,
    header: &Option<Header>,
    driver_version: &(u32, u32),
    compute_capability: &(u32, u32),
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match header {
        Some(Header { version: (major, minor), target }) => {
            write!(f, "the driver refused the PTX for sm_{target}, written in PTX ISA {major}.{minor},")?;
        }
        None => write!(f, "the driver refused a PTX text without a readable header,")?,
    }
    let (driver, device) = (version(*driver_version), version(*compute_capability));
    write!(f, " with {name} ({code}); the driver is for CUDA {driver}, the device has compute capability {device}.")?;
    match *code {
        UNSUPPORTED_PTX_VERSION => match header.and_then(Header::least_cuda) {
            Some(least) => write!(
                f,
                " That PTX ISA needs a driver for CUDA {} or newer: update the driver, or use a lower target",
                version(least)
            )?,
            None => write!(f, " That PTX ISA is too new for the driver: update the driver, or use a lower target")?,
        },
        NO_BINARY_FOR_GPU => write!(f, " The device is older than the target: use a lower target")?,
        JIT_COMPILER_NOT_FOUND => write!(
            f,
            " The driver's PTX compiler is missing: install libnvidia-ptxjitcompiler, part of the driver, or let \
             the container see it"
        )?,
        JIT_COMPILATION_DISABLED => write!(f, " Unset CUDA_DISABLE_PTX_JIT and CUDA_DISABLE_JIT")?,
        _ => write!(f, " Use a lower target, or rebuild the artifact; the log tells where the text is at fault")?,
    }
    if log.is_empty() { write!(f, ". The log is empty") } else { write!(f, ". The log:\n{log}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jit(code: i32, version: (u32, u32), log: &str) -> String {
        DriverError::Jit {
            code,
            name: "CUDA_ERROR_X".into(),
            log: log.into(),
            header: Some(Header { version, target: 90 }),
            driver_version: (11, 4),
            compute_capability: (8, 6),
        }
        .to_string()
    }

    #[test]
    fn a_ptx_too_new_names_both_versions_and_the_remedy() {
        let text = jit(UNSUPPORTED_PTX_VERSION, (7, 8), "ptxas fatal");
        for part in ["sm_90", "PTX ISA 7.8", "for CUDA 11.4", "for CUDA 11.8 or newer", "lower target", "ptxas fatal"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = jit(UNSUPPORTED_PTX_VERSION, (42, 0), "");
        assert!(text.contains("update the driver") && text.contains("log is empty"), "{text}");
    }

    #[test]
    fn a_device_too_old_is_told_apart() {
        let text = jit(NO_BINARY_FOR_GPU, (7, 0), "");
        assert!(text.contains("compute capability 8.6") && text.contains("use a lower target"), "{text}");
    }

    #[test]
    fn a_failed_call_carries_the_drivers_words_and_a_remedy_where_there_is_one() {
        let call = |code| DriverError::Call {
            call: "cuMemAlloc_v2",
            code,
            name: "CUDA_ERROR_X".into(),
            message: "some words".into(),
        };
        assert_eq!(call(1).to_string(), "cuMemAlloc_v2 failed with CUDA_ERROR_X (1): some words");
        assert!(call(700).to_string().contains("restart the process"));
        assert!(call(34).to_string().contains("stub"));
    }

    #[test]
    fn errors_cross_threads_and_stay_small() {
        fn crosses<T: Send + Sync + 'static>() {}
        crosses::<DriverError>();
        assert!(size_of::<DriverError>() <= 128, "clippy's limit for an Err that is moved about");
    }
}
