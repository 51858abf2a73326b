//! Entries are selected, on a stream.

use super::device::{Lists, Resident};
use crate::backend::cuda::{Cuda, DeviceSlice};
use crate::compressor::group::Group;
use crate::compressor::method::stream::{Streamed, unfixed};
use crate::compressor::queue::{Place, Queue, Ranks, pack, unpack};
use crate::embed::{Put, Scatter, ScatterBuffers, Select, Work};
use crate::error::Error;
use crate::plan::{Limits, Pass};
use crate::seed::Seed;
use crate::stream_collective::StreamCollective;

impl Streamed for Resident<Cuda> {
    fn reserve(&mut self, queue: &Queue<'_, Cuda>, group: &Group, ranks: u32) -> Result<u64, Error> {
        let Some(count) = self.steps.fixed() else { return Err(unfixed()) };
        let zeros = match group.recipe.memory().masks() {
            true => {
                let zeros = queue.room(4 * count)?;
                queue.clear(&queue.all(&zeros), 0, 4 * count)?;
                Some(zeros)
            }
            false => None,
        };
        let mine = queue.room(8 * count)?;
        let all = queue.room((8 * count).saturating_mul(ranks.into()))?;
        self.lists = Some(Lists { mine, all, count, zeros });
        Ok(8 * count)
    }

    fn passes(&self, limits: &Limits, _: u32) -> Result<Vec<Pass>, Error> {
        let selection = self.steps.selection();
        let (entries, elements) = (selection.entries(), self.elements);
        let mut passes = Select(selection).passes(limits)?.into_owned();
        passes.extend_from_slice(&Scatter { entries, elements, weight: Some(1.0) }.passes(limits)?);
        passes.extend_from_slice(&Put { entries, elements }.passes(limits)?);
        Ok(passes)
    }

    fn step<G: StreamCollective + ?Sized>(
        &mut self,
        queue: &Queue<'_, Cuda>,
        place: &Place<'_, Cuda>,
        group: &Group,
        ranks: &mut Ranks<'_, G>,
        _: Seed,
    ) -> Result<(), Error> {
        let Some(Lists { mine, all, count, zeros }) = &self.lists else { return Err(unfixed()) };
        let lists = |of: &DeviceSlice, at: u64| [0, 4 * count].map(|to| queue.part(of, at + to, 4 * count));
        let (mine, all) = (queue.all(mine), queue.all(all));
        let (gradient, residual) = self.taken(queue, place, group)?;
        self.queue_select(queue, gradient, residual, lists(&mine, 0))?;
        self.leave(queue, place, group, residual)?;
        ranks.gather(&mine, &all, 8 * count)?;
        if let (Some(zeros), Some(momentum)) = (zeros, &place.momentum) {
            let [indices, _] = lists(&mine, 0);
            self.queue_mask(queue, group, [indices, queue.all(zeros)], momentum)?;
        }
        let of_ranks = (0..u64::from(ranks.ranks)).map(|rank| lists(&all, 8 * count * rank));
        self.queue_sum(queue, group, of_ranks, ranks.weight, &place.gradient)
    }
}

impl Resident<Cuda> {
    /// Queues zeros over the entries of a state buffer.
    fn queue_mask(
        &self,
        queue: &Queue<'_, Cuda>,
        group: &Group,
        [indices, zeros]: [DeviceSlice; 2],
        plane: &DeviceSlice,
    ) -> Result<(), Error> {
        let packed = self.packed.as_ref().map(|packed| queue.all(&packed.input));
        if let Some(packed) = &packed {
            pack(queue, group.ranges(), plane, packed)?;
        }
        let output = packed.unwrap_or(*plane);
        let put = Put { entries: self.steps.selection().entries(), elements: self.elements };
        queue.run(put, ScatterBuffers { indices, values: zeros, output })?;
        match packed {
            Some(packed) => unpack(queue, group.ranges(), &packed, plane),
            None => Ok(()),
        }
    }

    /// Queues the sum of the ranks' entries, indices and values of each, times the weight, over the gradient.
    fn queue_sum(
        &self,
        queue: &Queue<'_, Cuda>,
        group: &Group,
        ranks: impl Iterator<Item = [DeviceSlice; 2]>,
        weight: f32,
        gradient: &DeviceSlice,
    ) -> Result<(), Error> {
        let output = self.packed.as_ref().map_or(*gradient, |packed| queue.all(&packed.input));
        queue.clear(&output, 0, 4 * self.elements)?;
        let (entries, elements) = (self.steps.selection().entries(), self.elements);
        for [indices, values] in ranks {
            let work = Scatter { entries, elements, weight: Some(weight) };
            queue.run(work, ScatterBuffers { indices, values, output })?;
        }
        if self.packed.is_some() { unpack(queue, group.ranges(), &output, gradient) } else { Ok(()) }
    }
}
