//! Which device a part of the report runs on, by a name that one process can give another.

use std::fmt;

use gradwire::{BackendKind, Device, Error};

/// A backend, and of CUDA the target of the PTX that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Cuda(Option<u32>),
    Wgpu,
    Cpu,
    /// The interpreter of PTX, in place of a GPU that loads this target: to rehearse a report, never to time
    /// anything.
    PtxMachine(u32),
}

/// The target that the interpreter has where none is named.
const REHEARSED: u32 = 90;

impl Place {
    /// Names of the backends.
    pub(crate) const NAMES: [&'static str; 4] = ["cuda", "wgpu", "cpu", "ptx-machine"];

    /// Reads `cuda`, `cuda:80`, `wgpu`, `cpu`, `ptx-machine` or `ptx-machine:35`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (name, target) = match text.split_once(':') {
            Some((name, target)) => (name, Some(target.parse().map_err(|_| wrong(text))?)),
            None => (text, None),
        };
        match (name, target) {
            ("cuda", target) => Ok(Self::Cuda(target)),
            ("wgpu", None) => Ok(Self::Wgpu),
            ("cpu", None) => Ok(Self::Cpu),
            ("ptx-machine", target) => Ok(Self::PtxMachine(target.unwrap_or(REHEARSED))),
            _ => Err(wrong(text)),
        }
    }

    /// The backend's name.
    pub(crate) fn backend(self) -> &'static str {
        match self {
            Self::Cuda(_) => "cuda",
            Self::Wgpu => "wgpu",
            Self::Cpu => "cpu",
            Self::PtxMachine(_) => "ptx-machine",
        }
    }

    /// The target of the PTX, if there is PTX.
    pub(crate) fn target(self) -> Option<u32> {
        match self {
            Self::Cuda(target) => target,
            Self::PtxMachine(target) => Some(target),
            Self::Wgpu | Self::Cpu => None,
        }
    }

    /// The same backend with the PTX of a target.
    pub(crate) fn with_target(self, target: u32) -> Self {
        match self {
            Self::Cuda(_) => Self::Cuda(Some(target)),
            Self::PtxMachine(_) => Self::PtxMachine(target),
            other => other,
        }
    }

    /// Opens it.
    pub(crate) fn open(self) -> Result<Device, Error> {
        match self {
            Self::Cpu => Ok(Device::cpu()),
            Self::Wgpu => Device::of(BackendKind::Wgpu),
            #[cfg(feature = "cuda")]
            Self::Cuda(Some(target)) => {
                let driver = std::sync::Arc::new(cuda::driver()?);
                gradwire::backend::cuda::Cuda::with_driver(driver, Some(target)).map(Device::from_cuda)
            }
            Self::Cuda(_) => Device::of(BackendKind::Cuda),
            #[cfg(feature = "cuda")]
            Self::PtxMachine(target) => {
                let machine = gradwire_ptx_machine::Machine::new((target / 10, target % 10), 1).rehearsing();
                gradwire::backend::cuda::Cuda::with_driver(std::sync::Arc::new(machine), Some(target))
                    .map(Device::from_cuda)
            }
            #[cfg(not(feature = "cuda"))]
            Self::PtxMachine(_) => Device::of(BackendKind::Cuda),
        }
    }
}

fn wrong(text: &str) -> String {
    format!(
        "`{text}` is none of {}; of cuda and ptx-machine a target can follow, as in cuda:80",
        Place::NAMES.join(", ")
    )
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.target() {
            Some(target) => write!(f, "{}:{target}", self.backend()),
            None => f.write_str(self.backend()),
        }
    }
}

/// NVIDIA's driver, asked directly.
#[cfg(feature = "cuda")]
pub(crate) mod cuda {
    use gradwire::backend::cuda::RealDriver;
    use gradwire::{BackendKind, Error};

    /// The device that `Device::of(BackendKind::Cuda)` would open: the first, or the one of `GRADWIRE_CUDA_DEVICE`.
    pub(crate) fn driver() -> Result<RealDriver, Error> {
        let unavailable = |reason: String| Error::Unavailable { backend: BackendKind::Cuda, reason };
        let ordinal = match std::env::var("GRADWIRE_CUDA_DEVICE") {
            Err(_) => 0,
            Ok(text) => text.trim().parse().map_err(|_| {
                unavailable(format!("GRADWIRE_CUDA_DEVICE={text} is not a device's number; set it to 0, 1, ..."))
            })?,
        };
        RealDriver::open(ordinal).map_err(|e| unavailable(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_they_went() {
        for name in ["cuda", "cuda:35", "wgpu", "cpu", "ptx-machine:90"] {
            assert_eq!(Place::parse(name).unwrap().to_string(), name);
        }
        assert_eq!(Place::parse("ptx-machine"), Ok(Place::PtxMachine(90)));
        assert_eq!(Place::parse("cuda").unwrap().with_target(80), Place::Cuda(Some(80)));
        for name in ["", "gpu", "cuda:", "cuda:sm_80", "wgpu:1", "cpu:90"] {
            let error = Place::parse(name).unwrap_err();
            assert!(error.starts_with(&format!("`{name}` is none of cuda, wgpu")), "{error}");
        }
    }
}
