//! Exchanges that are queued on a CUDA stream, with nothing that goes through the host.

mod guard;
mod refused;
mod uncompressed;

use self::guard::Guard;
use self::uncompressed::Uncompressed;
use super::compressor::ResidentCompressor;
use super::device::Resident;
use super::state::State;
use crate::backend::cuda::{Cuda, DeviceSlice, Event};
use crate::collective::Collective;
use crate::compressor::core::Compressor;
use crate::compressor::frame::{self, Writer};
use crate::compressor::memory::Memory;
use crate::compressor::method::Part;
use crate::compressor::queue::{Queue, Ranks};
use crate::embed::ops::Ops;
use crate::error::{Error, ExchangeError};
use crate::seed::Seed;
use crate::stream_collective::StreamCollective;

/// A [`Compressor`] whose exchanges are queued on the caller's CUDA stream: encode, gather and decode in device memory,
/// and no wait for any of it.
///
/// Made by [`Compressor::queued`]. Kernels that leave the gradient are queued on the stream of the [`Cuda`] before an
/// exchange, and the optimizer's after it.
///
/// ```no_run
/// # fn run(
/// #     cuda: &gradwire::backend::cuda::Cuda,
/// #     group: &mut (impl gradwire::Collective + gradwire::StreamCollective),
/// #     gradient: gradwire::backend::cuda::DeviceSlice,
/// # ) -> Result<(), gradwire::Error> {
/// use gradwire::Compressor;
///
/// let mut compressor = Compressor::new("qsgd:bits=4,bucket=64+ef", [[1024, 1024]], 42)?.queued(cuda, group)?;
/// for _ in 0..10 {
///     // ... kernels leave the gradient of this rank's samples in memory of the device ...
///     // SAFETY: the group is over the context of the Cuda, and the memory lives until the stream was waited for.
///     unsafe { compressor.exchange(group, gradient) }?; // after this, the stream has the mean over all ranks there
/// }
/// // SAFETY: as above.
/// let saved = unsafe { compressor.download(group) }?.state()?;
/// # Ok(()) }
/// ```
///
/// * **Bits**: where payloads are gathered, those that [`ResidentCompressor::exchange`] leaves on this device, since
///   payloads are summed in the order of ranks. Sums of factors, of entries of random-k and of tensors that go
///   uncompressed are the group's own ([`crate::StreamCollective::queue_all_reduce_sum`]), the same on every rank;
///   another engine may add in another order. In a step that is skipped every number is 7fc00000; if no step can be, a
///   NaN among sums is the one NaN of the kernels, 7fffffff.
/// * **What goes**: of quantizers the codes and scalars, without a header; of top-k 8 bytes per entry, of random-k 4;
///   of PowerSGD the factors. One message for each recipe (two for each power iteration of PowerSGD), and one for all
///   tensors that go uncompressed. Unless all go uncompressed without momentum, one gather more, of 8 bytes (16 with
///   momentum), says whether this rank's numbers are finite.
/// * **NaN and infinity**: as with [`Compressor::exchange`], a step is skipped on every rank if the gradient of any
///   rank, its sum with the residual, or the mean has one: all of the mean is NaN, and the state stays as it was, to
///   the bit. The device finds it and takes the step back; the host never knows, and the step counts. With momentum,
///   sums of gradient and residual and of momentum and residual are both scanned, and a step is skipped too if only
///   the one that is not sent is above 3.4e38. With `powersgd:onesided` a skipped step takes its turn: the next one
///   computes the other side.
/// * **Waits**: a step allocates nothing and waits for nothing. The first operations of a group may wait for other
///   ranks, while the engine connects them. What goes wrong after the queueing is told by a later call.
/// * **Trust**: nobody looks at what arrives, as a host would. A rank that sends what no encoder wrote spoils the mean,
///   and nothing else: kernels stay within their memory, whatever the bytes are.
/// * **Failure**: until a step's first operation is queued, an error changes nothing on this rank. From then on there
///   is no way back, since other ranks may have gone on: gradient and state hold anything, and every later call is
///   refused with [`crate::ExchangeError::BrokenOff`]. The same holds where a group fails with work of this compressor
///   that was not waited for. The way on is a new group, and compressors restored from saved states.
/// * **Traffic** of that: a copy of the state before each step (8 bytes per element of residual and of momentum, and
///   per entry of factors), and scans of gradient, momentum, residual and mean (4 bytes per element that is read). How
///   much time that takes was not measured on a GPU.
/// * **Memory**: that of a [`ResidentCompressor`], payloads of all ranks, and 8 bytes per element that goes
///   uncompressed. Dropped before [`QueuedCompressor::wait`], it is leaked: to wait for ranks that may have ended has
///   no end.
pub struct QueuedCompressor {
    of: ResidentCompressor<Cuda>,
    between: Between,
}

/// The memory and the settings of an exchange between the ranks.
pub(super) struct Between {
    /// Of each part, the bytes of a message, or the most of several.
    sizes: Vec<u64>,
    whole: Option<Uncompressed>,
    /// None if all tensors go uncompressed without momentum.
    guard: Option<Guard>,
    rank: u32,
    ranks: u32,
    /// Whether work was queued that nobody has waited for.
    pending: bool,
    beside: Beside,
}

/// What orders an exchange and the work of another stream.
struct Beside {
    /// Behind the work that leaves the gradient.
    given: Event,
    /// Behind the exchange.
    done: Event,
    /// Whether there is an exchange to wait for.
    started: bool,
}

impl std::fmt::Debug for QueuedCompressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { of, between: Between { rank, ranks, .. } } = self;
        f.debug_struct("QueuedCompressor").field("of", of).field("rank", rank).field("ranks", ranks).finish()
    }
}

/// What a rank's message begins with, after the head that messages of steps have.
const QUEUED: u64 = u64::from_le_bytes(*b"queued\0\0");

impl Compressor {
    /// The same compressor, its state copied into a device's memory, for exchanges that are queued on the stream of the
    /// [`Cuda`]. Every rank calls it at the same step.
    ///
    /// The ranks gather a few bytes over `group`, and see whether they have the same tensors, recipes, run, step and
    /// sizes: no later call looks. Any group of these ranks will do. Kernels are compiled.
    ///
    /// # Errors
    /// [`RecipeError::Stages`](crate::RecipeError::Stages) for a recipe of which a step has no fixed size on the
    /// device, or asks the host: with `finite`, `clip`, `peers`, `ef21`, `diana`, `ef:beta`, `elias`, `base3`,
    /// `topk:above`, `estimate`, `persign`, a quantizer after `topk` or `powersgd`, a warm-up that is under way,
    /// `vote`, `rotate`, `eden`, `drive`, `gtopk` or `twophase`.
    /// [`Error::Stream`] if the device has no stream that others can queue on. Else as [`Compressor::resident`]. The
    /// other ranks then get [`ExchangeError::Unready`], and the group can be used again. [`Error::Exchange`] if
    /// ranks differ; [`Error::Collective`] if the group fails.
    pub fn queued(&self, cuda: &Cuda, group: &mut (impl Collective + ?Sized)) -> Result<QueuedCompressor, Error> {
        let ranks = group.ranks();
        let made = self.make_queued(cuda, group.rank(), ranks);
        let (mut message, mut all) = (Vec::new(), Vec::new());
        let mut writer = Writer::new(&mut message, self.steps, self.model);
        let sizes = made.as_ref().map(QueuedCompressor::sizes).unwrap_or_default();
        let made = made.and_then(|made| writer.append(&sizes).map(|()| made));
        match &made {
            Ok(_) => writer.finish(),
            Err(error) => writer.fail(error, group.rank()),
        }
        let gathered = group.all_gather(&message, &mut all);
        // This rank's own error says more than what follows from it.
        let made = made?;
        gathered?;
        if all.len() != ranks as usize {
            return Err(ExchangeError::Gathered { found: all.len(), expected: ranks }.into());
        }
        for (rank, message) in (0..).zip(&all) {
            let found = frame::read(message, rank, self.steps, self.model).map_err(|error| match error {
                Error::Exchange(ExchangeError::Refused { rank }) => ExchangeError::Unready { rank }.into(),
                other => other,
            })?;
            if found != [&sizes[..]] {
                return Err(ExchangeError::Payload { rank, tensor: 0, what: "size" }.into());
            }
        }
        Ok(made)
    }

    /// What a rank has to be ready for.
    fn make_queued(&self, cuda: &Cuda, rank: u32, ranks: u32) -> Result<QueuedCompressor, Error> {
        let _environment = crate::FloatEnvironment::standard();
        self.expect_whole()?;
        self.recipes.iter().try_for_each(|recipe| refused::refuse(recipe, self.steps))?;
        let mut dense = self.parts.iter().filter_map(|part| part.method.dense());
        dense.try_for_each(|dense| dense.owner.expect_none(rank, ranks))?;
        cuda.raw_stream()?;
        let mut of = self.resident(cuda)?;
        of.warm_up()?;
        // SAFETY: all memory is the compressor's own.
        let queue = unsafe { Queue::new(&of.memory) };
        let methods = of.state.methods.iter_mut().zip(&of.inner.parts);
        let sizes = methods.map(|(method, part)| method.reserve(&queue, &part.group, ranks));
        let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
        let whole = Uncompressed::new(&queue, &of.inner.whole)?;
        let guard = Guard::new(&queue, &of, ranks)?;
        guard.iter().try_for_each(|guard| guard.compile(cuda))?;
        uncompressed::common(cuda)?;
        let limits = cuda.limits();
        let of_cosines = of.state.cosines.iter().flatten().map(|cosines| cosines.passes(&limits));
        let of_methods = of.state.methods.iter().map(|method| method.passes(&limits, ranks));
        of_cosines.chain(of_methods).try_for_each(|passes| cuda.warm_up_passes(&passes?))?;
        let beside = Beside { given: Event::new(cuda)?, done: Event::new(cuda)?, started: false };
        Ok(QueuedCompressor { of, between: Between { sizes, whole, guard, rank, ranks, pending: false, beside } })
    }
}

impl QueuedCompressor {
    /// As [`Compressor::elements`].
    pub fn elements(&self) -> usize {
        self.of.elements()
    }

    /// Steps that were exchanged, or queued.
    pub fn steps(&self) -> u64 {
        self.of.steps()
    }

    /// Bytes that this rank handed over to the group in the last step: bodies, entries, 4 bytes per number that was
    /// summed on the way, and 8 or 16 that say whether its numbers are finite.
    pub fn last_bytes(&self) -> u64 {
        self.of.last_bytes()
    }

    /// What all ranks have alike.
    fn sizes(&self) -> Vec<u8> {
        let whole = self.between.whole.as_ref().map_or(0, Uncompressed::size);
        let sizes = self.between.sizes.iter().copied();
        [QUEUED, whole].into_iter().chain(sizes).flat_map(u64::to_le_bytes).collect()
    }

    /// Queues a step: the gradient of this rank, f32 in the device's memory, becomes the mean over all ranks.
    ///
    /// Every rank calls this once per step. A rank that gets an error has not queued its part, and the others' work
    /// waits for it in vain: end the group on every rank.
    ///
    /// # Errors
    /// Before anything is queued, and gradient and state are as they were: [`Error::Length`] for a gradient of another
    /// length, [`Error::Memory`] for memory that is not the device's, or is not aligned; [`ExchangeError::Group`] for
    /// another group; [`ExchangeError::BrokenOff`]; [`Error::Collective`] if the group has failed before, with
    /// nothing queued that was not waited for. After any other error the step is broken off: [`Error::Collective`] or
    /// [`Error::Backend`].
    ///
    /// # Safety
    /// - The caller guarantees that the group is over the context of the [`Cuda`], as [`StreamCollective`] has it.
    /// - The caller guarantees that the memory stays allocated until the stream has done the work, and that no work on
    ///   another stream uses it meanwhile.
    /// - The caller guarantees that the stream is not being captured.
    pub unsafe fn exchange(
        &mut self,
        group: &mut (impl StreamCollective + ?Sized),
        gradient: DeviceSlice,
    ) -> Result<(), Error> {
        // SAFETY: as the caller says.
        unsafe { self.step(group, gradient, None) }
    }

    /// Queues a step on the compressor's own stream, while the stream of `compute` goes on: the exchange waits for
    /// the work queued there now, which writes the gradient, and later work there runs beside it until
    /// [`QueuedCompressor::join`]. Nothing is waited for here.
    ///
    /// The [`Cuda`] that the compressor was made with is then on a stream for exchanges alone, and `compute` is the
    /// same [`Cuda`] [on another stream](Cuda::on_stream).
    ///
    /// ```no_run
    /// # unsafe fn run(
    /// #     compute: &gradwire::backend::cuda::Cuda,
    /// #     communication: *mut std::ffi::c_void,
    /// #     group: &mut (impl gradwire::Collective + gradwire::StreamCollective),
    /// #     [last, first]: [gradwire::backend::cuda::DeviceSlice; 2],
    /// # ) -> Result<(), gradwire::Error> {
    /// use gradwire::Compressor;
    ///
    /// // SAFETY: it is a stream of the same context, which outlives the compressors.
    /// let exchanges = unsafe { compute.on_stream(communication) }?;
    /// let mut of_last = Compressor::new("qsgd:bits=4,bucket=64+ef", [[1024, 1024]], 1)?.queued(&exchanges, group)?;
    /// let mut of_first = Compressor::new("qsgd:bits=4,bucket=64+ef", [[1024, 1024]], 2)?.queued(&exchanges, group)?;
    /// for _ in 0..10 {
    ///     // ... kernels on the stream of `compute` leave the gradient of the last layers ...
    ///     // SAFETY: the memory lives until the stream was waited for, and nothing uses it before the join.
    ///     unsafe { of_last.start(group, last, compute) }?;
    ///     // ... and that of the first layers, meanwhile ...
    ///     // SAFETY: as above.
    ///     unsafe { of_first.start(group, first, compute) }?;
    ///     of_last.join(compute)?;
    ///     of_first.join(compute)?;
    ///     // ... and the optimizer's kernels, after both ...
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// That exchange and computation overlap was seen on a stand-in for a driver. How much time it saves was not
    /// measured on a GPU.
    ///
    /// # Errors
    /// As [`QueuedCompressor::exchange`]; and [`Error::Stream`] for a `compute` of another device, which changes
    /// nothing.
    ///
    /// # Safety
    /// As [`QueuedCompressor::exchange`], of both streams: from this call to [`QueuedCompressor::join`], no work that
    /// is queued on the stream of `compute` uses the gradient.
    pub unsafe fn start(
        &mut self,
        group: &mut (impl StreamCollective + ?Sized),
        gradient: DeviceSlice,
        compute: &Cuda,
    ) -> Result<(), Error> {
        // SAFETY: as the caller says.
        unsafe { self.step(group, gradient, Some(compute)) }
    }

    /// Lets later work on the stream of `compute` wait for the exchange that was started last. Nothing is waited for
    /// here.
    ///
    /// # Errors
    /// [`Error::Stream`] for a `compute` of another device; [`Error::Backend`] if the device fails. Neither changes
    /// anything.
    pub fn join(&self, compute: &Cuda) -> Result<(), Error> {
        let Beside { done, started, .. } = &self.between.beside;
        if *started { done.hold(compute) } else { Ok(()) }
    }

    /// A step, after the work queued on another stream.
    ///
    /// # Safety
    /// As [`QueuedCompressor::start`].
    unsafe fn step(
        &mut self,
        group: &mut (impl StreamCollective + ?Sized),
        gradient: DeviceSlice,
        compute: Option<&Cuda>,
    ) -> Result<(), Error> {
        let _environment = crate::FloatEnvironment::standard();
        let Self { of: ResidentCompressor { inner, memory, device, state, last, .. }, between } = self;
        let Between { whole, guard, rank: of_rank, ranks: of_ranks, pending, beside, .. } = between;
        inner.expect_whole()?;
        let (rank, ranks) = (group.rank(), group.ranks());
        if (rank, ranks) != (*of_rank, *of_ranks) {
            return Err(ExchangeError::Group { of: *of_rank, of_ranks: *of_ranks, rank, ranks }.into());
        }
        let (elements, stream) = (inner.layout.elements(), memory.raw_stream()?);
        memory.check("gradient", &gradient, 4 * elements)?;
        if let Err(error) = group.check() {
            inner.broken_off = *pending;
            return Err(error.into());
        }
        if let Some(compute) = compute {
            beside.given.record(compute)?;
            beside.given.hold(memory)?;
        }
        // SAFETY: the gradient is the caller's, and all else the compressor's own.
        let queue = unsafe { Queue::new(&*memory) };
        (inner.broken_off, *pending) = (true, true);
        let before = (inner.work.bytes, inner.digest);
        *last = None;
        let stamp = (inner.steps, inner.model);
        let mut in_step = Resident { queue, device, elements, gradient, stamp, state, begun: false, written: false };
        // SAFETY: the caller answers for the group; the stream is the one that the memory's work goes to.
        let mut ranks = unsafe { Ranks::new(group, stream) };
        let seed = Seed::new(inner.run).step(inner.steps).worker(rank);
        in_step.state.keep(&in_step.queue, 4 * elements)?;
        inner.parts.iter().enumerate().try_for_each(|(index, part)| in_step.form(index, &part.group))?;
        in_step.form_whole(&inner.whole)?;
        if let Some(guard) = guard {
            guard.scan(&in_step, &mut ranks)?;
        }
        if let Some(whole) = whole {
            whole.mean(&in_step, &inner.whole, &mut ranks)?;
        }
        for (index, Part { group, .. }) in inner.parts.iter().enumerate() {
            let (queue, place, method) = in_step.place(index, group);
            method.step(queue, &place, group, &mut ranks, seed)?;
        }
        if let Some(whole) = whole {
            whole.put(&in_step, &inner.whole)?;
        }
        in_step.end(&inner.parts)?;
        if let Some(guard) = guard {
            guard.judge(&in_step)?;
        }
        if compute.is_some() {
            beside.done.record(memory)?;
            beside.started = true;
        }
        inner.broken_off = false;
        (inner.steps, inner.digest, inner.work.bytes) = (inner.steps.wrapping_add(1), 0, ranks.bytes);
        *last = Some(before);
        Ok(())
    }

    /// Queues the undoing of the last step, as [`Compressor::undo`]: after it, the state is as before that step, to the
    /// bit. The gradient is the caller's: the mean stays in it. Every rank takes back the same steps.
    ///
    /// # Errors
    /// As [`ResidentCompressor::undo`].
    pub fn undo(&mut self) -> Result<(), Error> {
        let undone = self.of.undo();
        // A device that fails may have been given a part of the work.
        self.between.pending |= undone.is_ok() || self.of.inner.broken_off;
        undone
    }

    /// Waits until all that was queued is done, for as long as the group's deadline says.
    ///
    /// # Errors
    /// [`Error::Collective`] if the group fails or is too late, [`Error::Stuck`] if a selection was disturbed,
    /// [`Error::Backend`] if the device fails: the step is then broken off. [`ExchangeError::BrokenOff`] if it
    /// was before.
    ///
    /// # Safety
    /// The caller guarantees that the group is over the context of the [`Cuda`], as [`StreamCollective`] has it.
    pub unsafe fn wait(&mut self, group: &mut (impl StreamCollective + ?Sized)) -> Result<(), Error> {
        let _environment = crate::FloatEnvironment::standard();
        let Self { of: ResidentCompressor { inner, memory, state, .. }, between: Between { pending, .. } } = self;
        if *pending {
            let before = std::mem::replace(&mut inner.broken_off, true);
            // SAFETY: the caller answers for the group.
            unsafe { group.wait(memory.raw_stream()?) }?;
            *pending = false;
            // SAFETY: all memory is the compressor's own.
            let queue = unsafe { Queue::new(&*memory) };
            state.methods.iter().try_for_each(|method| method.check_end(&queue))?;
            inner.broken_off = before;
        }
        inner.expect_whole()
    }

    /// [`QueuedCompressor::wait`], and then the compressor with its state in the host's memory, as
    /// [`ResidentCompressor::download`].
    ///
    /// # Errors
    /// Those of both.
    ///
    /// # Safety
    /// As [`QueuedCompressor::wait`].
    pub unsafe fn download(&mut self, group: &mut (impl StreamCollective + ?Sized)) -> Result<Compressor, Error> {
        // SAFETY: the caller answers for the group.
        unsafe { self.wait(group) }?;
        self.of.download()
    }
}

impl Drop for QueuedCompressor {
    fn drop(&mut self) {
        let Between { whole, guard, pending, .. } = &mut self.between;
        if *pending {
            // Queued work may use it, and may never end.
            let State { planes, methods, gradient, norms, cosines, finite } = &mut self.of.state;
            let of_compressor =
                (std::mem::take(planes), std::mem::take(methods), gradient.take(), std::mem::take(norms));
            let of_steps = (std::mem::take(cosines), finite.take(), whole.take(), guard.take());
            std::mem::forget((of_compressor, of_steps));
        }
    }
}
