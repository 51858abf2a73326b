//! A `libcuda` whose device is the PTX machine.
//!
//! Programs that drive CUDA (our own driver table, cust, cudarc, candle) load it in place of NVIDIA's driver and
//! run unchanged on a machine without a GPU: their contexts, streams and buffers are real to them, and kernels are
//! interpreted, with every check that the machine makes. `cargo xtask embed` uses it so.
//!
//! It is for tests. Work is done when a call returns, but for what the stand-in for NCCL queues
//! (`gradwire_stand_in_hold`). `gradwire_stand_in_queued` tells what was queued. The device's name says that it is a
//! stand-in; and no event has a time, so that nothing measured on it can be taken for a GPU's. `GRADWIRE_STAND_IN`
//! chooses the compute capability, `9.0` where it is not set. `gradwire_faults_arm` and its like make a call fail:
//! `cargo xtask faults`. What no test needs is exported, so that programs link, and returns `CUDA_ERROR_NOT_SUPPORTED`.

#![allow(non_snake_case, reason = "the names are those of cuda.h")]
#![allow(clippy::missing_safety_doc, reason = "every function is as safe as the one of that name in cuda.h")]

mod codes;
mod device;
mod held;
mod link;
mod memory;
mod missing;
mod module;
mod queued;
mod state;

/// Exports functions of the driver's interface: `extern "C"`, zero for success, else the `CUresult`.
macro_rules! driver {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> i32 {
            let work = || -> Result<(), i32> { $body };
            if let Some(code) = crate::codes::failure(crate::name!($name), &work) {
                return code;
            }
            work().err().unwrap_or(0)
        }
    )*};
}
pub(crate) use driver;

/// The name as C has it.
macro_rules! name {
    ($name:ident) => {
        const {
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("an identifier holds no NUL"),
            }
        }
    };
}
pub(crate) use name;
