//! Scans of device memory for NaN and infinity.

use std::borrow::Cow;

use super::memory::Queue;
use crate::compressor::group::Group;
use crate::embed::{DeviceMemory, Piece, Work, residual as residual_of, sealed};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{Limits, NonFinite, Pass, Role, STATUS_BYTES, refuse_not_finite};
use crate::sparse::scan_passes;

/// Memory for what a scan found.
pub(crate) struct Finite<D: DeviceMemory>(D::Room);

impl<D: DeviceMemory> Finite<D> {
    pub(crate) fn new(queue: &Queue<'_, D>) -> Result<Self, Error> {
        Ok(Self(queue.room(STATUS_BYTES)?))
    }

    /// Under the policy that refuses non-finite values.
    pub(crate) fn under(queue: &Queue<'_, D>, policy: NonFinite) -> Result<Option<Self>, Error> {
        match policy {
            NonFinite::Error => Self::new(queue).map(Some),
            NonFinite::Propagate => Ok(None),
        }
    }

    /// Refuses a non-finite value of the group's tensors, which are contiguous in `values`.
    pub(crate) fn refuse(&self, queue: &Queue<'_, D>, group: &Group, values: &D::Slice) -> Result<(), Error> {
        self.refuse_of(queue, group.elements() as u64, values).map_err(|error| group.unpacked(error))
    }

    /// Refuses a non-finite value among the first elements of `values`.
    pub(crate) fn refuse_of(&self, queue: &Queue<'_, D>, elements: u64, values: &D::Slice) -> Result<(), Error> {
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
pub(crate) struct Scan {
    pub(crate) elements: u64,
    /// Whether the numbers are sums with a residual.
    pub(crate) feedback: bool,
}

pub(crate) struct ScanBuffers<B> {
    pub(crate) values: B,
    /// With feedback.
    pub(crate) residual: Option<B>,
    pub(crate) status: B,
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
