//! Pieces of a device's memory, and work that is queued on them.

use std::borrow::Cow;
use std::ops::Range;

use gradwire_kernels::params::{DECODE_SPAN, MomentumParams};

use crate::embed::{DeviceMemory, Piece, Work, queue, sealed};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{Bindings, Kernel, Limits, Params, Pass, Role, Span};

/// A number for each element, and room for them before the step.
pub(crate) struct Plane<R> {
    pub(crate) now: R,
    pub(crate) before: R,
}

/// A device's queue, and memory that somebody answers for.
pub(crate) struct Queue<'m, D>(&'m D);

impl<'m, D: DeviceMemory> Queue<'m, D> {
    /// # Safety
    /// The caller guarantees that every piece that is handed over stays allocated until the device has done the
    /// queued work, that nothing that is not queued there uses it meanwhile, and that it holds what work takes on
    /// trust.
    pub(crate) unsafe fn new(memory: &'m D) -> Self {
        Self(memory)
    }

    pub(crate) fn memory(&self) -> &'m D {
        self.0
    }

    pub(crate) fn all(&self, room: &D::Room) -> D::Slice {
        self.0.all(room)
    }

    /// A piece of a piece.
    #[cfg(feature = "cuda")]
    pub(crate) fn part(&self, of: &D::Slice, from: u64, bytes: u64) -> D::Slice {
        self.0.part(of, from, bytes)
    }

    pub(crate) fn room(&self, bytes: u64) -> Result<D::Room, Error> {
        self.0.room(bytes)
    }

    /// A room that holds bytes.
    pub(crate) fn holding(&self, bytes: &[u8]) -> Result<D::Room, Error> {
        let room = self.room(bytes.len() as u64)?;
        self.write(&self.all(&room), 0, bytes)?;
        Ok(room)
    }

    /// A plane of these numbers; none for none.
    pub(crate) fn plane(&self, of: &[f32]) -> Result<Option<Plane<D::Room>>, Error> {
        if of.is_empty() {
            return Ok(None);
        }
        let now = self.holding(bytemuck::cast_slice(of))?;
        Ok(Some(Plane { now, before: self.room(4 * of.len() as u64)? }))
    }

    /// Writes bytes, a multiple of 4, from a place on.
    pub(crate) fn write(&self, to: &D::Slice, at: u64, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the maker answers for the memory.
        unsafe { self.0.write(&self.0.part(to, at, bytes.len() as u64), bytes) }
    }

    /// Reads numbers from a place on.
    pub(crate) fn read<T: bytemuck::Pod>(&self, from: &D::Slice, at: u64, out: &mut [T]) -> Result<(), Error> {
        let out: &mut [u8] = bytemuck::cast_slice_mut(out);
        if out.is_empty() {
            return Ok(());
        }
        // SAFETY: the maker answers for the memory.
        unsafe { self.0.read(&self.0.part(from, at, out.len() as u64), out) }
    }

    /// Reads bytes of a range.
    pub(crate) fn bytes(&self, from: &D::Slice, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.read(from, range.start, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies bytes from a place to another memory's place.
    pub(crate) fn copy(&self, from: (&D::Slice, u64), to: (&D::Slice, u64), bytes: u64) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        let [from, to] = [from, to].map(|(slice, at)| self.0.part(slice, at, bytes));
        // SAFETY: the maker answers for the memory.
        unsafe { self.0.copy(&from, &to, bytes) }
    }

    /// Copies a plane as it is before a step.
    pub(crate) fn keep(&self, plane: &Plane<D::Room>, bytes: u64) -> Result<(), Error> {
        self.copy((&self.all(&plane.now), 0), (&self.all(&plane.before), 0), bytes)
    }

    /// [`Queue::keep`], backwards.
    pub(crate) fn restore(&self, plane: &Plane<D::Room>, bytes: u64) -> Result<(), Error> {
        self.copy((&self.all(&plane.before), 0), (&self.all(&plane.now), 0), bytes)
    }

    /// Writes zeros from a place on.
    pub(crate) fn clear(&self, to: &D::Slice, at: u64, bytes: u64) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the maker answers for the memory.
        unsafe { self.0.clear(&self.0.part(to, at, bytes), bytes) }
    }

    pub(crate) fn run<W: Work>(&self, work: W, buffers: W::Buffers<D::Slice>) -> Result<(), Error> {
        // SAFETY: the maker answers for the memory.
        unsafe { queue(self.0, work, buffers) }
    }
}

/// A gradient added to a momentum: [`memory::momentum`](gradwire_kernels::arith::memory::momentum) of a range.
#[derive(Clone, Debug)]
pub(crate) struct AddMomentum {
    /// Elements that change.
    pub(crate) range: Range<u64>,
    /// Elements that both have.
    pub(crate) elements: u64,
    pub(crate) factor: f32,
    /// The gradient's factor.
    pub(crate) gain: f32,
}

/// The memory of [`AddMomentum`].
pub(crate) struct MomentumBuffers<B> {
    pub(crate) gradient: B,
    pub(crate) momentum: B,
}

/// Elements that are bound begin at multiples of this many, which are 256 bytes.
const UNIT: u64 = 64;

impl sealed::Sealed for AddMomentum {}

impl Work for AddMomentum {
    type Buffers<B> = MomentumBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        let span = u64::from(DECODE_SPAN);
        let most = (limits.binding_bytes / 4).min(u64::from(limits.groups).saturating_mul(span)) / span * span;
        if most == 0 {
            let limit = "max_storage_buffer_binding_size";
            return Err(Error::Limit { limit, found: limits.binding_bytes, needed: 4 * span });
        }
        let mut passes = Vec::new();
        let mut base = self.range.start / UNIT * UNIT;
        while base < self.range.end {
            let end = self.range.end.min(base.saturating_add(most));
            let bound = Span { offset: 4 * base, bytes: 4 * (end - base) };
            let first = self.range.start.saturating_sub(base) as u32;
            let params = MomentumParams {
                first,
                end: (end - base) as u32,
                factor: self.factor.to_bits(),
                gain: self.gain.to_bits(),
            };
            passes.push(Pass {
                kernel: Kernel::Momentum,
                params: Params::Momentum(params),
                bindings: Bindings { input: bound, residual: bound, ..Bindings::default() },
                groups: (end - base).div_ceil(span) as u32,
            });
            base = end;
        }
        Ok(passes.into())
    }

    fn pieces<B>(&self, buffers: MomentumBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let momentum = Piece::floats("momentum", buffers.momentum, self.elements, Role::Residual).updated();
        Ok(vec![Piece::gradient(buffers.gradient, self.elements, Dtype::F32), momentum])
    }
}
