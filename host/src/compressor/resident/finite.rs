//! Scans of device memory for NaN and infinity.

use std::borrow::Cow;

use crate::compressor::part::Part;
use crate::compressor::resident::memory::Queue;
use crate::embed::{DeviceMemory, Piece, Work, residual as residual_of, sealed};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{Limits, NonFinite, Pass, Role, STATUS_BYTES, refuse_not_finite};
use crate::sparse::scan_passes;

/// Memory for what a scan found.
pub(super) struct Finite<D: DeviceMemory>(D::Room);

impl<D: DeviceMemory> Finite<D> {
    pub(super) fn new(queue: &Queue<'_, D>) -> Result<Self, Error> {
        Ok(Self(queue.room(STATUS_BYTES)?))
    }

    /// Under the policy that refuses what is not finite.
    pub(super) fn under(queue: &Queue<'_, D>, policy: NonFinite) -> Result<Option<Self>, Error> {
        match policy {
            NonFinite::Error => Self::new(queue).map(Some),
            NonFinite::Propagate => Ok(None),
        }
    }

    /// Refuses what is not finite of the part's tensors, which `values` holds contiguously.
    pub(super) fn refuse(&self, queue: &Queue<'_, D>, part: &Part, values: &D::Slice) -> Result<(), Error> {
        self.refuse_of(queue, part.elements() as u64, values).map_err(|error| part.unpacked(error))
    }

    /// Refuses what is not finite of the first elements of `values`.
    pub(super) fn refuse_of(&self, queue: &Queue<'_, D>, elements: u64, values: &D::Slice) -> Result<(), Error> {
        if elements == 0 {
            return Ok(());
        }
        let status = queue.all(&self.0);
        let buffers = ScanBuffers { values: values.clone(), residual: None, status: status.clone() };
        queue.run(Scan { elements, feedback: false }, buffers)?;
        let mut found = [0u32];
        queue.read(&status, 0, &mut found)?;
        refuse_not_finite(found[0])
    }
}

/// Leaves where the first number is that is not finite, or zeros.
pub(super) struct Scan {
    pub(super) elements: u64,
    /// Whether the numbers are sums with a residual.
    pub(super) feedback: bool,
}

pub(super) struct ScanBuffers<B> {
    pub(super) values: B,
    /// With feedback.
    pub(super) residual: Option<B>,
    pub(super) status: B,
}

impl sealed::Sealed for Scan {}

impl Work for Scan {
    type Buffers<B> = ScanBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        scan_passes(self.elements as usize, Dtype::F32, self.feedback, limits).map(Cow::Owned)
    }

    fn pieces<B>(&self, buffers: ScanBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let ScanBuffers { values, residual, status } = buffers;
        let status = Piece::new("status", status, STATUS_BYTES, [Some((Role::Status, 0)), None]);
        let mut pieces = vec![Piece::gradient(values, self.elements, Dtype::F32), status.scratch(0, STATUS_BYTES)];
        pieces.extend(residual_of(self.feedback, residual, self.elements)?.map(Piece::read));
        Ok(pieces)
    }
}
