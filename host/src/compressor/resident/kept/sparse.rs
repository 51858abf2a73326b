//! Tensors of which entries are selected.

use super::super::steps::{Selected, SparseSteps};
use super::place::{Onto, Packed, Place, pack, taken, unpack};
use crate::codec::topk::TopK;
use crate::compressor::frame::Writer;
use crate::compressor::part::{Part, gaps};
use crate::compressor::resident::memory::Queue;
use crate::device::Device;
use crate::embed::{DeviceMemory, Measures, Put, Scan, ScanBuffers, Scatter, ScatterBuffers, Select, SelectBuffers};
use crate::error::Error;
use crate::plan::{DecodeMode, Role};
use crate::seed::Seed;
use crate::sparse::Entries as Kept;
use crate::sparse::SparsePayload;
use crate::words::from_little_endian;

pub(in crate::compressor::resident) struct Sparse<D: DeviceMemory> {
    steps: SparseSteps,
    /// Elements that are selected from.
    elements: u64,
    workspace: D::Room,
    entries: Entries<D>,
    packed: Option<Packed<D>>,
    /// Room for statistics, where a search starts from some.
    statistics: Option<D::Room>,
}

/// Room for indices and values.
struct Entries<D: DeviceMemory> {
    count: u64,
    indices: D::Room,
    values: D::Room,
}

impl<D: DeviceMemory> Entries<D> {
    fn new(queue: &Queue<'_, D>, count: u64) -> Result<Self, Error> {
        Ok(Self { count, indices: queue.room(4 * count)?, values: queue.room(4 * count)? })
    }

    /// Takes up entries; zeros if there are no values.
    fn fill(&mut self, queue: &Queue<'_, D>, indices: &[u32], values: Option<&[f32]>) -> Result<(), Error> {
        let count = indices.len() as u64;
        if count > self.count {
            *self = Self::new(queue, count)?;
        }
        queue.write(&queue.all(&self.indices), 0, bytemuck::cast_slice(indices))?;
        match values {
            Some(values) => queue.write(&queue.all(&self.values), 0, bytemuck::cast_slice(values)),
            None => queue.clear(&queue.all(&self.values), 0, 4 * count),
        }
    }

    fn onto(&self, queue: &Queue<'_, D>, output: &D::Slice) -> ScatterBuffers<D::Slice> {
        let [indices, values] = [&self.indices, &self.values].map(|room| queue.all(room));
        ScatterBuffers { indices, values, output: output.clone() }
    }
}

impl<D: DeviceMemory> Sparse<D> {
    pub(super) fn new(
        queue: &Queue<'_, D>,
        codec: &TopK,
        packed: bool,
        elements: usize,
        feedback: bool,
    ) -> Result<Self, Error> {
        let steps = SparseSteps::new(codec, elements, feedback, &queue.memory().limits())?;
        let selection = steps.selection();
        let workspace = queue.room(selection.workspace_bytes())?;
        queue.write(&queue.all(&workspace), 0, &selection.table())?;
        let entries = Entries::new(queue, selection.sizes().of(Role::Indices) / 4)?;
        let packed = if packed { Some(Packed::new(queue, elements as u64, feedback)?) } else { None };
        let statistics = steps.statistics().iter().map(|plan| plan.scratch_bytes() as u64).max();
        let statistics = statistics.map(|bytes| queue.room(bytes)).transpose()?;
        Ok(Self { steps, elements: elements as u64, workspace, entries, packed, statistics })
    }

    pub(in crate::compressor::resident) fn encode(
        &mut self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        part: &Part,
        seed: Seed,
        message: &mut Writer<'_>,
    ) -> Result<(), Error> {
        let (gradient, residual) = self.taken(queue, place, part)?;
        let selected = self.select(queue, place, gradient, residual.clone(), part.seed_of(seed));
        let selected = selected.map_err(|error| if self.packed.is_some() { part.unpacked(error) } else { error })?;
        let payload = selected.payload;
        if let (Some(residual), Some(rests)) = (&residual, &selected.rests) {
            self.put(queue, payload.indices(), Some(rests), residual, self.elements)?;
        }
        self.leave(queue, place, part, residual)?;
        message.append(payload.as_bytes())?;
        Ok(())
    }

    /// What is selected from, packed if it has to be: gradient and residual.
    pub(in crate::compressor::resident) fn taken(
        &self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        part: &Part,
    ) -> Result<(D::Slice, Option<D::Slice>), Error> {
        taken(queue, self.packed.as_ref(), place, part)
    }

    /// Puts a residual that was selected from where it stays.
    pub(in crate::compressor::resident) fn leave(
        &self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        part: &Part,
        residual: Option<D::Slice>,
    ) -> Result<(), Error> {
        let Some(residual) = residual else { return Ok(()) };
        match &place.residual {
            Some(plane) if self.packed.is_some() => unpack(queue, part.ranges(), &residual, plane),
            // What lies between the tensors goes whole, by another way.
            _ => gaps(part.ranges(), self.elements as usize)
                .try_for_each(|gap| queue.clear(&residual, 4 * gap.start as u64, 4 * gap.len() as u64)),
        }
    }

    /// Queues the selection of entries.
    pub(in crate::compressor::resident) fn queue_select(
        &self,
        queue: &Queue<'_, D>,
        gradient: D::Slice,
        residual: Option<D::Slice>,
        [indices, values]: [D::Slice; 2],
    ) -> Result<(), Error> {
        let workspace = queue.all(&self.workspace);
        let buffers = SelectBuffers { gradient, residual, indices, values, workspace };
        queue.run(Select(self.steps.selection()), buffers)
    }

    fn select(
        &self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        gradient: D::Slice,
        residual: Option<D::Slice>,
        seed: Seed,
    ) -> Result<Selected, Error> {
        let (steps, workspace) = (&self.steps, queue.all(&self.workspace));
        let selection = steps.selection();
        let scan = ScanBuffers { gradient: gradient.clone(), residual: residual.clone(), workspace: workspace.clone() };
        queue.run(Scan(selection), scan)?;
        selection.check(&queue.bytes(&workspace, selection.status_bytes())?)?;
        let entries = match &self.statistics {
            Some(statistics) => self.searched(queue, &queue.all(statistics), &gradient, residual.as_ref())?,
            None => {
                let lists = [&self.entries.indices, &self.entries.values].map(|room| queue.all(room));
                self.queue_select(queue, gradient.clone(), residual.clone(), lists)?;
                self.check_end(queue)?;
                self.selected(queue)?
            }
        };
        let all = || {
            let mut all = vec![0.0f32; self.elements as usize];
            queue.read(residual.as_ref().unwrap_or(&gradient), 0, &mut all).map(|()| all)
        };
        steps.seal(place.device, entries, seed, all)
    }

    /// How many entries the last selection has found.
    fn count(&self, queue: &Queue<'_, D>) -> Result<u64, Error> {
        Ok(self.steps.count(&queue.bytes(&queue.all(&self.workspace), self.steps.count_bytes())?))
    }

    /// The entries that the last selection has left.
    fn selected(&self, queue: &Queue<'_, D>) -> Result<Kept, Error> {
        let count = self.count(queue)? as usize;
        let (mut indices, mut bits) = (vec![0u32; count], vec![0u32; count]);
        queue.read(&queue.all(&self.entries.indices), 0, &mut indices)?;
        queue.read(&queue.all(&self.entries.values), 0, &mut bits)?;
        Ok(Kept { indices, bits })
    }

    /// The entries that a search finds. With a residual, it holds the sums afterwards.
    fn searched(
        &self,
        queue: &Queue<'_, D>,
        statistics: &D::Slice,
        gradient: &D::Slice,
        residual: Option<&D::Slice>,
    ) -> Result<Kept, Error> {
        let (steps, workspace) = (&self.steps, queue.all(&self.workspace));
        let mut partials = Vec::new();
        for plan in steps.statistics() {
            let (gradient, residual, workspace) = (gradient.clone(), residual.cloned(), statistics.clone());
            queue.run(Measures(std::slice::from_ref(plan)), ScanBuffers { gradient, residual, workspace })?;
            partials.push(from_little_endian(&queue.bytes(statistics, plan.statistic_bytes())?));
        }
        let Some(mut search) = steps.search(&partials) else { return Ok(Kept::default()) };
        let (mut gradient, mut residual) = (gradient.clone(), residual.cloned());
        while let Some(threshold) = search.next() {
            let selection = steps.above(threshold, residual.is_some(), search.counts())?;
            queue.write(&workspace, 0, &selection.table())?;
            let [indices, values] = [&self.entries.indices, &self.entries.values].map(|room| queue.all(room));
            let buffers = SelectBuffers {
                gradient: gradient.clone(),
                residual: residual.clone(),
                indices,
                values,
                workspace: workspace.clone(),
            };
            queue.run(Select(&selection), buffers)?;
            match search.counts() {
                true => search.count(self.count(queue)?),
                false => search.take(self.selected(queue)?),
            }
            // The sums are there now, and are what is selected from.
            gradient = residual.take().unwrap_or(gradient);
        }
        search.end()
    }

    /// Asks whether the last selection came to its end.
    pub(in crate::compressor::resident) fn check_end(&self, queue: &Queue<'_, D>) -> Result<(), Error> {
        let selection = self.steps.selection();
        selection.check_end(&queue.bytes(&queue.all(&self.workspace), selection.end_bytes())?)
    }

    /// Writes values over elements, zeros if there are none.
    pub(in crate::compressor::resident) fn put(
        &mut self,
        queue: &Queue<'_, D>,
        indices: &[u32],
        values: Option<&[f32]>,
        output: &D::Slice,
        elements: u64,
    ) -> Result<(), Error> {
        self.entries.fill(queue, indices, values)?;
        queue.run(Put { entries: indices.len() as u64, elements }, self.entries.onto(queue, output))
    }

    pub(super) fn decode(
        &mut self,
        queue: &Queue<'_, D>,
        device: &Device,
        part: &Part,
        payloads: &[SparsePayload],
        onto: Onto<'_, D>,
    ) -> Result<(), Error> {
        let (payloads, sum) = (&payloads[onto.ranks], matches!(onto.mode, DecodeMode::Sum(_)));
        let (DecodeMode::Add(weight) | DecodeMode::Sum(weight)) = onto.mode else { return Ok(()) };
        let output = self.packed.as_ref().map_or_else(|| onto.output.clone(), |packed| queue.all(&packed.input));
        // What may be refused comes before the first write.
        let values = payloads.iter().map(|payload| device.sparse_values(payload));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        let most = values.iter().map(Vec::len).max().unwrap_or(0) as u64;
        if most > self.entries.count {
            self.entries = Entries::new(queue, most)?;
        }
        match &self.packed {
            _ if sum => queue.clear(&output, 0, 4 * self.elements)?,
            Some(_) => pack(queue, part.ranges(), onto.output, &output)?,
            None => {}
        }
        for (payload, values) in payloads.iter().zip(&values) {
            self.entries.fill(queue, payload.indices(), Some(values))?;
            let (entries, elements) = (values.len() as u64, self.elements);
            let work = Scatter { entries, elements, weight: Some(weight) };
            queue.run(work, self.entries.onto(queue, &output))?;
        }
        if self.packed.is_some() { unpack(queue, part.ranges(), &output, onto.output) } else { Ok(()) }
    }
}

/// What is queued without a look at what the entries are.
#[cfg(feature = "cuda")]
impl<D: DeviceMemory> Sparse<D> {
    /// Of what passes are made.
    pub(in crate::compressor::resident) fn steps(&self) -> &SparseSteps {
        &self.steps
    }

    /// Elements that are selected from.
    pub(in crate::compressor::resident) fn elements(&self) -> u64 {
        self.elements
    }

    /// Queues zeros over what a plane holds of entries, as many as `zeros` has room for.
    pub(in crate::compressor::resident) fn queue_mask(
        &self,
        queue: &Queue<'_, D>,
        part: &Part,
        [indices, zeros]: [D::Slice; 2],
        plane: &D::Slice,
    ) -> Result<(), Error> {
        let packed = self.packed.as_ref().map(|packed| queue.all(&packed.input));
        if let Some(packed) = &packed {
            pack(queue, part.ranges(), plane, packed)?;
        }
        let output = packed.clone().unwrap_or_else(|| plane.clone());
        let put = Put { entries: self.steps.selection().entries(), elements: self.elements };
        queue.run(put, ScatterBuffers { indices, values: zeros, output })?;
        match packed {
            Some(packed) => unpack(queue, part.ranges(), &packed, plane),
            None => Ok(()),
        }
    }

    /// Queues the sum of the ranks' entries, indices and values of each, times the weight, over the gradient.
    pub(in crate::compressor::resident) fn queue_sum(
        &self,
        queue: &Queue<'_, D>,
        part: &Part,
        ranks: impl Iterator<Item = [D::Slice; 2]>,
        weight: f32,
        gradient: &D::Slice,
    ) -> Result<(), Error> {
        let output = self.packed.as_ref().map_or_else(|| gradient.clone(), |packed| queue.all(&packed.input));
        queue.clear(&output, 0, 4 * self.elements)?;
        let (entries, elements) = (self.steps.selection().entries(), self.elements);
        for [indices, values] in ranks {
            let work = Scatter { entries, elements, weight: Some(weight) };
            queue.run(work, ScatterBuffers { indices, values, output: output.clone() })?;
        }
        if self.packed.is_some() { unpack(queue, part.ranges(), &output, gradient) } else { Ok(()) }
    }
}
