//! A group of any method, in a device's memory.

use super::any::AnyMethod;
use super::on_device::{GatheredOn, SummedOn};
use super::{dense, low_rank, random, rotated, sparse};
use crate::compressor::group::Group;
use crate::compressor::policy::Tensor;
#[cfg(feature = "cuda")]
use crate::compressor::queue::Plane;
use crate::compressor::queue::Queue;
use crate::embed::DeviceMemory;
use crate::error::Error;

/// A method, with its memory on a device.
pub(crate) enum AnyResident<D: DeviceMemory> {
    Dense(Box<dense::Resident<D>>),
    Sparse(Box<sparse::Resident<D>>),
    Rotated(Box<rotated::Resident<D>>),
    LowRank(Box<low_rank::Resident<D>>),
    Random(Box<random::Resident<D>>),
}

/// How the messages of a method reach the other ranks.
pub(crate) enum WayOn<'m, D: DeviceMemory> {
    /// Its payloads are gathered.
    Gathered(&'m mut dyn GatheredOn<D>),
    /// Its messages are summed.
    Summed(&'m mut dyn SummedOn<D>),
}

/// The model that a method's tensors belong to.
#[derive(Clone, Copy)]
pub(crate) struct Model<'m> {
    pub(crate) tensors: &'m [Tensor],
    /// Elements of all tensors.
    pub(crate) elements: usize,
    /// The number of the training run.
    pub(crate) run: u64,
}

impl<D: DeviceMemory> AnyResident<D> {
    /// The same method, with its memory on a device.
    pub(crate) fn of(
        queue: &Queue<'_, D>,
        method: &AnyMethod,
        group: &Group,
        Model { tensors, elements, run }: Model<'_>,
    ) -> Result<Self, Error> {
        let packed = group.elements() != elements;
        Ok(match method {
            AnyMethod::Dense(method) => Self::Dense(Box::new(dense::Resident::of(queue, method)?)),
            AnyMethod::Sparse(method) => Self::Sparse(Box::new(sparse::Resident::of(queue, method, group)?)),
            AnyMethod::Rotated(method) => Self::Rotated(Box::new(rotated::Resident::of(queue, method, group, packed)?)),
            AnyMethod::LowRank(method) => {
                Self::LowRank(Box::new(low_rank::Resident::of(queue, method, group, tensors, run)?))
            }
            AnyMethod::Random(method) => Self::Random(Box::new(random::Resident::of(queue, method, group, packed)?)),
        })
    }

    /// How the method's messages reach the other ranks.
    pub(crate) fn way(&mut self) -> WayOn<'_, D> {
        match self {
            Self::Dense(method) => WayOn::Gathered(&mut **method),
            Self::Sparse(method) => WayOn::Gathered(&mut **method),
            Self::Rotated(method) => WayOn::Gathered(&mut **method),
            Self::LowRank(method) => WayOn::Summed(&mut **method),
            Self::Random(method) => WayOn::Summed(&mut **method),
        }
    }

    /// The method, if it sends factors.
    pub(crate) fn low_rank(&self) -> Option<&low_rank::Resident<D>> {
        if let Self::LowRank(method) = self { Some(method) } else { None }
    }

    /// The method's own state buffers, and how many bytes of each a step starts from.
    #[cfg(feature = "cuda")]
    pub(crate) fn planes(&self) -> Vec<(&Plane<D::Room>, u64)> {
        self.low_rank().map_or(Vec::new(), |method| method.planes().to_vec())
    }

    /// Copies the method's own state as it is before a step.
    pub(crate) fn keep(&mut self, queue: &Queue<'_, D>) -> Result<(), Error> {
        if let Self::LowRank(method) = self { method.keep(queue) } else { Ok(()) }
    }

    /// The inverse of [`AnyResident::keep`].
    pub(crate) fn undo(&mut self, queue: &Queue<'_, D>) -> Result<(), Error> {
        if let Self::LowRank(method) = self { method.undo(queue) } else { Ok(()) }
    }
}
