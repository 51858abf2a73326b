//! Steps that a non-finite number takes back, on the device: no host sees the gradient.

use std::borrow::Cow;

use gradwire_kernels::params::{DECODE_SPAN, RestoreParams};

use crate::backend::cuda::{Cuda, CudaRoom, DeviceSlice};
use crate::compressor::method::AnyResident;
use crate::compressor::planes::Held;
use crate::compressor::queue::{Queue, Ranks, Scan, ScanBuffers};
use crate::compressor::resident::ResidentCompressor;
use crate::compressor::resident::device::Resident;
use crate::embed::{Piece, Work, sealed};
use crate::error::Error;
use crate::plan::{Bindings, Kernel, Limits, Params, Pass, Role, STATUS_BYTES, Span};
use crate::stream_collective::StreamCollective;
use crate::wire::MAX_ELEMENTS;

/// Memory for what scans find.
pub(super) struct Guard {
    /// What each scan of this rank's numbers finds: of the gradient, and of the momentum if there is one.
    mine: CudaRoom,
    /// The same of each rank, and then of the mean.
    all: CudaRoom,
    /// Bytes of `mine`.
    each: u64,
    ranks: u32,
}

impl Guard {
    /// None if all tensors go uncompressed without momentum: sums are then left as they are.
    pub(super) fn new(
        queue: &Queue<'_, Cuda>,
        of: &ResidentCompressor<Cuda>,
        ranks: u32,
    ) -> Result<Option<Self>, Error> {
        let skips = !of.inner.parts.is_empty() || of.inner.whole.iter().any(|tensor| tensor.momentum.is_some());
        if !skips || of.inner.elements() == 0 {
            return Ok(None);
        }
        let scans = 1 + u64::from(of.state.plane(Held::Momentum).is_some());
        let each = scans * STATUS_BYTES;
        let all = queue.room(each * u64::from(ranks) + STATUS_BYTES)?;
        Ok(Some(Self { mine: queue.room(each)?, all, each, ranks }))
    }

    /// Has the kernels compiled that a step needs.
    pub(super) fn compile(&self, cuda: &Cuda) -> Result<(), Error> {
        let limits = cuda.limits();
        cuda.warm_up_passes(&Scan { elements: 1, feedback: false }.passes(&limits)?)?;
        cuda.warm_up_passes(&Restore { elements: 1, words: 1, copies: false }.passes(&limits)?)
    }

    /// Queues a scan of this rank's gradient and momentum, each plus the residual, and a gather of the ranks' findings.
    ///
    /// PowerSGD has its residual elsewhere. A sum with it that is not finite makes the mean NaN, which is scanned.
    pub(super) fn scan<G: StreamCollective + ?Sized>(
        &self,
        memory: &Resident<'_, Cuda>,
        ranks: &mut Ranks<'_, G>,
    ) -> Result<(), Error> {
        let Resident { queue, state, gradient, elements, .. } = memory;
        let plane = |held: Held| state.plane(held).map(|plane| queue.all(&plane.now));
        let (residual, mine) = (plane(Held::Residual), queue.all(&self.mine));
        let scanned = [Some(*gradient), plane(Held::Momentum)];
        for (index, values) in (0..).zip(scanned.into_iter().flatten()) {
            let status = queue.part(&mine, STATUS_BYTES * index, STATUS_BYTES);
            let work = Scan { elements: *elements, feedback: residual.is_some() };
            queue.run(work, ScanBuffers { values, residual, status })?;
        }
        ranks.gather(&mine, &queue.all(&self.all), self.each)
    }

    /// Queues a scan of the mean, and restores: if any scan of any rank has found something, the state is
    /// rolled back to before the step, and all of the mean becomes NaN. It is so on every rank, since all have the same
    /// mean.
    pub(super) fn judge(&self, memory: &Resident<'_, Cuda>) -> Result<(), Error> {
        let Resident { queue, state, gradient, elements, .. } = memory;
        let (found, of_ranks) = (queue.all(&self.all), self.each * u64::from(self.ranks));
        let status = queue.part(&found, of_ranks, STATUS_BYTES);
        let buffers = ScanBuffers { values: *gradient, residual: None, status };
        queue.run(Scan { elements: *elements, feedback: false }, buffers)?;
        let words = ((of_ranks + STATUS_BYTES) / 4) as u32;
        let restore = |before: Option<DeviceSlice>, now: DeviceSlice, bytes: u64| {
            if bytes == 0 {
                return Ok(());
            }
            let work = Restore { elements: bytes / 4, words, copies: before.is_some() };
            queue.run(work, RestoreBuffers { before, now, status: found })
        };
        let of_methods = state.methods.iter().flat_map(AnyResident::planes);
        let planes = state.planes.iter().flatten().map(|plane| (plane, 4 * *elements));
        planes
            .chain(of_methods)
            .try_for_each(|(plane, bytes)| restore(Some(queue.all(&plane.before)), queue.all(&plane.now), bytes))?;
        restore(None, *gradient, 4 * *elements)
    }
}

/// Puts numbers back if any word of the status is not zero.
struct Restore {
    elements: u64,
    /// Words of the status.
    words: u32,
    /// Whether they are copied; else they become NaN.
    copies: bool,
}

struct RestoreBuffers<B> {
    before: Option<B>,
    now: B,
    status: B,
}

/// The most blocks of a launch: enough for any GPU, and few if there is nothing to do.
const BLOCKS: u64 = 1024;

/// The least spans of a block.
const SPANS: u64 = 4;

impl sealed::Sealed for Restore {}

impl Work for Restore {
    type Buffers<B> = RestoreBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        let span = u64::from(DECODE_SPAN);
        // Indices of a launch are 32-bit words.
        let chunk = limits.chunk(4, DECODE_SPAN)?.min(MAX_ELEMENTS);
        let pass = |base: u64| {
            let elements = chunk.min(self.elements - base);
            let spans = elements.div_ceil(BLOCKS * span).max(SPANS);
            let params = RestoreParams {
                elements: elements as u32,
                words: self.words,
                spans: spans as u32,
                copies: self.copies.into(),
                fill: f32::NAN.to_bits(),
            };
            let now = Span { offset: 4 * base, bytes: 4 * elements };
            let input = if self.copies { now } else { Span::default() };
            let status = Span { offset: 0, bytes: 4 * u64::from(self.words) };
            let bindings = Bindings { input, residual: now, status, ..Bindings::default() };
            let groups = elements.div_ceil(spans * span) as u32;
            Pass { kernel: Kernel::Restore, params: Params::Restore(params), bindings, groups }
        };
        Ok((0..self.elements).step_by(chunk as usize).map(pass).collect())
    }

    fn pieces<B>(&self, buffers: RestoreBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let RestoreBuffers { before, now, status } = buffers;
        let status = Piece::new("status", status, 4 * u64::from(self.words), [Some((Role::Status, 0)), None]);
        let mut pieces = vec![Piece::floats("state", now, self.elements, Role::Residual).updated(), status.read()];
        pieces.extend(before.map(|before| Piece::floats("copy of it", before, self.elements, Role::Input).read()));
        Ok(pieces)
    }
}
