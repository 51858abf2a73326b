//! A compressor whose state is in a device's memory.

use super::cosines::Cosines;
use super::device::Resident;
use super::norms::Norms;
use super::state::State;
#[cfg(feature = "cuda")]
use crate::backend::cuda::{Cuda, DeviceSlice};
#[cfg(feature = "wgpu")]
use crate::backend::wgpu::Wgpu;
use crate::collective::Collective;
use crate::compressor::core::Compressor;
use crate::compressor::method::{AnyResident, Model, Part};
use crate::compressor::planes::{Planes, zeros};
use crate::compressor::queue::{Finite, Plane, Queue};
use crate::compressor::step::Made;
use crate::device::Device;
use crate::embed::DeviceMemory;
use crate::error::{Error, ExchangeError, RecipeError};
use crate::recipe::Algorithm;

/// A [`Compressor`] for gradients that lie in a device's memory, where its residual, momentum and factors stay too.
///
/// Made by [`Compressor::resident`]. An exchange leaves what [`Compressor::exchange`] on that device leaves, bit for
/// bit; what crosses the bus are payloads, factors that no quantizer takes or that `finite` looks through, entries of
/// random-k, and tensors that go uncompressed. With factors through a quantizer on a [`Wgpu`], drivers that fuse what
/// they multiply and add may leave other last bits (docs/powersgd.md).
///
/// ```no_run
/// # #[cfg(feature = "wgpu")]
/// # fn run(gpu: gradwire::wgpu::Device, queue: gradwire::wgpu::Queue, group: &mut impl gradwire::Collective)
/// # -> Result<(), gradwire::Error> {
/// use gradwire::backend::wgpu::Wgpu;
/// use gradwire::{Compressor, wgpu::BufferUsages};
///
/// let compressor = Compressor::new("topk:0.01+ef", [[1024, 1024]], 42)?;
/// let gradient = gpu.create_buffer(&gradwire::wgpu::BufferDescriptor {
///     label: None,
///     size: 4 * compressor.elements() as u64,
///     usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
///     mapped_at_creation: false,
/// });
/// let mut compressor = compressor.resident(&Wgpu::on(&gpu, &queue)?)?;
/// for _ in 0..10 {
///     // ... shaders leave the gradient of this rank's samples in the buffer ...
///     compressor.exchange(group, gradient.slice(..))?; // it is now the mean over all ranks
/// }
/// let saved = compressor.download()?.state()?;
/// # Ok(()) }
/// ```
///
/// * **Failure**: as a compressor's, by copies on the device. Where the device itself fails ([`Error::Backend`]), what
///   its memory holds may not be known: where the step cannot be undone, later calls are refused with
///   [`ExchangeError::BrokenOff`](crate::ExchangeError::BrokenOff). The way on is a new [`Compressor`], restored from a
///   saved state and made resident.
/// * **Memory**: 8 bytes per element for error feedback, 8 for momentum, 16 for estimates, 4 for the gradient's copy
///   if recipes differ between tensors, keep estimates, clip, transform by cosines, or have Nesterov's momentum, 4
///   more if they transform, or 8 if some tensors alone are transformed, a quarter if they clip, and the
///   payloads. With CUDA, payloads and what else crosses the bus go through page-locked memory of the host, two to four
///   times as much as the largest copy: the first step makes it, and later ones use it again. How much faster that is
///   was not measured on a GPU.
/// * **Order**: everything goes to the device's stream or queue. The call waits for payloads, factors and entries,
///   which it hands to the group, and for norms if it clips; the last decode may still run when it returns, and is
///   before later work there.
pub struct ResidentCompressor<D: DeviceMemory> {
    /// Without its planes.
    pub(super) inner: Compressor,
    pub(super) memory: D,
    /// The same memory, for what crosses the bus in a step.
    pub(super) staged: D,
    pub(super) device: Device,
    pub(super) state: State<D>,
    /// Bytes that were sent in the step before the last one, and its digest, if the last one can be taken back.
    pub(super) last: Option<(u64, u32)>,
}

impl<D: DeviceMemory> std::fmt::Debug for ResidentCompressor<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResidentCompressor").field("device", &self.device.name()).field("of", &self.inner).finish()
    }
}

impl Compressor {
    /// The same compressor, its state copied into the memory of a device: a `Cuda` or a `Wgpu`, on whose stream or
    /// queue it works.
    ///
    /// # Errors
    /// [`RecipeError::Stages`] for a recipe with a vote, gtopk or twophase; [`Error::Limit`] for a device whose limits
    /// are too small, as for entries of random-k whose tensors are more than one binding; [`Error::Backend`] if it has
    /// no memory left, or fails.
    pub fn resident<D>(&self, memory: &D) -> Result<ResidentCompressor<D>, Error>
    where
        D: DeviceMemory + Clone,
        Device: From<D>,
    {
        let _environment = crate::FloatEnvironment::standard();
        self.expect_whole()?;
        if self.parts.iter().any(|part| part.group.recipe.vote) {
            let what = "a vote is counted in the host's memory, and the gradient is to stay in the device's";
            return Err(RecipeError::Stages { what, remedy: "use Compressor::exchange, or leave out vote" }.into());
        }
        if self.parts.iter().any(|part| part.group.recipe.algorithm() != Algorithm::Gather) {
            let what = "gtopk and twophase work in the host's memory, and the gradient is to stay in the device's";
            let remedy = "use Compressor::exchange, or leave out gtopk and twophase";
            return Err(RecipeError::Stages { what, remedy }.into());
        }
        let mut inner = self.clone();
        let planes = std::mem::take(&mut inner.planes);
        inner.parts.iter_mut().try_for_each(|part| part.fit(&memory.limits()))?;
        // SAFETY: all memory is made here.
        let queue = unsafe { Queue::new(memory) };
        let cosines = |Part { group, .. }: &Part| {
            let packed = group.elements() != inner.elements();
            Cosines::new(&queue, group, packed)
        };
        let state = State {
            planes: all_of(planes.kept().map(|plane| queue.plane(plane)))?,
            methods: inner.parts.iter().map(|part| method(&queue, &inner, part)).collect::<Result<_, _>>()?,
            norms: inner.parts.iter().map(|part| Norms::new(&queue, &part.group)).collect::<Result<_, _>>()?,
            cosines: inner.parts.iter().map(cosines).collect::<Result<_, _>>()?,
            finite: match inner.parts.iter().any(Part::expects_finite_mean) {
                true => Some(Finite::new(&queue)?),
                false => None,
            },
            gradient: match inner.writes_twice() {
                true => Some(memory.room(4 * inner.layout.elements())?),
                false => None,
            },
        };
        let (device, staged) = (Device::from(memory.clone()), memory.staged());
        Ok(ResidentCompressor { inner, device, memory: memory.clone(), staged, state, last: None })
    }
}

impl<D: DeviceMemory> ResidentCompressor<D> {
    #[cfg(feature = "cudarc")]
    pub(crate) fn memory(&self) -> &D {
        &self.memory
    }

    /// As [`Compressor::elements`].
    pub fn elements(&self) -> usize {
        self.inner.elements()
    }

    /// As [`Compressor::steps`].
    pub fn steps(&self) -> u64 {
        self.inner.steps()
    }

    /// As [`Compressor::last_bytes`].
    pub fn last_bytes(&self) -> u64 {
        self.inner.last_bytes()
    }

    /// The compressor with its state in the host's memory: to save it ([`Compressor::state`]), to look at the residual,
    /// or to go on there.
    ///
    /// # Errors
    /// [`Error::Backend`] if the device fails, or the host has no memory for it; [`Error::State`] for factors or
    /// their residual that are not finite; [`ExchangeError::BrokenOff`](crate::ExchangeError::BrokenOff).
    pub fn download(&self) -> Result<Compressor, Error> {
        let _environment = crate::FloatEnvironment::standard();
        self.inner.expect_whole()?;
        let mut host = self.inner.clone();
        // SAFETY: all memory is the compressor's own.
        let queue = unsafe { Queue::new(&self.memory) };
        let State { planes, methods, .. } = &self.state;
        let elements = self.elements();
        host.planes = Planes::new(elements, planes.each_ref().map(Option::is_some))?;
        let read = |plane: &Option<Plane<D::Room>>| match plane {
            None => Ok(Vec::new()),
            Some(plane) => {
                let mut numbers = zeros(elements)?;
                queue.read(&queue.all(&plane.now), 0, &mut numbers)?;
                Ok::<_, Error>(numbers)
            }
        };
        host.planes.set(all_of(planes.each_ref().map(read))?);
        for (method, part) in methods.iter().zip(&mut host.parts) {
            if let (Some(resident), Some(low_rank)) = (method.low_rank(), part.method.low_rank_mut()) {
                low_rank.state = resident.download(&queue)?;
            }
        }
        Ok(host)
    }

    /// Makes the selections those of the next step of a warm-up.
    pub(super) fn warm_up(&mut self) -> Result<(), Error> {
        let Self { inner, memory, state, .. } = self;
        // SAFETY: all memory is the compressor's own.
        let queue = unsafe { Queue::new(&*memory) };
        for (index, resident) in state.methods.iter_mut().enumerate() {
            if inner.parts[index].warm_up(inner.steps)? {
                // Without memory for it, the next step tries again.
                let fraction = inner.parts[index].group.fraction.take();
                *resident = method(&queue, inner, &inner.parts[index])?;
                inner.parts[index].group.fraction = fraction;
            }
        }
        Ok(())
    }

    /// A step, on memory that the caller answers for.
    ///
    /// # Safety
    /// The caller guarantees that the gradient stays allocated until the device has done the work, and that nothing
    /// that is not queued there uses it meanwhile.
    pub(super) unsafe fn step(
        &mut self,
        group: &mut (impl Collective + ?Sized),
        gradient: D::Slice,
    ) -> Result<(), Error> {
        let _environment = crate::FloatEnvironment::standard();
        self.inner.expect_whole()?;
        self.warm_up()?;
        let Self { inner, staged, device, state, last, .. } = self;
        let before = (inner.work.bytes, inner.digest);
        *last = None;
        // SAFETY: the gradient is the caller's, and all else the compressor's own.
        let queue = unsafe { Queue::new(&*staged) };
        let elements = inner.layout.elements();
        inner.broken_off = true;
        let (shared, _) = inner.split();
        let stamp = shared.stamp();
        let mut memory = Resident { queue, device, elements, gradient, stamp, state, begun: false, written: false };
        let done = shared.attempt(&mut memory, group);
        let whole = matches!(done, Ok(Made::Kept)) || memory.undo().is_ok_and(|undone| undone);
        let spoiled = if let Ok(Made::Skipped) = done { memory.spoil() } else { Ok(()) };
        inner.broken_off = !whole || spoiled.is_err();
        if done.is_ok() && !inner.broken_off {
            *last = Some(before);
        }
        done.and(spoiled)
    }

    /// Takes back the last step, as [`Compressor::undo`]: what memory of the device holds of the state is as before it,
    /// to the bit. The gradient is the caller's: the mean stays in it.
    ///
    /// # Errors
    /// As [`Compressor::undo`]; [`Error::Backend`] if the device fails, and later calls are then refused with
    /// [`ExchangeError::BrokenOff`](crate::ExchangeError::BrokenOff).
    pub fn undo(&mut self) -> Result<(), Error> {
        self.inner.expect_whole()?;
        let (bytes, digest) = self.last.take().ok_or(ExchangeError::NothingToUndo)?;
        let Self { inner, memory, state, .. } = self;
        // SAFETY: all memory is the compressor's own.
        let queue = unsafe { Queue::new(&*memory) };
        inner.broken_off = true;
        state.undo(&queue, 4 * inner.layout.elements())?;
        inner.steps = inner.steps.wrapping_sub(1);
        // Other ranks may have kept the step: the next one asks them.
        (inner.work.bytes, inner.digest, inner.agreed, inner.broken_off) = (bytes, digest, false, false);
        Ok(())
    }
}

#[cfg(feature = "wgpu")]
impl ResidentCompressor<Wgpu> {
    /// A step: the gradient of this rank, f32 in a buffer of the device, becomes the mean over all ranks. Its buffer
    /// has the usages `STORAGE`, `COPY_SRC` and `COPY_DST`.
    ///
    /// # Errors
    /// As [`Compressor::exchange`]; [`Error::Memory`] for a buffer without the usages, or a slice that is not aligned.
    pub fn exchange(
        &mut self,
        group: &mut (impl Collective + ?Sized),
        gradient: wgpu::BufferSlice<'_>,
    ) -> Result<(), Error> {
        // SAFETY: wgpu keeps buffers for as long as the queue works on them, and orders what uses them.
        unsafe { self.step(group, gradient.into()) }
    }
}

#[cfg(feature = "cuda")]
impl ResidentCompressor<Cuda> {
    /// A step: the gradient of this rank, f32 in the device's memory, becomes the mean over all ranks. Everything is
    /// queued on the stream of the [`Cuda`].
    ///
    /// # Errors
    /// As [`Compressor::exchange`]; [`Error::Memory`] for memory that is not the device's, or is not aligned.
    ///
    /// # Safety
    /// - The caller guarantees that the memory stays allocated until the stream has done the work, and that no work on
    ///   another stream uses it meanwhile.
    /// - The caller guarantees that the stream is not being captured.
    pub unsafe fn exchange(
        &mut self,
        group: &mut (impl Collective + ?Sized),
        gradient: DeviceSlice,
    ) -> Result<(), Error> {
        // SAFETY: the caller answers for the memory.
        unsafe { self.step(group, gradient) }
    }
}

/// The method of a part, with its memory on the device.
fn method<D: DeviceMemory>(queue: &Queue<'_, D>, of: &Compressor, part: &Part) -> Result<AnyResident<D>, Error> {
    let model = Model { tensors: &of.tensors, elements: of.elements(), run: of.run };
    AnyResident::of(queue, &part.method, &part.group, model)
}

/// All of them, or the first error.
fn all_of<T>(all: [Result<T, Error>; 4]) -> Result<[T; 4], Error> {
    let [a, b, c, d] = all;
    Ok([a?, b?, c?, d?])
}
