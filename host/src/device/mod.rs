//! Open, probe, and the one place that chooses a backend.

mod entropy;
mod low_rank;
mod model;
mod random;
mod rotation;
mod sparse;
mod vote;

use std::sync::OnceLock;

use crate::backend::cpu::{Cpu, CpuWork};
#[cfg(feature = "cuda")]
use crate::backend::cuda::Cuda;
use crate::backend::slices::{self, Runner, now};
#[cfg(feature = "wgpu")]
use crate::backend::wgpu::Wgpu;
use crate::codec::Codec;
use crate::embed::{Checked, HostSlice};
use crate::error::Error;
use crate::family::CodecFamily;
use crate::float_environment::FloatEnvironment;
use crate::gradient::Gradient;
use crate::kind::BackendKind;
use crate::plan::{DecodeMode, EncodePlan, Limits, Sizes};
use crate::seed::Seed;
use crate::session::Session;
use crate::threads;
use crate::view::{AsPayload, PayloadView};
use crate::wire::{HEADER_BYTES, Payload};
use crate::words::zeros;

enum Backend {
    Cpu(Cpu),
    #[cfg(feature = "wgpu")]
    Wgpu(Wgpu),
    #[cfg(feature = "cuda")]
    Cuda(Cuda),
}

/// A device that encodes and decodes.
///
/// * **Open it once.** Opening a GPU takes 100 ms and more; a step takes a `&Device`.
/// * **Threads.** It is `Send` and `Sync`, so threads may share one; but not in a browser, whose WebGPU stays on its
///   thread.
/// * **Its calls block** until the result is there. Where no thread may wait, as in a browser, there are the calls of
///   the backend `Wgpu` that end in `_async`.
/// * **The CPU** works in the rayon pool that it is called from: the global one, unless the call is made inside
///   `ThreadPool::install`. What a GPU's results need of the CPU does too.
/// * **After `fork()`** a child works in a pool of its own, also inside `ThreadPool::install`, if its parent had called
///   this crate: it has the parent's pool without its threads. A GPU's device does not outlive a fork.
///
/// ```
/// use gradwire::{Device, Seed, Uniform};
/// let device = Device::open()?;
/// println!("{device}; passed over: {:?}", device.why());
/// let payload = device.encode(&Uniform::bits(1), &[1.0f32, 3.0, 1.0], Seed::new(1))?;
/// assert_eq!(device.decode(&payload)?, [1.0, 3.0, 1.0]); // a bucket's minimum and maximum are exact
/// # Ok::<(), gradwire::Error>(())
/// ```
pub struct Device {
    backend: Backend,
    /// Made when it is asked for: it names the number of threads, and to count them starts them.
    cpu_name: OnceLock<String>,
    passed_over: Vec<Error>,
}

#[cfg(feature = "wgpu")]
impl From<Wgpu> for Device {
    fn from(wgpu: Wgpu) -> Self {
        Self::from_wgpu(wgpu)
    }
}

#[cfg(feature = "cuda")]
impl From<Cuda> for Device {
    fn from(cuda: Cuda) -> Self {
        Self::from_cuda(cuda)
    }
}

impl Device {
    /// The best device of this machine: CUDA, else a GPU through WGPU, else the CPU.
    ///
    /// A WGPU adapter that is itself software on the CPU is passed over here, since the CPU backend is faster;
    /// [`Device::of`] takes it.
    ///
    /// # Errors
    /// None today: the CPU is always there. [`Device::why`] lists the devices that were passed over.
    pub fn open() -> Result<Self, Error> {
        let mut passed_over = Vec::new();
        for kind in [BackendKind::Cuda, BackendKind::Wgpu] {
            match Self::of(kind) {
                Ok(device) if device.is_software() => passed_over.push(Error::Unavailable {
                    backend: kind,
                    reason: format!(
                        "{} is software, and the CPU backend is faster; Device::of(BackendKind::Wgpu) takes it",
                        device.name()
                    ),
                }),
                Ok(device) => return Ok(Self { passed_over, ..device }),
                Err(error) => passed_over.push(error),
            }
        }
        Ok(Self { passed_over, ..Self::cpu() })
    }

    /// A device of this kind.
    ///
    /// # Errors
    /// [`Error::Unavailable`], with the search and the remedy.
    pub fn of(kind: BackendKind) -> Result<Self, Error> {
        match kind {
            BackendKind::Cpu => Ok(Self::cpu()),
            #[cfg(feature = "wgpu")]
            BackendKind::Wgpu => Wgpu::open().map(Self::from_wgpu),
            #[cfg(feature = "cuda")]
            BackendKind::Cuda => Cuda::open().map(Self::from_cuda),
            #[allow(unreachable_patterns, reason = "reached when a backend's feature is off")]
            other => Err(Error::Unavailable {
                backend: other,
                reason: format!("this build left it out; build gradwire with the feature `{other}`"),
            }),
        }
    }

    /// The CPU of this machine, with the widest vectors it has.
    pub fn cpu() -> Self {
        Self::from_cpu(Cpu::default())
    }

    /// The CPU as set up.
    pub fn from_cpu(cpu: Cpu) -> Self {
        Self { backend: Backend::Cpu(cpu), cpu_name: OnceLock::new(), passed_over: Vec::new() }
    }

    /// A WGPU device as set up.
    #[cfg(feature = "wgpu")]
    pub fn from_wgpu(wgpu: Wgpu) -> Self {
        Self { cpu_name: OnceLock::new(), backend: Backend::Wgpu(wgpu), passed_over: Vec::new() }
    }

    /// A CUDA device as set up.
    #[cfg(feature = "cuda")]
    pub fn from_cuda(cuda: Cuda) -> Self {
        Self { cpu_name: OnceLock::new(), backend: Backend::Cuda(cuda), passed_over: Vec::new() }
    }

    /// Which backend runs.
    pub fn kind(&self) -> BackendKind {
        match &self.backend {
            Backend::Cpu(_) => BackendKind::Cpu,
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(_) => BackendKind::Wgpu,
            #[cfg(feature = "cuda")]
            Backend::Cuda(_) => BackendKind::Cuda,
        }
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        match &self.backend {
            Backend::Cpu(cpu) => {
                self.cpu_name.get_or_init(|| format!("CPU, {} threads, {}", threads::count(), cpu.simd().name()))
            }
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(wgpu) => wgpu.name(),
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => cuda.name(),
        }
    }

    /// Why each backend that comes before this one was passed over.
    pub fn why(&self) -> &[Error] {
        &self.passed_over
    }

    /// The CPU, if that is the backend.
    fn as_cpu(&self) -> Option<&Cpu> {
        self.runner().place().cpu()
    }

    /// What runs its work, and waits for it.
    fn runner(&self) -> Runner<'_> {
        match &self.backend {
            Backend::Cpu(cpu) => Runner::Cpu(cpu),
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(wgpu) => Runner::Wgpu(wgpu),
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => Runner::Cuda(cuda),
        }
    }

    /// Runs work on memory of the host's. It is as it was whenever this fails.
    pub(crate) fn run<W: CpuWork + Checked>(&self, work: W, buffers: W::Buffers<HostSlice<'_>>) -> Result<(), Error> {
        now(self.runner().run(work, buffers))
    }

    /// As [`Device::run`], of any work.
    ///
    /// # Safety
    /// The caller guarantees that the memory holds the values that the work trusts.
    unsafe fn run_trusting<W: CpuWork>(&self, work: W, buffers: W::Buffers<HostSlice<'_>>) -> Result<(), Error> {
        // SAFETY: the caller answers for the memory.
        now(unsafe { self.runner().run_trusting(work, buffers) })
    }

    /// Whether this is a GPU interface run in software on the CPU, as Mesa's lavapipe is.
    pub fn is_software(&self) -> bool {
        match &self.backend {
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(wgpu) => wgpu.is_software(),
            #[cfg(feature = "cuda")]
            Backend::Cuda(_) => false,
            Backend::Cpu(_) => false,
        }
    }

    /// What bounds a single pass on this device.
    pub fn limits(&self) -> Limits {
        match &self.backend {
            Backend::Cpu(_) => Limits::NONE,
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(wgpu) => wgpu.limits(),
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => cuda.limits(),
        }
    }

    /// Compiles the kernels that calls of these codecs may need, so that no later call waits for that: on CUDA, see
    /// [`Cuda::warm_up`](crate::backend::cuda::Cuda::warm_up). The CPU's are compiled already, and on WGPU the first
    /// call of each kernel makes its pipeline; there this does nothing.
    ///
    /// ```
    /// use gradwire::{CodecFamily, CodecId, Device};
    /// let device = Device::open()?;
    /// device.warm_up(&[CodecId::Qsgd.into(), CodecFamily::TopK])?;
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Backend`] if a driver does not compile them; [`Error::Capturing`] if
    /// one is missing and the device's stream is being captured into a graph.
    pub fn warm_up(&self, codecs: &[CodecFamily]) -> Result<(), Error> {
        #[cfg(feature = "cuda")]
        if let Backend::Cuda(cuda) = &self.backend {
            return cuda.warm_up(codecs);
        }
        let _ = codecs;
        Ok(())
    }

    /// The families of kernels that are loaded on CUDA, each with the seconds that it took; none on another backend.
    #[cfg(feature = "cuda")]
    pub fn loaded(&self) -> Vec<crate::backend::cuda::LoadedFamily> {
        match &self.backend {
            Backend::Cuda(cuda) => cuda.loaded(),
            _ => Vec::new(),
        }
    }

    /// Buffers on this device.
    ///
    /// # Errors
    /// [`Error::Backend`] if the device cannot hold them.
    pub fn session(&self, sizes: Sizes) -> Result<Box<dyn Session + '_>, Error> {
        Ok(match &self.backend {
            Backend::Cpu(cpu) => Box::new(cpu.session(sizes)?),
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(wgpu) => Box::new(wgpu.session(sizes)?),
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => Box::new(cuda.session(sizes)?),
        })
    }

    /// Compresses a gradient.
    ///
    /// ```
    /// use gradwire::{Codec, Device, Qsgd, Seed, Uniform};
    /// let codecs: [Box<dyn Codec>; 2] = [Box::new(Qsgd::bits(4)), Box::new(Uniform::bits(8))];
    /// for codec in &codecs {
    ///     Device::cpu().encode(&**codec, &[0.5f32; 1000], Seed::new(1))?;
    /// }
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// A setting out of range, more than 2^31 elements, an element that is not finite under `NonFinite::Error`, or a
    /// device that failed.
    pub fn encode<'g>(
        &self,
        codec: &(impl Codec + ?Sized),
        gradient: impl Into<Gradient<'g>>,
        seed: Seed,
    ) -> Result<Payload, Error> {
        let _environment = FloatEnvironment::standard();
        let gradient = gradient.into();
        let plan = codec.plan(gradient.len(), gradient.dtype())?;
        self.encode_plan(&plan, gradient, &mut [], seed)
    }

    /// Compresses gradient + residual, and leaves in `residual` what decoding the payload does not give back.
    ///
    /// The residual starts as zeros and has the gradient's length; it is the caller's to keep from step to step.
    /// residual' = g + e - decode(encode(g + e)), with both sums rounded to f32.
    ///
    /// ```
    /// use gradwire::{Device, Qsgd, Seed};
    /// let device = Device::cpu();
    /// let codec = Qsgd::bits(4).contractive(); // omega is 2.6 here: plain feedback would diverge
    /// let (gradient, mut residual) = ([0.5f32; 512], vec![0.0; 512]);
    /// let payload = device.encode_with_feedback(&codec, &gradient, &mut residual, Seed::new(1))?;
    /// let sent = device.decode(&payload)?;
    /// assert!((0..512).all(|i| sent[i] + residual[i] == gradient[i]));
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Device::encode`]; [`Error::FeedbackDiverges`]; [`Error::Length`] for a residual of another length. The
    /// residual is as it was whenever this fails.
    pub fn encode_with_feedback<'g>(
        &self,
        codec: &(impl Codec + ?Sized),
        gradient: impl Into<Gradient<'g>>,
        residual: &mut [f32],
        seed: Seed,
    ) -> Result<Payload, Error> {
        let _environment = FloatEnvironment::standard();
        let gradient = gradient.into();
        let plan = codec.plan(gradient.len(), gradient.dtype())?.with_feedback()?;
        self.encode_plan(&plan, gradient, residual, seed)
    }

    /// Compresses as a plan says. `residual` is empty unless the plan has feedback.
    ///
    /// # Errors
    /// As [`Device::encode_with_feedback`], and [`Error::Dtype`] or [`Error::Length`] for a gradient that is not the
    /// plan's.
    pub fn encode_plan(
        &self,
        plan: &EncodePlan,
        gradient: Gradient<'_>,
        residual: &mut [f32],
        seed: Seed,
    ) -> Result<Payload, Error> {
        let _environment = FloatEnvironment::standard();
        now(slices::dense::encode(self.runner(), plan, gradient, residual, seed))
    }

    /// Compresses as a plan says, into the caller's memory, whose bytes become those of [`Payload::as_bytes`]. On the
    /// CPU nothing of the payload's size is allocated or copied.
    ///
    /// ```
    /// use gradwire::{Codec, Device, Dtype, Gradient, PayloadView, Qsgd, Seed};
    /// let (device, gradient) = (Device::cpu(), [0.5f32; 1000]);
    /// let plan = Qsgd::bits(4).plan(gradient.len(), Dtype::F32)?;
    /// let mut message = vec![7; 8 + plan.payload_bytes()]; // a header of the caller's own, and the payload after it
    /// device.encode_plan_into(&plan, Gradient::from(&gradient), &mut [], Seed::new(1), &mut message[8..])?;
    /// assert_eq!(PayloadView::from_bytes(&message[8..])?.len(), 1000);
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Device::encode_plan`]; [`Error::Length`] for other than [`EncodePlan::payload_bytes`]; [`Error::Packed`]
    /// for a plan whose payload is packed, since its length is known only once it is made. Output and residual are as
    /// they were whenever this fails.
    pub fn encode_plan_into(
        &self,
        plan: &EncodePlan,
        gradient: Gradient<'_>,
        residual: &mut [f32],
        seed: Seed,
        output: &mut [u8],
    ) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        plan.refuse_packed("a payload in memory of its length")?;
        Error::expect_len("output", "bytes", output.len(), plan.payload_bytes() as u64)?;
        slices::dense::expect_inputs(plan, gradient, residual)?;
        let (head, body) = output.split_at_mut(HEADER_BYTES);
        now(slices::dense::encode_body(self.runner(), plan, gradient, residual, seed, body))?;
        head.copy_from_slice(&plan.header().write(body));
        Ok(())
    }

    /// Compresses a gradient into a buffer that is kept from step to step: it becomes the bytes of
    /// [`Payload::as_bytes`], and on the CPU nothing of their size is allocated if it has the capacity.
    ///
    /// ```
    /// use gradwire::{Device, Payload, Qsgd, Seed};
    /// let (device, mut bytes) = (Device::cpu(), Vec::new());
    /// for step in 0..3 {
    ///     device.encode_into(&Qsgd::bits(4), &[0.5f32; 1000], Seed::new(1).step(step), &mut bytes)?;
    ///     assert_eq!(Payload::from_bytes(&bytes)?.len(), 1000);
    /// }
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Device::encode`]. The buffer is as it was whenever this fails.
    pub fn encode_into<'g>(
        &self,
        codec: &(impl Codec + ?Sized),
        gradient: impl Into<Gradient<'g>>,
        seed: Seed,
        output: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        let gradient = gradient.into();
        let plan = codec.plan(gradient.len(), gradient.dtype())?;
        if plan.is_packed() {
            let payload = self.encode_plan(&plan, gradient, &mut [], seed)?;
            output.clear();
            output.extend_from_slice(payload.as_bytes());
            return Ok(());
        }
        let (before, needed) = (output.len(), plan.payload_bytes());
        let grown = needed.saturating_sub(before);
        output.try_reserve(grown).map_err(|_| Error::no_memory("a payload", needed as u64))?;
        output.resize(before.max(needed), 0);
        let outcome = self.encode_plan_into(&plan, gradient, &mut [], seed, &mut output[..needed]);
        output.truncate(if outcome.is_ok() { needed } else { before });
        outcome
    }

    /// The gradient that a payload holds, as f32.
    ///
    /// # Errors
    /// [`Error::Limit`] if the device's limits are too small for any part of it, or for the codes of a packed
    /// payload, which are unpacked in one binding: [`Device::unpack`] on the CPU makes of it one that is decoded in
    /// parts. [`Error::Backend`] if there is no memory for the gradient, or the device fails.
    pub fn decode(&self, payload: &(impl AsPayload + ?Sized)) -> Result<Vec<f32>, Error> {
        let _environment = FloatEnvironment::standard();
        let payload = payload.as_payload();
        let mut output = zeros(payload.len() as u64, "the decoded gradient")?;
        self.decode_into(&payload, &mut output)?;
        Ok(output)
    }

    /// `output = decode(payload)`.
    ///
    /// # Errors
    /// [`Error::Length`] for an output of another length than the gradient; as [`Device::decode`]. The output is as it
    /// was whenever this fails.
    pub fn decode_into(&self, payload: &(impl AsPayload + ?Sized), output: &mut [f32]) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        now(slices::dense::decode(self.runner(), &[payload.as_payload()], DecodeMode::Write, output))
    }

    /// `output += weight * decode(payload)`.
    ///
    /// # Errors
    /// As [`Device::decode_into`].
    pub fn decode_add(
        &self,
        payload: &(impl AsPayload + ?Sized),
        weight: f32,
        output: &mut [f32],
    ) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        now(slices::dense::decode(self.runner(), &[payload.as_payload()], DecodeMode::Add(weight), output))
    }

    /// `output = weight * (decode(payloads[0]) + decode(payloads[1]) + ...)`, in one pass over the payloads.
    ///
    /// Each term is weighted, then added in the order of the slice, so that the result is that of
    /// [`Device::decode_add`] onto zeros, bit for bit.
    ///
    /// ```
    /// use gradwire::{Device, Qsgd, Seed};
    /// let device = Device::cpu();
    /// let worker = |w| device.encode(&Qsgd::bits(8), &[w as f32; 100], Seed::new(w));
    /// let payloads = [worker(1)?, worker(2)?, worker(3)?];
    /// let mut mean = vec![0.0; 100];
    /// device.decode_sum(&payloads, 1.0 / 3.0, &mut mean)?;
    /// assert!(mean.iter().all(|m| (m - 2.0).abs() < 1e-5));
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Mixed`] if the payloads are not of one codec, setting and length; [`Error::Limit`] for more payloads
    /// together than one buffer of the device holds; as [`Device::decode_into`].
    pub fn decode_sum(&self, payloads: &[impl AsPayload], weight: f32, output: &mut [f32]) -> Result<(), Error> {
        let _environment = FloatEnvironment::standard();
        if payloads.is_empty() {
            output.fill(0.0);
            return Ok(());
        }
        let payloads: Vec<_> = payloads.iter().map(AsPayload::as_payload).collect();
        now(slices::dense::decode(self.runner(), &payloads, DecodeMode::Sum(weight), output))
    }

    /// Of each payload that is packed, one that is not.
    pub(crate) fn unpack_all(&self, payloads: &[PayloadView<'_>]) -> Result<Vec<Option<Payload>>, Error> {
        now(slices::dense::unpack_all(self.runner(), payloads))
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.kind(), self.name())
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("kind", &self.kind()).field("name", &self.name()).finish()
    }
}

const _: () = assert!(HEADER_BYTES.is_multiple_of(4), "scalars behind the header stay aligned");

#[cfg(test)]
mod tests {
    use super::Device;
    use crate::{Error, LazyResidual, LowRankState, ModelPlan, Payload, Seed, SparsePayload};

    /// It compiles, and that is the test.
    #[test]
    fn threads_may_share_a_device_and_what_it_works_on() {
        const fn shared<T: Send + Sync>() {}
        shared::<Device>();
        shared::<(Payload, SparsePayload, ModelPlan, LowRankState, LazyResidual, Seed, Error)>();
    }
}
