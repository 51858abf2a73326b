//! Slices in and slices out without a wait, for where a thread may not wait: a browser's.
//!
//! [`Wgpu::open`], sessions and [`crate::Device`]'s calls wait, and in a browser they are typed errors instead.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use wgpu::BufferUsages;

use super::loss::{Contained, Loss, QuietQueue};
use super::{Wgpu, failed, preference, timing, unavailable};
use crate::embed::{Access, Decode, DecodeBuffers, Encode, EncodeBuffers, Piece, Work, sealed};
use crate::error::{Error, expect_residual};
use crate::gradient::Gradient;
use crate::plan::{DecodeMode, DecodePlan, EncodePlan, check_input};
use crate::seed::Seed;
use crate::view::AsPayload;
use crate::wire::Payload;

/// The environment variable that chooses an adapter by part of its name.
const ADAPTER_VARIABLE: &str = "WGPU_ADAPTER_NAME";

/// What to do where there is no adapter at all.
const NO_ADAPTER: &str = if cfg!(target_arch = "wasm32") {
    "the browser has no WebGPU adapter; it has to be Chrome or Edge 113, Safari 26, Firefox 141 or newer, the page served \
     from https or localhost, and WebGPU not switched off"
} else {
    "no Vulkan, Metal or DX12 adapter was found; install the GPU's driver, or on Debian and Ubuntu mesa-vulkan-drivers for \
     one in software"
};

/// Memory of the host's that stands for a piece of the device's in [`Wgpu::run_async`]. Of a piece that is scratch, as
/// a workspace, its beginning is enough: what the work reads of it and what it leaves there ([`Piece::before`],
/// [`Piece::after`]).
#[derive(Debug)]
pub enum HostSlice<'h> {
    /// What the work reads.
    In(&'h [u8]),
    /// What it reads and writes.
    InOut(&'h mut [u8]),
    /// What it writes, whatever was there.
    Out(&'h mut [u8]),
}

impl<'h> HostSlice<'h> {
    fn bytes(&self) -> u64 {
        match self {
            Self::In(bytes) => bytes.len() as u64,
            Self::InOut(bytes) | Self::Out(bytes) => bytes.len() as u64,
        }
    }

    /// What comes back.
    fn wanted(self) -> Option<&'h mut [u8]> {
        match self {
            Self::In(_) => None,
            Self::InOut(bytes) | Self::Out(bytes) => Some(bytes),
        }
    }
}

impl<'h> From<Gradient<'h>> for HostSlice<'h> {
    fn from(gradient: Gradient<'h>) -> Self {
        Self::In(gradient.as_bytes())
    }
}

impl<'h> From<&'h mut [f32]> for HostSlice<'h> {
    /// What is read and written.
    fn from(values: &'h mut [f32]) -> Self {
        Self::InOut(bytemuck::cast_slice_mut(values))
    }
}

impl Wgpu {
    /// As [`Wgpu::open`], without a wait: in a browser this is the way, and its adapter is the one there is.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no adapter, none of that name, or none with the limits that the shaders
    /// need.
    pub async fn open_async() -> Result<Self, Error> {
        let broken =
            |reason: String| unavailable(format!("looking for adapters failed ({reason}); update the GPU's driver"));
        let looked = Contained(Box::pin(async {
            let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
            instance.enumerate_adapters(wgpu::Backends::PRIMARY).await
        }));
        let adapters = looked.await.map_err(broken)?;
        let wanted = std::env::var(ADAPTER_VARIABLE).unwrap_or_default().to_lowercase();
        let found: Vec<String> = adapters.iter().map(|a| a.get_info().name).collect();
        let adapter = adapters
            .into_iter()
            .filter(|a| a.get_info().name.to_lowercase().contains(&wanted))
            .min_by_key(|a| preference(a.get_info().device_type));
        let Some(adapter) = adapter else {
            return Err(unavailable(if found.is_empty() {
                NO_ADAPTER.to_owned()
            } else {
                format!("{ADAPTER_VARIABLE}={wanted} is part of no adapter's name; there are: {}", found.join(", "))
            }));
        };
        // The adapter's own limits, so that a large tensor takes few passes. The one optional feature is timestamps,
        // for `Session::time`; nothing else depends on it.
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("gradwire"),
            required_limits: adapter.limits(),
            required_features: timing::wanted(adapter.features()),
            ..Default::default()
        };
        let name = adapter.get_info().name;
        let refused = |reason: String| unavailable(format!("{name} refused a device ({reason}); update its driver"));
        // Called within, since it is the call that does the work, and the future only has its outcome.
        let requested = Contained(Box::pin(async { adapter.request_device(&descriptor).await }));
        let (device, queue) = requested.await.map_err(refused)?.map_err(|e| refused(e.to_string()))?;
        let (queue, loss) = (QuietQueue::new(queue), Loss::default());
        loss.watch(&device);
        // wgpu-hal 30 destroys a semaphore twice, on Vulkan, where the first submission to a queue finds no memory for
        // the second of two: so that submission is made here, and a queue on which it fails is not let go.
        let (first, objections) = observed(&device, || loss.contain(&name, "opening", || queue.submit([])));
        let objected = told(&format!("opening {name}"), objections).await;
        if let Err(error) = objected.and(first.map(drop)).and_then(|()| loss.check(&name)) {
            queue.leak();
            return Err(error);
        }
        // What the device objects to is awaited here, where `on` may not wait.
        let (opened, objections) = observed(&device, || Self::watched(&device, &queue, loss));
        told(&format!("opening {name}"), objections).await?;
        opened
    }

    /// As [`Device::encode_plan`](crate::Device::encode_plan), without a wait in a browser. Elsewhere the returned
    /// future waits for the device when it is polled.
    ///
    /// ```no_run
    /// # async fn run(gradient: &[f32]) -> Result<(), gradwire::Error> {
    /// use gradwire::backend::wgpu::Wgpu;
    /// use gradwire::{Codec, DecodeMode, Dtype, Qsgd, Seed};
    /// let gradwire = Wgpu::open_async().await?;
    /// let plan = Qsgd::bits(4).plan(gradient.len(), Dtype::F32)?;
    /// let payload = gradwire.encode_async(&plan, gradient.into(), &mut [], Seed::new(42)).await?;
    /// let mut sum = vec![0.0; gradient.len()];
    /// gradwire.decode_async(&payload, DecodeMode::Add(0.5), &mut sum).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Device::encode_plan`](crate::Device::encode_plan). The residual is as it was whenever this fails.
    pub async fn encode_async(
        &self,
        plan: &EncodePlan,
        gradient: Gradient<'_>,
        residual: &mut [f32],
        seed: Seed,
    ) -> Result<Payload, Error> {
        if !plan.is_packed() {
            return self.encode_fixed(plan, gradient, residual, seed).await;
        }
        // The caller's residual changes once nothing can fail any more.
        let mut left = residual.to_vec();
        let fixed = self.encode_fixed(&plan.fixed(), gradient, &mut left, seed).await?;
        let packed = self.pack_async(&fixed, plan.entropy()).await?;
        residual.copy_from_slice(&left);
        Ok(packed)
    }

    async fn encode_fixed(
        &self,
        plan: &EncodePlan,
        gradient: Gradient<'_>,
        residual: &mut [f32],
        seed: Seed,
    ) -> Result<Payload, Error> {
        check_input(plan, gradient.dtype(), gradient.len())?;
        let header = *plan.header();
        expect_residual(plan.feedback(), residual.len(), header.n)?;
        if header.n == 0 {
            return header.seal(&vec![0; header.body_bytes() as usize]);
        }
        let mut status = [0; 4];
        let mut body = vec![0; header.body_bytes() as usize];
        let buffers = EncodeBuffers {
            gradient: HostSlice::from(gradient),
            residual: Some(HostSlice::from(residual)),
            body: HostSlice::Out(&mut body),
            workspace: Some(HostSlice::Out(if plan.is_guarded() { &mut status } else { &mut [] })),
        };
        self.run_async(Encode { plan, seed }, buffers).await?;
        plan.check_workspace(&status)?;
        header.seal(&body)
    }

    /// Decodes a payload over or onto `output`, without a wait in a browser, as [`Wgpu::encode_async`].
    ///
    /// # Errors
    /// As [`Device::decode_into`](crate::Device::decode_into). The output is as it was whenever this fails.
    pub async fn decode_async(
        &self,
        payload: &(impl AsPayload + ?Sized),
        mode: DecodeMode,
        output: &mut [f32],
    ) -> Result<(), Error> {
        let payload = payload.as_payload();
        Error::expect_len("output", "elements", output.len(), payload.header().n)?;
        if payload.header().n == 0 {
            return Ok(());
        }
        let unpacked = match payload.header().is_packed() {
            true => Some(self.unpack_async(&payload).await?),
            false => None,
        };
        let payload = unpacked.as_ref().map_or(payload, Payload::view);
        let header = *payload.header();
        let plan = DecodePlan::new(header, 1);
        let mut body = vec![0; header.body_bytes() as usize];
        payload.write_body(&mut body)?;
        let buffers = DecodeBuffers { bodies: HostSlice::In(&body), output: HostSlice::from(output) };
        self.run_async(Decode { plan: &plan, mode }, buffers).await
    }

    /// Runs work on memory of the host's, without a wait in a browser: the pieces go to the device, the work is done,
    /// and what it has written comes back.
    ///
    /// ```no_run
    /// # async fn run(gradient: &[f32]) -> Result<(), gradwire::Error> {
    /// use gradwire::backend::wgpu::{HostSlice, Wgpu};
    /// use gradwire::embed::{Select, SelectBuffers};
    /// use gradwire::{Dtype, Gradient, TopK};
    /// let gradwire = Wgpu::open_async().await?;
    /// let selection = TopK::count(100).selection(gradient.len(), Dtype::F32, false, &gradwire.limits())?;
    /// let (mut indices, mut values) = ([0u8; 400], [0u8; 400]);
    /// let buffers = SelectBuffers {
    ///     gradient: Gradient::F32(gradient).into(),
    ///     residual: None,
    ///     indices: HostSlice::Out(&mut indices),
    ///     values: HostSlice::Out(&mut values),
    ///     workspace: HostSlice::In(&selection.table()),
    /// };
    /// gradwire.run_async(Select(&selection), buffers).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of the work; [`Error::Length`] for a slice that is too short or too long; [`Error::Memory`] for a piece
    /// that is written and was handed over to be read, or the other way round; [`Error::Backend`]. The host's memory is
    /// as it was whenever this fails, and where the future is dropped.
    pub async fn run_async<W: Work>(&self, work: W, buffers: W::Buffers<HostSlice<'_>>) -> Result<(), Error> {
        let copies = self.contained("working", || self.submitted(&work, buffers)).await?;
        let mut answers = Vec::with_capacity(copies.len());
        for (to, copied) in copies {
            answers.push((to, self.read(copied).await?));
        }
        for (to, bytes) in answers {
            to.copy_from_slice(&bytes);
        }
        work.queued(sealed::Surface(()));
        Ok(())
    }

    /// Submits work with the copies of what it writes.
    fn submitted<'h, W: Work>(
        &self,
        work: &W,
        buffers: W::Buffers<HostSlice<'h>>,
    ) -> Result<Vec<(&'h mut [u8], Copied)>, Error> {
        let passes = work.passes(&self.limits())?;
        let pieces: Vec<_> = work.pieces(buffers)?.into_iter().filter(|piece| piece.needed > 0).collect();
        let rooms = pieces.iter().map(|piece| self.uploaded(piece)).collect::<Result<Vec<_>, _>>()?;
        let mut encoder = self.encoder();
        let mut slices = Vec::with_capacity(pieces.len());
        let mut wanted = Vec::with_capacity(pieces.len());
        for (piece, room) in pieces.into_iter().zip(&rooms) {
            slices.push(piece.map(|host| {
                wanted.extend(host.wanted().map(|to| (to, room)));
                room.slice(..)
            }));
        }
        self.record_checked(&passes, &mut encoder, &slices)?;
        let copy = |(to, room): (&'h mut [u8], &wgpu::Buffer)| {
            let copied = self.copied(&mut encoder, room, 0, to.len() as u64)?;
            Ok((to, copied))
        };
        let copies = wanted.into_iter().map(copy).collect::<Result<_, Error>>()?;
        self.submit(encoder);
        Ok(copies)
    }

    /// A buffer for a piece, with what the host hands over.
    fn uploaded(&self, piece: &Piece<HostSlice<'_>>) -> Result<wgpu::Buffer, Error> {
        let (what, found, needed) = (piece.what, piece.buffer.bytes(), piece.needed);
        let refuse = |bytes: &[u8], problem: &str| {
            Err(Error::Memory { what, address: bytes.as_ptr() as u64, problem: problem.to_owned() })
        };
        match &piece.buffer {
            HostSlice::In(bytes) if piece.after > 0 => {
                return refuse(bytes, "is written, and would be lost: use HostSlice::InOut or HostSlice::Out");
            }
            HostSlice::Out(bytes) if piece.before > 0 => {
                return refuse(bytes, "is read, and holds nothing: use HostSlice::In or HostSlice::InOut");
            }
            _ => {}
        }
        // Of scratch, the beginning is enough: what is read of it, and what is kept.
        let least = if piece.access == Access::Scratch { piece.before.max(piece.after) } else { needed };
        let most = if matches!(piece.buffer, HostSlice::In(_)) { u64::MAX } else { needed };
        if !(least..=most).contains(&found) {
            let expected = if found < least { least } else { most };
            return Err(Error::Length { what, found, expected, unit: "bytes" });
        }
        let room = self.room(needed, SCRATCH)?;
        match &piece.buffer {
            HostSlice::In(bytes) => self.put(&room, &bytes[..found.min(needed) as usize]),
            HostSlice::InOut(bytes) => self.put(&room, bytes),
            HostSlice::Out(_) => {}
        }
        Ok(room)
    }

    /// Runs `work`, which waits for nothing, so that what the device objects to comes back as an error: around
    /// [`Wgpu::record`] in a browser, where it cannot tell. `what` says in the error what was done.
    ///
    /// ```no_run
    /// # async fn run(device: wgpu::Device, queue: wgpu::Queue, gradient: wgpu::Buffer, body: wgpu::Buffer) -> Result<(), gradwire::Error> {
    /// use gradwire::backend::wgpu::Wgpu;
    /// use gradwire::embed::{Encode, EncodeBuffers};
    /// use gradwire::{Codec, Dtype, Qsgd, Seed, wgpu};
    /// let gradwire = Wgpu::on(&device, &queue)?;
    /// let plan = Qsgd::bits(4).plan(1 << 20, Dtype::F32)?;
    /// let buffers = EncodeBuffers { gradient: gradient.slice(..), residual: None, body: body.slice(..), workspace: None };
    /// gradwire
    ///     .checked("recording an encode", || {
    ///         let mut encoder = device.create_command_encoder(&Default::default());
    ///         gradwire.record(Encode { plan: &plan, seed: Seed::new(42) }, &mut encoder, buffers)?;
    ///         queue.submit([encoder.finish()]);
    ///         Ok(())
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// What `work` gives; [`Error::Backend`] where the device objects.
    pub async fn checked<T>(&self, what: &str, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let shared = &self.shared;
        shared.loss.check(&shared.name)?;
        let (value, objections) = observed(&shared.device, work);
        if let Err(error) = told(&format!("{what} on {}", shared.name), objections).await {
            shared.loss.look(&shared.device, &error);
            shared.loss.check(&shared.name)?;
            return Err(error);
        }
        let value = value?;
        shared.loss.check(&shared.name).map(|()| value)
    }

    /// As [`Wgpu::checked`], of work that is calls of wgpu's alone: a panic there is an error. A panic of a caller's is
    /// not.
    pub(crate) async fn contained<T>(&self, what: &str, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let shared = &self.shared;
        self.checked(what, || shared.loss.contain(&shared.name, what, work)?).await
    }

    /// An encoder of this device's.
    pub(crate) fn encoder(&self) -> wgpu::CommandEncoder {
        self.shared.device.create_command_encoder(&Default::default())
    }

    /// Submits what was recorded.
    pub(crate) fn submit(&self, encoder: wgpu::CommandEncoder) {
        self.shared.queue.submit([encoder.finish()]);
    }

    /// A buffer of at least this size.
    pub(crate) fn room(&self, bytes: u64, usage: BufferUsages) -> Result<wgpu::Buffer, Error> {
        let (needed, found) = (bytes.next_multiple_of(4).max(16), self.shared.device.limits().max_buffer_size);
        if needed > found {
            return Err(Error::Limit { limit: "max_buffer_size", found, needed });
        }
        let descriptor =
            wgpu::BufferDescriptor { label: Some("gradwire"), size: needed, usage, mapped_at_creation: false };
        Ok(self.shared.device.create_buffer(&descriptor))
    }

    /// A buffer that holds these bytes.
    pub(crate) fn filled(&self, bytes: &[u8]) -> Result<wgpu::Buffer, Error> {
        let buffer = self.room(bytes.len() as u64, SCRATCH)?;
        self.put(&buffer, bytes);
        Ok(buffer)
    }

    /// Writes the first bytes of a buffer.
    pub(crate) fn put(&self, buffer: &wgpu::Buffer, bytes: &[u8]) {
        self.put_at(buffer, 0, bytes);
    }

    /// Writes bytes of a buffer, from one on that is a multiple of four.
    pub(crate) fn put_at(&self, buffer: &wgpu::Buffer, at: u64, bytes: &[u8]) {
        let (words, rest) = bytes.split_at(bytes.len() / 4 * 4);
        self.shared.queue.write_buffer(buffer, at, words);
        if !rest.is_empty() {
            // The device copies whole words; the buffer has room for the last one.
            let mut word = [0; 4];
            word[..rest.len()].copy_from_slice(rest);
            self.shared.queue.write_buffer(buffer, at + words.len() as u64, &word);
        }
    }

    /// A buffer that the host can read, with a copy of bytes of another one recorded into it, from byte `at` on.
    pub(crate) fn copied(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        from: &wgpu::Buffer,
        at: u64,
        bytes: u64,
    ) -> Result<Copied, Error> {
        let staging = self.room(bytes, BufferUsages::MAP_READ | BufferUsages::COPY_DST)?;
        if bytes > 0 {
            encoder.copy_buffer_to_buffer(from, at, &staging, 0, bytes.next_multiple_of(4));
        }
        Ok(Copied { staging, bytes: bytes as usize })
    }

    /// The bytes of a copy that was submitted.
    pub(crate) async fn read(&self, Copied { staging, bytes }: Copied) -> Result<Vec<u8>, Error> {
        if bytes == 0 {
            return Ok(Vec::new());
        }
        let shared = &self.shared;
        let mapped = Mapped::default();
        let answer = Promise(mapped.clone());
        self.contained("mapping", || {
            staging.map_async(wgpu::MapMode::Read, .., move |result| answer.0.say(result));
            Ok(())
        })
        .await?;
        // A browser runs the callback by itself. Elsewhere someone has to look after the device.
        #[cfg(not(target_arch = "wasm32"))]
        shared.wait()?;
        if let Err(error) = mapped.await {
            // A buffer that was made a moment ago, to which nothing was objected, fails to map on a lost device alone.
            shared.loss.tell(&format!("a buffer could not be mapped: {error}"));
            shared.loss.check(&shared.name)?;
        }
        let copy = || staging.get_mapped_range(..).map(|view| view[..bytes].to_vec());
        let copied = shared.loss.contain(&shared.name, "mapping", copy)?;
        copied.map_err(|error| failed(format!("mapping a buffer of {}: {error}", shared.name)))
    }
}

/// Runs `work`; what the device objects to is in the futures.
///
/// All scopes are closed before any answer is awaited: in between, another future of this thread may open its own.
fn observed<T>(device: &wgpu::Device, work: impl FnOnce() -> T) -> (T, [impl Future<Output = Option<wgpu::Error>>; 3]) {
    use wgpu::ErrorFilter::{Internal, OutOfMemory, Validation};
    let mut scopes = [Validation, OutOfMemory, Internal].map(|filter| device.push_error_scope(filter));
    let value = work();
    // Scopes are a stack: the last one pushed is popped first.
    scopes.reverse();
    (value, scopes.map(|scope| scope.pop()))
}

/// Awaits objections. Where there is one, it is an error.
async fn told(what: &str, objections: [impl Future<Output = Option<wgpu::Error>>; 3]) -> Result<(), Error> {
    for objection in objections {
        if let Some(error) = objection.await {
            return Err(failed(format!("{what}: {error}")));
        }
    }
    Ok(())
}

/// Buffers that passes read and write, and that are copied to and from.
pub(crate) const SCRATCH: BufferUsages =
    BufferUsages::STORAGE.union(BufferUsages::COPY_DST).union(BufferUsages::COPY_SRC);

/// A copy for the host.
pub(crate) struct Copied {
    staging: wgpu::Buffer,
    bytes: usize,
}

type Answer = Result<(), wgpu::BufferAsyncError>;

/// What a mapping came to, once it is known.
#[derive(Clone, Default)]
struct Mapped(Arc<Mutex<(Option<Answer>, Option<Waker>)>>);

impl Mapped {
    fn say(&self, answer: Answer) {
        // A thread that panicked while it held the lock left a pair that is still whole.
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The first answer stands.
        state.0.get_or_insert(answer);
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    }
}

/// What a mapping will come to. Where wgpu lets go of it without a word, as it does when a device is lost, that is an
/// answer too.
struct Promise(Mapped);

impl Drop for Promise {
    fn drop(&mut self) {
        self.0.say(Err(wgpu::BufferAsyncError));
    }
}

impl Future for Mapped {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match state.0.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                state.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
