//! The CUDA backend: runs passes as PTX kernels through the driver library, which is opened at run time.

pub mod artifacts;
mod cache;
mod calls;
#[cfg(feature = "cudarc")]
pub(crate) mod cudarc;
mod device;
pub mod driver;
mod embed;
mod error;
mod events;
mod fail;
mod memory;
mod modules;
mod preset;
mod real;
mod session;
mod shared;
mod staging;
mod sys;

#[cfg(feature = "cudarc")]
pub use self::cudarc::{Lend, LendMut, View};
pub use self::device::Cuda;
pub use self::embed::DeviceSlice;
pub(crate) use self::events::Event;
pub use self::memory::CudaRoom;
pub use self::modules::{Cached, LoadedFamily};
pub use self::real::RealDriver;
pub use self::session::CudaSession;
