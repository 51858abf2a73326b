//! A device that was opened, and what it says of itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::driver::{Driver, StreamId};
use super::fail::unavailable;
use super::modules::{LoadedFamily, Modules, kernels_of};
use super::preset::Launch;
use super::real::RealDriver;
use super::shared::Shared;
use super::staging::Staging;
use crate::error::Error;
use crate::family::CodecFamily;
use crate::plan::{Limits, Pass};

/// The environment variable that chooses a device by its number.
const DEVICE_VARIABLE: &str = "GRADWIRE_CUDA_DEVICE";

/// A CUDA device. The driver compiles a codec's kernels when the first call needs them, or beforehand:
/// [`Cuda::warm_up`].
///
/// A clone shares what is compiled. All work goes to one stream: the device's own, or the caller's
/// ([`Cuda::from_raw`]).
#[derive(Clone)]
pub struct Cuda {
    pub(super) shared: Arc<Shared>,
    pub(super) stream: StreamId,
    /// Where copies of a compressor's go through. It stands before what keeps the stream, and so is dropped first.
    pub(super) staging: Option<Arc<Staging>>,
    /// What keeps a stream of cudarc's alive.
    #[cfg(feature = "cudarc")]
    pub(super) keep: Option<Arc<::cudarc::driver::CudaStream>>,
}

impl Cuda {
    /// Opens the first CUDA device, or the one whose number is in the environment variable `GRADWIRE_CUDA_DEVICE`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there is no driver, no device, or no target's PTX can be loaded; the text
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

    /// A device of any driver: the real one, or one that interprets PTX. `target` asks for one target (70 for
    /// sm_70); without it the highest that the device can run is taken, and lower ones where the driver refuses it.
    ///
    /// # Errors
    /// As [`Cuda::open`].
    pub fn with_driver(driver: Arc<dyn Driver>, target: Option<u32>) -> Result<Self, Error> {
        let modules = Modules::open(driver.clone(), target)?;
        let name = format!("{} (sm_{} PTX)", driver.info().name, modules.target());
        let overlapping = AtomicBool::new(true);
        Ok(Self::new(Arc::new(Shared { driver, modules, name, overlapping }), StreamId::OWN))
    }

    pub(super) fn new(shared: Arc<Shared>, stream: StreamId) -> Self {
        Self {
            shared,
            stream,
            staging: None,
            #[cfg(feature = "cudarc")]
            keep: None,
        }
    }

    /// Compiles the kernels that calls of these codecs may need on this device, so that no later call has to. What is
    /// compiled already is left alone.
    ///
    /// A capture into a CUDA graph needs it: while a stream is captured, a driver refuses to load kernels. A selection
    /// of top-k that was planned by other limits than [`Cuda::limits`] may need kernels that this leaves out;
    /// [`Cuda::warm_up_passes`] compiles those.
    ///
    /// ```no_run
    /// use gradwire::backend::cuda::Cuda;
    /// use gradwire::{CodecFamily, CodecId};
    /// let cuda = Cuda::open()?;
    /// cuda.warm_up(&[CodecId::Qsgd.into(), CodecFamily::TopK])?;
    /// for family in cuda.loaded() {
    ///     println!("{}: {:.2} s", family.name, family.seconds);
    /// }
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Capturing`] if something has to be compiled and the stream is being captured; [`Error::Unavailable`]
    /// if the driver refuses a codec's PTX for every target; [`Error::Backend`] if it fails otherwise, as for
    /// want of memory. What was compiled before the error stays, and the next call tries again.
    pub fn warm_up(&self, codecs: &[CodecFamily]) -> Result<(), Error> {
        let limits = self.limits();
        let kernels = codecs.iter().flat_map(|codec| kernels_of(*codec, &limits));
        self.shared.modules.ready(kernels, self.stream)
    }

    /// Compiles the kernels that these passes need: [`Cuda::warm_up`] for a plan, whatever limits it was made by.
    ///
    /// # Errors
    /// As [`Cuda::warm_up`].
    pub fn warm_up_passes(&self, passes: &[Pass]) -> Result<(), Error> {
        self.shared.modules.ready(passes.iter().map(|pass| Launch::of(pass).kernel), self.stream)
    }

    /// Keeps compiled kernels in a folder, where later processes find them; for everything that is compiled from now
    /// on, by this value, its clones, and every other [`Cuda`] of the context. `None` ends it. The folder is made when
    /// the first file is written.
    ///
    /// A file is used only for the same PTX, version of this crate, compute capability and CUDA release of the driver,
    /// and only where its checksums are right; else the kernels are compiled anew, and the file is written over.
    /// Nothing is ever deleted. A folder that cannot be read or written fails no call: [`Cuda::loaded`] tells.
    ///
    /// **Use a folder that only people you trust can write to.** The files are programs for the device, and the driver
    /// trusts what they say of themselves; the checksums are against damage, not against forgery.
    ///
    /// ```no_run
    /// use gradwire::CodecId;
    /// use gradwire::backend::cuda::Cuda;
    /// let cuda = Cuda::open()?;
    /// cuda.cache_in(Some("/var/cache/my-trainer".into()));
    /// cuda.warm_up(&[CodecId::Qsgd.into()])?; // compiles in the first process, and reads in the next ones
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub fn cache_in(&self, folder: Option<PathBuf>) {
        self.shared.modules.cache_in(folder);
    }

    /// Whether a kernel's blocks may begin while the kernel before it in the same call drains. They may unless this
    /// says otherwise: for every call from now on, by this value, its clones, and every other [`Cuda`] of the context.
    ///
    /// A call of top-k or PowerSGD is several launches in a row. From compute capability 9.0 on each but the first is a
    /// programmatic dependent launch, where the launch before it is of the same two codecs: its blocks take the room
    /// that is left, and wait there before they touch memory. Results are the same, and a graph that records the call
    /// has no launches that overlap. What is queued before a call is done when it begins. So is the call when what is
    /// queued after it begins, but for a programmatic dependent launch of the caller's own: its kernel has to execute
    /// `griddepcontrol.wait` (`cudaGridDependencySynchronize`) before it reads results, whatever this says.
    ///
    /// ```no_run
    /// let cuda = gradwire::backend::cuda::Cuda::open()?;
    /// cuda.overlap_launches(false); // to see in a profile what each kernel takes alone
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    pub fn overlap_launches(&self, allowed: bool) {
        self.shared.overlapping.store(allowed, Ordering::Relaxed);
    }

    /// The families of kernels that are loaded, each with its target, the seconds that it took and what the cache had
    /// to do with it. Opening a device loads the smallest one, by which it finds the target that the driver takes.
    pub fn loaded(&self) -> Vec<LoadedFamily> {
        self.shared.modules.told()
    }

    /// The device, and the target of the PTX that it is given.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Compute capability, times ten, that the PTX was compiled for. Where the driver refuses a family for this target,
    /// [`Cuda::loaded`] tells which lower one it was given.
    pub fn target(&self) -> u32 {
        self.shared.modules.target()
    }

    /// What bounds a single pass: nothing but the parameters' own range. From compute capability 7.0 on workgroups may
    /// wait for one another.
    pub fn limits(&self) -> Limits {
        self.shared.limits()
    }
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cuda").field("name", &self.shared.name).field("target", &self.target()).finish()
    }
}
