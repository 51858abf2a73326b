//! Entries are selected, in a device's memory.

use super::selection::{Sparse, gaps};
use super::steps::{Selected, SparseSteps};
use crate::compressor::frame::Writer;
use crate::compressor::group::Group;
use crate::compressor::method::contract::{Received, Target, undecodable};
use crate::compressor::method::on_device::GatheredOn;
use crate::compressor::queue::{Packed, Place, Queue, pack, taken, unpack};
use crate::device::Device;
use crate::embed::{DeviceMemory, Measures, Put, Scan, ScanBuffers, Scatter, ScatterBuffers, Select, SelectBuffers};
use crate::error::Error;
use crate::plan::{DecodeMode, Role};
use crate::seed::Seed;
use crate::sparse::Entries as Kept;
use crate::words::from_little_endian;

/// Entries are selected, in a device's memory.
pub(crate) struct Resident<D: DeviceMemory> {
    pub(super) steps: SparseSteps,
    /// Elements that are selected from.
    pub(super) elements: u64,
    workspace: D::Room,
    entries: Entries<D>,
    pub(super) packed: Option<Packed<D>>,
    /// Memory for statistics, if a search starts from some.
    statistics: Option<D::Room>,
    /// Memory for entries that are queued, from [`Streamed::reserve`](crate::compressor::method::stream::Streamed).
    #[cfg(feature = "cuda")]
    pub(super) lists: Option<Lists<D>>,
}

/// Memory for entries: of each rank, its indices, and then as many values.
#[cfg(feature = "cuda")]
pub(super) struct Lists<D: DeviceMemory> {
    pub(super) mine: D::Room,
    pub(super) all: D::Room,
    /// Entries of a rank.
    pub(super) count: u64,
    /// As many zeros, if sent momentum is masked.
    pub(super) zeros: Option<D::Room>,
}

/// Memory for indices and values.
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

impl<D: DeviceMemory> Resident<D> {
    pub(crate) fn of(queue: &Queue<'_, D>, sparse: &Sparse, group: &Group) -> Result<Self, Error> {
        let (Sparse { codec, packed, elements }, feedback) = (sparse, group.recipe.memory().adds_residual());
        let (packed, elements) = (*packed, *elements);
        let steps = SparseSteps::new(codec, elements, feedback, &queue.memory().limits())?;
        let selection = steps.selection();
        let workspace = queue.room(selection.workspace_bytes())?;
        queue.write(&queue.all(&workspace), 0, &selection.table())?;
        let entries = Entries::new(queue, selection.sizes().of(Role::Indices) / 4)?;
        let packed = if packed { Some(Packed::new(queue, elements as u64, feedback)?) } else { None };
        let statistics = steps.statistics().iter().map(|plan| plan.scratch_bytes() as u64).max();
        let statistics = statistics.map(|bytes| queue.room(bytes)).transpose()?;
        Ok(Self {
            steps,
            elements: elements as u64,
            workspace,
            entries,
            packed,
            statistics,
            #[cfg(feature = "cuda")]
            lists: None,
        })
    }

    /// The gradient and residual to select from, packed if they have to be.
    pub(super) fn taken(
        &self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        group: &Group,
    ) -> Result<(D::Slice, Option<D::Slice>), Error> {
        taken(queue, self.packed.as_ref(), place, group)
    }

    /// Copies the residual of a selection into the state buffer, if it is elsewhere; else clears its elements between
    /// the group's tensors.
    pub(super) fn leave(
        &self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        group: &Group,
        residual: Option<D::Slice>,
    ) -> Result<(), Error> {
        let Some(residual) = residual else { return Ok(()) };
        match &place.residual {
            Some(plane) if self.packed.is_some() => unpack(queue, group.ranges(), &residual, plane),
            // Elements between the tensors go uncompressed.
            _ => gaps(group.ranges(), self.elements as usize)
                .try_for_each(|gap| queue.clear(&residual, 4 * gap.start as u64, 4 * gap.len() as u64)),
        }
    }

    /// Queues the selection of entries.
    pub(super) fn queue_select(
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
            // The residual's memory holds the sums now, and the next selection is from them.
            gradient = residual.take().unwrap_or(gradient);
        }
        search.end()
    }

    /// Refuses a selection that did not come to its end.
    pub(crate) fn check_end(&self, queue: &Queue<'_, D>) -> Result<(), Error> {
        let selection = self.steps.selection();
        selection.check_end(&queue.bytes(&queue.all(&self.workspace), selection.end_bytes())?)
    }

    /// Writes values over elements, zeros if there are none.
    fn put(
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
}

impl<D: DeviceMemory> GatheredOn<D> for Resident<D> {
    fn encode(
        &mut self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        group: &Group,
        seed: Seed,
        message: &mut Writer<'_>,
    ) -> Result<(), Error> {
        let (gradient, residual) = self.taken(queue, place, group)?;
        let selected = self.select(queue, place, gradient, residual.clone(), group.seed_of(seed));
        let selected = selected.map_err(|error| if self.packed.is_some() { group.unpacked(error) } else { error })?;
        let payload = selected.payload;
        if let (Some(residual), Some(rests)) = (&residual, &selected.rests) {
            self.put(queue, payload.indices(), Some(rests), residual, self.elements)?;
        }
        self.leave(queue, place, group, residual)?;
        message.append(payload.as_bytes())
    }

    fn decode(
        &mut self,
        queue: &Queue<'_, D>,
        device: &Device,
        group: &Group,
        received: &Received<'_>,
        onto: Target<&D::Slice>,
    ) -> Result<(), Error> {
        let (payloads, sum) = (&received.entries()?[onto.ranks], matches!(onto.mode, DecodeMode::Sum(_)));
        let (DecodeMode::Add(weight) | DecodeMode::Sum(weight)) = onto.mode else { return Err(undecodable()) };
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
            Some(_) => pack(queue, group.ranges(), onto.output, &output)?,
            None => {}
        }
        for (payload, values) in payloads.iter().zip(&values) {
            self.entries.fill(queue, payload.indices(), Some(values))?;
            let (entries, elements) = (values.len() as u64, self.elements);
            let work = Scatter { entries, elements, weight: Some(weight) };
            queue.run(work, self.entries.onto(queue, &output))?;
        }
        if self.packed.is_some() { unpack(queue, group.ranges(), &output, onto.output) } else { Ok(()) }
    }

    fn mask(&mut self, queue: &Queue<'_, D>, place: &Place<'_, D>, sent: &[u32], elements: u64) -> Result<(), Error> {
        place.momentum.as_ref().map_or(Ok(()), |momentum| self.put(queue, sent, None, momentum, elements))
    }
}
