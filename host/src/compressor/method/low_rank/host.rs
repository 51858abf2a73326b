//! The tensors go as PowerSGD's factors, in the host's memory.

use super::matrices::LowRank;
use super::means::{Means, OnHost};
use crate::backend::cpu::Cpu;
use crate::collective::Collective;
use crate::compressor::failure::Failure;
use crate::compressor::group::Group;
use crate::compressor::host::Host;
use crate::compressor::method::contract::{Method, Summed};
use crate::compressor::planes::Held;
use crate::compressor::stamp::Stamp;
use crate::error::Error;
use crate::plan::{Limits, NonFinite};

impl Method for LowRank {
    fn fit(&mut self, group: &Group, to: &Limits) -> Result<(), Error> {
        self.through.as_mut().map_or(Ok(()), |through| through.fit(&group.recipe, to))
    }

    fn payload_bytes(&self, _: &Group) -> Result<Option<Vec<u64>>, Error> {
        Ok(Some(Vec::new()))
    }
}

impl Summed for LowRank {
    fn refuse(&mut self, group: &Group, input: &[f32]) -> Result<(), Error> {
        if group.recipe.non_finite != NonFinite::Error {
            return Ok(());
        }
        let packed = if self.packed { Some(group.pack(input)?) } else { None };
        let found = Cpu::default().refused_by_low_rank(&mut self.state, packed.as_deref().unwrap_or(input))?;
        match found.map(|index| Error::NotFinite { index }) {
            Some(error) => Err(if self.packed { group.unpacked(error) } else { error }),
            None => Ok(()),
        }
    }

    fn exchange(
        &mut self,
        group: &Group,
        host: &mut Host<'_>,
        stamp: Stamp,
        ranks: &mut dyn Collective,
        weight: f32,
    ) -> Result<u64, Failure> {
        let mut packed = if self.packed { Some(group.pack(host.input(group))?) } else { None };
        let momentum = group.recipe.memory().sends_momentum().then(|| host.planes.behind(Held::Momentum));
        let Self { state, through, .. } = self;
        let sides = (1..=state.rounds()).map(|round| state.side(round)).collect();
        let (device, mut own) = (host.device, Vec::new());
        let mut means = Means::new(device, ranks, weight, stamp, through.as_deref(), sides);
        let mean = |factor: &mut [f32]| means.mean(&mut OnHost { device, factor, from: 0, own: &mut own });
        let done = match (&mut packed, momentum) {
            (Some(packed), _) => device.low_rank_step_in_place(state, packed, mean),
            (None, Some(momentum)) => device.low_rank_step(state, momentum, host.gradient, mean),
            (None, None) => device.low_rank_step_in_place(state, host.gradient, mean),
        };
        let bytes = means.end(done)?;
        if !own.is_empty() {
            // The values that this rank has not sent stay with it.
            state.keep_own(&own);
        }
        if let Some(packed) = packed {
            group.unpack(&packed, host.gradient);
        }
        Ok(bytes)
    }
}
