//! Scans of device memory for NaN and infinity.

use std::borrow::Cow;

use crate::compressor::part::Part;
use crate::compressor::resident::memory::Queue;
use crate::embed::{DeviceMemory, Piece, Work, sealed};
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
        queue.run(Scan { elements }, ScanBuffers { values: values.clone(), status: status.clone() })?;
        let mut found = [0u32];
        queue.read(&status, 0, &mut found)?;
        refuse_not_finite(found[0])
    }
}

struct Scan {
    elements: u64,
}

struct ScanBuffers<B> {
    values: B,
    status: B,
}

impl sealed::Sealed for Scan {}

impl Work for Scan {
    type Buffers<B> = ScanBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        scan_passes(self.elements as usize, Dtype::F32, false, limits).map(Cow::Owned)
    }

    fn pieces<B>(&self, buffers: ScanBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let status = Piece::new("status", buffers.status, STATUS_BYTES, [Some((Role::Status, 0)), None]);
        Ok(vec![Piece::gradient(buffers.values, self.elements, Dtype::F32), status.scratch(0, STATUS_BYTES)])
    }
}
