//! The kernels of a device: one module per family, compiled when its first kernel is needed.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use gradwire_kernels::presets::Preset;

use super::artifacts::{Artifact, FAMILIES, Family, candidates, family_of, text, waits};
use super::cache;
use super::driver::{Driver, DriverError, FunctionId, ModuleId, StreamId};
use super::fail::{failed, unavailable};
use crate::error::Error;
use crate::family::CodecFamily;
use crate::plan::{Kernel, Limits};

/// The family by which opening a device finds out which target its driver takes: the smallest, so that it takes
/// milliseconds.
const PROBE: &str = "sparse";

/// A family of kernels that a device has loaded.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LoadedFamily {
    /// The family's name: `common`, `qsgd`, `topk` and so on.
    pub name: &'static str,
    /// Compute capability, times ten, that its PTX was compiled for.
    pub target: u32,
    /// Seconds that loading took, by the host's clock.
    pub seconds: f64,
    /// Higher targets that the driver refused, each with its words.
    pub refused: Vec<String>,
    /// What the cache on disk had to do with it.
    pub cached: Cached,
}

/// What a cache on disk had to do with a family that was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cached {
    /// No cache was asked for: [`Cuda::cache_in`](super::Cuda::cache_in).
    Off,
    /// The compiled module was there.
    Hit,
    /// It was not there, or not of this text, driver and device. It is now.
    Stored,
    /// It was not there, and could not be stored.
    NotStored {
        /// Why not.
        reason: String,
    },
}

/// A family's module, once it is loaded.
#[derive(Default)]
struct Slot {
    loaded: OnceLock<Loaded>,
    /// Held while the module is made, so that threads that need it at once make it once.
    loading: Mutex<()>,
}

struct Loaded {
    module: ModuleId,
    functions: HashMap<Kernel, FunctionId>,
    /// Whether each kernel waits for the one before it by itself.
    waits: bool,
    told: LoadedFamily,
}

/// A kernel that is loaded.
#[derive(Clone, Copy)]
pub(super) struct Function {
    pub(super) id: FunctionId,
    /// Whether it begins with `griddepcontrol.wait`, and so may be launched by
    /// [`Driver::launch_dependent`].
    pub(super) waits: bool,
}

/// The modules of one device.
pub(super) struct Modules {
    driver: Arc<dyn Driver>,
    /// Targets above this are not tried: the driver refused them, or the caller asked for this one.
    most: u32,
    /// Whether no lower target is tried either.
    only: bool,
    slots: [Slot; FAMILIES.len()],
    /// The slot of each kernel.
    places: HashMap<Kernel, usize>,
    cache: Mutex<Option<PathBuf>>,
}

impl Drop for Modules {
    fn drop(&mut self) {
        for slot in &self.slots {
            if let Some(loaded) = slot.loaded.get() {
                self.driver.unload_module(loaded.module);
            }
        }
    }
}

/// A lock over what is whole after every statement, so that a thread that panicked left nothing half done.
fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Modules {
    /// Finds out which target the driver takes, by the smallest family.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it takes none.
    pub(super) fn open(driver: Arc<dyn Driver>, target: Option<u32>) -> Result<Self, Error> {
        let places = Kernel::ALL.into_iter().filter_map(|kernel| {
            let family = family_of(kernel.name())?;
            Some((kernel, FAMILIES.iter().position(|f| f.name == family.name)?))
        });
        let mut modules = Self {
            driver,
            most: target.unwrap_or(u32::MAX),
            only: target.is_some(),
            slots: Default::default(),
            places: places.collect(),
            cache: Mutex::default(),
        };
        let probe = FAMILIES.iter().position(|family| family.name == PROBE).unwrap_or(0);
        modules.load(probe).map_err(|problem| unavailable(problem.to_string()))?;
        if let Some(loaded) = modules.slots[probe].loaded.get() {
            modules.most = loaded.told.target;
        }
        Ok(modules)
    }

    /// Compute capability, times ten, of the highest target that the driver takes.
    pub(super) fn target(&self) -> u32 {
        self.most
    }

    /// Families that are loaded from now on are looked for in this folder, and stored there.
    pub(super) fn cache_in(&self, folder: Option<PathBuf>) {
        *held(&self.cache) = folder;
    }

    /// What is loaded.
    pub(super) fn told(&self) -> Vec<LoadedFamily> {
        self.slots.iter().filter_map(|slot| Some(slot.loaded.get()?.told.clone())).collect()
    }

    /// A kernel's function; none if its family is not loaded.
    pub(super) fn function(&self, kernel: Kernel) -> Option<Function> {
        let loaded = self.slots[*self.places.get(&kernel)?].loaded.get()?;
        Some(Function { id: *loaded.functions.get(&kernel)?, waits: loaded.waits })
    }

    /// Loads what these kernels need and is not loaded yet.
    ///
    /// # Errors
    /// [`Error::Capturing`] if something is to be loaded and the stream is being captured; [`Error::Unavailable`]
    /// if the driver refuses every text of a family; [`Error::Backend`] if it fails otherwise. The next call
    /// tries again.
    pub(super) fn ready(&self, kernels: impl IntoIterator<Item = Kernel>, stream: StreamId) -> Result<(), Error> {
        for place in kernels.into_iter().filter_map(|kernel| self.places.get(&kernel).copied()) {
            if self.slots[place].loaded.get().is_some() {
                continue;
            }
            if self.driver.is_capturing(stream).map_err(failed)? {
                return Err(Error::Capturing { family: FAMILIES[place].name });
            }
            self.load(place).map_err(|problem| match problem {
                Problem::Refused { .. } => unavailable(problem.to_string()),
                Problem::Failed { error, .. } => failed(error),
            })?;
        }
        Ok(())
    }

    /// Loads a family, once.
    fn load(&self, place: usize) -> Result<(), Problem> {
        let (slot, family) = (&self.slots[place], &FAMILIES[place]);
        let _one = held(&slot.loading);
        if slot.loaded.get().is_some() {
            return Ok(());
        }
        let start = Instant::now();
        let fitting = candidates(&family.artifacts, self.driver.info().compute_capability);
        let tried = |a: &&Artifact| if self.only { a.target == self.most } else { a.target <= self.most };
        let mut refused = Vec::new();
        for artifact in fitting.into_iter().filter(tried) {
            match self.module(place, family, artifact) {
                Ok((module, functions, cached)) => {
                    let (name, target, seconds) = (family.name, artifact.target, start.elapsed().as_secs_f64());
                    let told = LoadedFamily { name, target, seconds, refused, cached };
                    // Nobody else sets it: this thread holds the lock.
                    let _ = slot.loaded.set(Loaded { module, functions, waits: waits(artifact), told });
                    return Ok(());
                }
                // The text's fault, so that another text may fare better.
                Err(error @ (DriverError::Jit { .. } | DriverError::MissingFunction { .. })) => {
                    refused.push(format!("sm_{}: {error}", artifact.target));
                }
                Err(error) => return Err(Problem::Failed { family: family.name, target: artifact.target, error }),
            }
        }
        let info = self.driver.info();
        Err(Problem::Refused {
            family: family.name,
            device: info.name.clone(),
            compute_capability: info.compute_capability,
            refused,
        })
    }

    /// Loads one text of a family, and looks its kernels up.
    fn module(
        &self,
        place: usize,
        family: &Family,
        artifact: &Artifact,
    ) -> Result<(ModuleId, HashMap<Kernel, FunctionId>, Cached), DriverError> {
        let (module, cached) = self.compiled(family, artifact, true)?;
        match self.functions(place, module) {
            Ok(functions) => Ok((module, functions, cached)),
            // A stored module may be of something else, whatever its checks say: it is compiled and stored anew.
            Err(DriverError::MissingFunction { .. }) if cached == Cached::Hit => {
                let (module, cached) = self.compiled(family, artifact, false)?;
                Ok((module, self.functions(place, module)?, cached))
            }
            Err(error) => Err(error),
        }
    }

    /// The functions of a family's kernels. The module is unloaded if it lacks one.
    fn functions(&self, place: usize, module: ModuleId) -> Result<HashMap<Kernel, FunctionId>, DriverError> {
        let mut functions = HashMap::new();
        for kernel in self.places.iter().filter(|(_, of)| **of == place).map(|(kernel, _)| *kernel) {
            match self.driver.function(module, kernel.name()) {
                Ok(function) => functions.insert(kernel, function),
                Err(error) => {
                    self.driver.unload_module(module);
                    return Err(error);
                }
            };
        }
        Ok(functions)
    }

    /// Loads one text of a family: from the cache, where what is `stored` may be taken, or by having it compiled.
    fn compiled(&self, family: &Family, artifact: &Artifact, stored: bool) -> Result<(ModuleId, Cached), DriverError> {
        let ptx = text(artifact);
        let folder = held(&self.cache).clone();
        let Some(folder) = folder else { return Ok((self.driver.load_module(&ptx)?, Cached::Off)) };
        let entry = cache::Entry::new(&folder, family.name, artifact.target, &ptx, self.driver.info());
        if let Some(image) = entry.read().filter(|_| stored) {
            // SAFETY: the file says that a driver compiled this text to these bytes, and its checks hold; whoever named
            // the folder answers for who writes there.
            match unsafe { self.driver.load_image(&image) } {
                Ok(module) => return Ok((module, Cached::Hit)),
                // Another driver's, or damaged in a way that no checksum told: it is written anew.
                Err(DriverError::Image { .. } | DriverError::Unsupported { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let loaded = self.driver.compile(&ptx).and_then(|image| {
            // SAFETY: the driver made these bytes a moment ago.
            let module = unsafe { self.driver.load_image(&image) }?;
            Ok((module, image))
        });
        match loaded {
            Ok((module, image)) => {
                let cached =
                    entry.write(&image).map_or_else(|reason| Cached::NotStored { reason }, |()| Cached::Stored);
                Ok((module, cached))
            }
            Err(error @ (DriverError::Image { .. } | DriverError::Unsupported { .. })) => {
                let reason = error.to_string();
                Ok((self.driver.load_module(&ptx)?, Cached::NotStored { reason }))
            }
            Err(error) => Err(error),
        }
    }
}

/// Why a family could not be loaded.
#[derive(Debug, thiserror::Error)]
enum Problem {
    /// The driver takes none of its texts, or none is for this device.
    #[error(
        "{device} has compute capability {}.{}, and of the PTX of {family} for sm_35, sm_60, sm_70, sm_80 and sm_90, {}",
        compute_capability.0, compute_capability.1,
        if refused.is_empty() { "none fits it".to_owned() } else { refused.join("; ") }
    )]
    Refused { family: &'static str, device: String, compute_capability: (u32, u32), refused: Vec<String> },
    /// The driver failed for another reason than the text.
    #[error("the PTX of {family} for sm_{target} could not be loaded: {error}")]
    Failed { family: &'static str, target: u32, error: DriverError },
}

/// One kernel of each module that a family of codecs may need on a device of these limits.
pub(super) fn kernels_of(codec: CodecFamily, limits: &Limits) -> Vec<Kernel> {
    if codec == CodecFamily::Rotation {
        return vec![Kernel::Rotate];
    }
    if codec == CodecFamily::Dct {
        return vec![Kernel::Dct];
    }
    if codec == CodecFamily::RandomK {
        return vec![Kernel::RandomGather];
    }
    let mut kernels = vec![Kernel::FiniteScan];
    match codec {
        CodecFamily::Bucketed(id) => {
            kernels.push(Kernel::Encode(id));
            kernels.extend(Preset::ALL.iter().find(|preset| preset.codec == id).map(|preset| Kernel::Fixed(*preset)));
            if id.is_packable() {
                kernels.push(Kernel::EliasMeasure);
            }
        }
        CodecFamily::TopK => {
            kernels.extend([Kernel::TopKSample, Kernel::Scatter]);
            if !limits.forward_progress {
                kernels.push(Kernel::TopKSketch);
            }
        }
        CodecFamily::PowerSgd => kernels.push(Kernel::PowerSgdLeft),
        CodecFamily::Rotation | CodecFamily::Dct | CodecFamily::RandomK => {}
    }
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_in_a_family_and_every_family_is_warmed_up_by_a_codec() {
        let of = |kernel: Kernel| family_of(kernel.name()).map(|family| family.name);
        assert!(Kernel::ALL.iter().all(|kernel| of(*kernel).is_some()));
        let warmed: Vec<_> = CodecFamily::ALL.iter().flat_map(|c| kernels_of(*c, &Limits::NONE)).map(of).collect();
        assert!(FAMILIES.iter().all(|family| warmed.contains(&Some(family.name))), "{warmed:?}");
        assert!(FAMILIES.iter().any(|family| family.name == PROBE));
        let newer = Limits { forward_progress: true, ..Limits::NONE };
        assert!(!kernels_of(CodecFamily::TopK, &newer).contains(&Kernel::TopKSketch));
    }
}
