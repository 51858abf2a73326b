//! The operations of every method, in the host's memory.

use std::ops::Range;

use crate::collective::Collective;
use crate::compressor::failure::Failure;
use crate::compressor::frame::Writer;
use crate::compressor::group::Group;
use crate::compressor::host::Host;
use crate::compressor::planes::Sides;
use crate::compressor::stamp::Stamp;
use crate::compressor::witness::Witness;
use crate::device::Device;
use crate::error::{Error, RecipeError};
use crate::plan::{DecodeMode, Limits};
use crate::seed::Seed;
use crate::sparse::SparsePayload;
use crate::view::PayloadView;

/// The operations that every method has, however its messages reach the other ranks.
pub(crate) trait Method {
    /// Makes plans again if they depend on a device's limits and those are others, and refuses codes that do not fit
    /// them, before other ranks wait for this one.
    fn fit(&mut self, _: &Group, _: &Limits) -> Result<(), Error> {
        Ok(())
    }

    /// Takes the settings of a step of a warm-up, if it has some.
    fn warm_up(&mut self, _: &Group, _: u64) -> Result<(), Error> {
        Ok(())
    }

    /// The bytes of each payload of a rank before an entropy code, if they do not depend on the gradient.
    fn payload_bytes(&self, group: &Group) -> Result<Option<Vec<u64>>, Error>;
}

/// A method whose payloads every rank gathers, unless the recipe names another [`Algorithm`](crate::Algorithm).
pub(crate) trait Gathered: Method {
    /// The number of payloads of each rank.
    fn payloads(&self) -> usize;

    /// Writes this rank's payloads, and into the residual the values that they leave out.
    fn encode(&self, group: &Group, values: Values<'_, '_>, message: &mut Writer<'_>) -> Result<(), Error>;

    /// Checks the payloads of all ranks.
    fn receive<'m>(&self, group: &Group, ranks: &[&[&'m [u8]]]) -> Result<Received<'m>, Error>;

    /// Decodes payloads of ranks over or onto an output with an element for each of the gradient.
    fn decode(
        &self,
        group: &Group,
        device: &Device,
        received: &Received<'_>,
        onto: Target<&mut [f32]>,
    ) -> Result<(), Error>;

    /// Decodes a rank's payloads on the CPU into `values`, and returns the ranges of `values` that were sent.
    fn values(
        &self,
        group: &Group,
        received: &Received<'_>,
        rank: usize,
        values: &mut Vec<f32>,
    ) -> Result<Vec<Range<usize>>, Error>;

    /// The elements of the gradient that rank `rank` has sent, and whose momentum it clears.
    fn masked(&self, group: &Group, received: &Received<'_>, rank: usize) -> Result<Vec<u32>, Error>;

    /// A step by the recipe's own algorithm, with all its messages; the bytes that were sent. The gradient becomes the
    /// mean.
    fn exchange(
        &mut self,
        group: &Group,
        host: &mut Host<'_>,
        stamp: Stamp,
        ranks: &mut Witness<'_>,
        weight: f32,
    ) -> Result<u64, Failure>;
}

/// A method with messages of its own, one after another, which the ranks sum or gather.
pub(crate) trait Summed: Method {
    /// Refuses non-finite values, under `finite`, before the first message: the other ranks would wait.
    fn refuse(&mut self, group: &Group, input: &[f32]) -> Result<(), Error>;

    /// A step with all its messages; bytes that were sent. The gradient becomes the mean. The seed of `stamp` is that
    /// of the group's draws.
    fn exchange(
        &mut self,
        group: &Group,
        host: &mut Host<'_>,
        stamp: Stamp,
        ranks: &mut dyn Collective,
        weight: f32,
    ) -> Result<u64, Failure>;
}

/// The values to encode in a step.
pub(crate) struct Values<'v, 's> {
    pub(crate) device: &'v Device,
    /// The gradient, the momentum, or the state buffer in which they are formed.
    pub(crate) input: &'v [f32],
    /// The residual, if the codec has it.
    pub(crate) residual: &'v mut Sides<'s>,
    /// The seed of the step.
    pub(crate) seed: Seed,
}

/// An output of payloads: the memory, the ranks whose payloads it gets, and how.
pub(crate) struct Target<O> {
    pub(crate) output: O,
    pub(crate) ranks: Range<usize>,
    /// Not [`DecodeMode::Write`].
    pub(crate) mode: DecodeMode,
    /// The seed of the step.
    pub(crate) seed: Seed,
}

/// The checked payloads of all ranks, of one group.
#[derive(Debug)]
pub(crate) enum Received<'m> {
    /// Of each rank, its payloads.
    Payloads(Vec<Vec<PayloadView<'m>>>),
    /// Of each rank, its selection.
    Entries(Vec<SparsePayload>),
}

impl<'m> Received<'m> {
    /// The number of ranks.
    pub(crate) fn ranks(&self) -> usize {
        match self {
            Self::Payloads(all) => all.len(),
            Self::Entries(all) => all.len(),
        }
    }

    /// Of each rank, its payloads.
    pub(crate) fn payloads(&self) -> Result<&[Vec<PayloadView<'m>>], Error> {
        if let Self::Payloads(all) = self { Ok(all) } else { Err(undecodable()) }
    }

    /// Of each rank, its selection.
    pub(crate) fn entries(&self) -> Result<&[SparsePayload], Error> {
        if let Self::Entries(all) = self { Ok(all) } else { Err(undecodable()) }
    }
}

/// The error of payloads or of an algorithm that a method does not have. No recipe leads there.
pub(crate) fn undecodable() -> Error {
    let what = "the recipe's method has no such payloads or algorithm";
    RecipeError::Stages { what, remedy: "report this: it is a fault of gradwire" }.into()
}
