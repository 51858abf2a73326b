//! The CUDA backend: runs passes as PTX kernels through the driver library, which is opened at run time.

pub mod artifacts;
mod calls;
#[cfg(feature = "cudarc")]
mod cudarc;
pub mod driver;
mod embed;
mod error;
mod real;
mod session;
mod sys;

use std::collections::HashMap;
use std::sync::Arc;

use self::artifacts::{ARTIFACTS, Artifact, candidates};
use self::driver::{Driver, DriverError, FunctionId, ModuleId, StreamId};
pub use self::embed::DeviceSlice;
pub use self::real::RealDriver;
pub use self::session::CudaSession;
use crate::error::Error;
use crate::kind::BackendKind;
use crate::plan::{Kernel, Limits};

/// The environment variable that chooses a device by its number.
const DEVICE_VARIABLE: &str = "GRADWIRE_CUDA_DEVICE";

/// A CUDA device with the kernels loaded.
///
/// A clone shares them. All work goes to one stream: the device's own, or the caller's ([`Cuda::from_raw`]).
#[derive(Clone)]
pub struct Cuda {
    shared: Arc<Shared>,
    stream: StreamId,
    /// What keeps a stream of cudarc's alive.
    #[cfg(feature = "cudarc")]
    keep: Option<Arc<::cudarc::driver::CudaStream>>,
}

struct Shared {
    driver: Arc<dyn Driver>,
    module: ModuleId,
    target: u32,
    functions: HashMap<Kernel, FunctionId>,
    name: String,
}

impl Shared {
    fn limits(&self) -> Limits {
        let forward_progress = self.driver.info().compute_capability >= (7, 0);
        Limits { forward_progress, ..Limits::NONE }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.driver.unload_module(self.module);
    }
}

fn unavailable(reason: String) -> Error {
    Error::Unavailable { backend: BackendKind::Cuda, reason }
}

fn failed(error: DriverError) -> Error {
    Error::Backend { backend: BackendKind::Cuda, reason: error.to_string() }
}

impl Cuda {
    /// Opens the first CUDA device, or the one whose number is in the environment variable `GRADWIRE_CUDA_DEVICE`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no driver, no device, or none of the committed PTX can be loaded; the text
    /// has what was tried, the driver's log and both versions.
    pub fn open() -> Result<Self, Error> {
        let ordinal = match std::env::var(DEVICE_VARIABLE) {
            Err(_) => 0,
            Ok(text) => text.trim().parse().map_err(|_| {
                unavailable(format!(
                    "{DEVICE_VARIABLE}={text} is not a device's number; set it to 0, 1, ... or leave it out"
                ))
            })?,
        };
        let driver = RealDriver::open(ordinal).map_err(|e| unavailable(e.to_string()))?;
        Self::with_driver(Arc::new(driver), None)
    }

    /// A device behind any driver: the real one, or one that interprets PTX. `target` asks for one artifact (70 for
    /// sm_70); without it the highest that the device can run is taken, and lower ones where the driver refuses it.
    ///
    /// # Errors
    /// As [`Cuda::open`].
    pub fn with_driver(driver: Arc<dyn Driver>, target: Option<u32>) -> Result<Self, Error> {
        let info = driver.info().clone();
        let fitting = candidates(&ARTIFACTS, info.compute_capability);
        let mut refused = Vec::new();
        for artifact in fitting.into_iter().filter(|a| target.is_none_or(|t| t == a.target)) {
            match Self::load(&driver, artifact) {
                Ok((module, functions)) => {
                    let name = format!("{} (sm_{} PTX)", info.name, artifact.target);
                    let shared = Shared { driver, module, target: artifact.target, functions, name };
                    return Ok(Self::new(Arc::new(shared), StreamId::OWN));
                }
                Err(error) => refused.push(format!("sm_{}: {error}", artifact.target)),
            }
        }
        let (major, minor) = info.compute_capability;
        let tried = if refused.is_empty() { "none fits it".to_owned() } else { refused.join("; ") };
        Err(unavailable(format!(
            "{} has compute capability {major}.{minor}, and of the PTX for sm_35, sm_60, sm_70, sm_80 and sm_90, {tried}",
            info.name
        )))
    }

    fn new(shared: Arc<Shared>, stream: StreamId) -> Self {
        Self {
            shared,
            stream,
            #[cfg(feature = "cudarc")]
            keep: None,
        }
    }

    fn load(
        driver: &Arc<dyn Driver>,
        artifact: &Artifact,
    ) -> Result<(ModuleId, HashMap<Kernel, FunctionId>), DriverError> {
        let module = driver.load_module(&artifacts::text(artifact))?;
        let mut functions = HashMap::new();
        for kernel in Kernel::ALL {
            match driver.function(module, kernel.name()) {
                Ok(function) => functions.insert(kernel, function),
                Err(error) => {
                    driver.unload_module(module);
                    return Err(error);
                }
            };
        }
        Ok((module, functions))
    }

    /// The device, and which PTX was loaded.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Compute capability, times ten, that the loaded PTX was compiled for.
    pub fn target(&self) -> u32 {
        self.shared.target
    }

    /// What bounds a single pass: nothing but the parameters' own range. From compute capability 7.0 on workgroups may wait for one
    /// another.
    pub fn limits(&self) -> Limits {
        self.shared.limits()
    }
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cuda").field("name", &self.shared.name).field("target", &self.shared.target).finish()
    }
}
