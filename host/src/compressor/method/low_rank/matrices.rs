//! The matrices of a group's tensors, and the state of their factors.

use super::factors::Factors;
use crate::codec::powersgd::{Matrix, PowerSgd};
use crate::compressor::group::Group;
use crate::compressor::policy::Tensor;
use crate::error::Error;
use crate::low_rank::LowRankState;
use crate::plan::Limits;
use crate::seed::Seed;
use crate::words::copied;

/// The tensors go as PowerSGD's factors.
#[derive(Clone, Debug)]
pub(crate) struct LowRank {
    pub(crate) state: LowRankState,
    /// Whether the state is that of the group's tensors, concatenated, and not of the whole model.
    pub(crate) packed: bool,
    /// How factors are quantized, if they are.
    pub(super) through: Option<Box<Factors>>,
}

impl LowRank {
    /// `alone` is whether all other tensors go uncompressed: then they go along as vectors.
    pub(crate) fn new(group: &Group, codec: &PowerSgd, model: &[Tensor], alone: bool, run: u64) -> Result<Self, Error> {
        let matrices = matrices(model, &group.tensors, alone);
        let state = codec.state(&matrices, Seed::new(run).tensor(group.first))?;
        let number = |index: usize| if alone { index } else { group.tensors[index] };
        let through = Factors::new(&group.recipe, &state.table, number, &Limits::NONE)?;
        Ok(Self { state, packed: !alone, through: through.map(Box::new) })
    }

    /// Whether its factors go through a quantizer, and are gathered one after another.
    pub(crate) fn gathers(&self) -> bool {
        self.through.as_ref().is_some_and(|through| !through.tensors.is_empty())
    }

    /// Writes its residual into a buffer with an element for each of the gradient.
    pub(crate) fn write_residual(&self, group: &Group, to: &mut [f32]) -> Result<(), Error> {
        let residual = self.state.residual()?;
        if self.packed {
            group.unpack(&residual, to);
        } else {
            to.copy_from_slice(&residual);
        }
        Ok(())
    }

    /// The elements of a gradient that its state has.
    pub(crate) fn elements_of(&self, group: &Group, gradient: &[f32]) -> Result<Vec<f32>, Error> {
        if self.packed { group.pack(gradient) } else { copied(gradient, "a residual of factors") }
    }

    /// The number of one of the model's tensors in its state.
    pub(crate) fn number(&self, group: &Group, tensor: usize) -> Option<usize> {
        let place = group.tensors.binary_search(&tensor).ok()?;
        Some(if self.packed { place } else { tensor })
    }

    /// The matrices of its state.
    pub(crate) fn matrices(&self, group: &Group, model: &[Tensor]) -> Vec<Matrix> {
        matrices(model, &group.tensors, !self.packed)
    }

    /// The bytes of each payload of each factor of a step, of factors that go through a quantizer.
    pub(crate) fn factor_bytes(&self) -> Vec<Vec<u64>> {
        let Some(through) = self.through.as_ref().filter(|through| !through.tensors.is_empty()) else {
            return Vec::new();
        };
        let plans = |round| through.of(self.state.side(round)).tensors().iter();
        let payloads = |round| plans(round).map(|plan| plan.payload_bytes() as u64).collect();
        (1..=self.state.rounds()).map(payloads).collect()
    }
}

/// The matrices of a group. Alone, it takes the model's other tensors along as vectors, uncompressed.
pub(crate) fn matrices(model: &[Tensor], tensors: &[usize], alone: bool) -> Vec<Matrix> {
    let matrix = |(index, tensor): (usize, &Tensor)| match tensors.binary_search(&index) {
        Ok(_) => Some(Matrix::of(&tensor.shape)),
        Err(_) => alone.then(|| Matrix::vector(tensor.elements())),
    };
    model.iter().enumerate().filter_map(matrix).collect()
}
