//! Tensors of which every element is quantized.

use super::place::{Bodies, Onto, Place};
use crate::compressor::frame::Writer;
use crate::compressor::part::{Method, Part};
use crate::compressor::resident::memory::Queue;
use crate::device::Device;
use crate::embed::{DecodeBuffers, DecodeModel, DeviceMemory, EncodeBuffers, EncodeModel, WithTable};
use crate::error::Error;
use crate::model::ModelPlan;
use crate::plan::{DecodeMode, refuse_not_finite};
use crate::seed::Seed;
use crate::view::PayloadView;
use crate::wire::{Entropy, Payload};

pub(in crate::compressor::resident) struct Dense<D: DeviceMemory> {
    table: D::Room,
    body: D::Room,
    workspace: Option<D::Room>,
    bodies: Bodies<D>,
}

impl<D: DeviceMemory> Dense<D> {
    pub(super) fn new(queue: &Queue<'_, D>, plan: &ModelPlan) -> Result<Self, Error> {
        let workspace = plan.workspace_bytes();
        Ok(Self {
            table: queue.holding(&plan.table())?,
            body: queue.room(plan.body_bytes())?,
            workspace: if workspace > 0 { Some(queue.room(workspace)?) } else { None },
            bodies: Bodies::new(),
        })
    }

    /// Queues the encode.
    pub(in crate::compressor::resident) fn queue_encode(
        &self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        part: &Part,
        seed: Seed,
    ) -> Result<(), Error> {
        let Method::Dense { plan, .. } = &part.method else { return Ok(()) };
        self.encode_of(queue, plan, (place.input.clone(), place.residual.clone()), part.seed_of(seed))
    }

    /// Queues the encode of a gradient, with a residual or without.
    fn encode_of(
        &self,
        queue: &Queue<'_, D>,
        plan: &ModelPlan,
        (gradient, residual): (D::Slice, Option<D::Slice>),
        seed: Seed,
    ) -> Result<(), Error> {
        let buffers = EncodeBuffers {
            gradient,
            residual,
            body: queue.all(&self.body),
            workspace: self.workspace.as_ref().map(|room| queue.all(room)),
        };
        queue.run(EncodeModel { plan, seed }, WithTable { table: queue.all(&self.table), buffers })
    }

    /// Queues the decode of `payloads` contiguous bodies.
    pub(in crate::compressor::resident) fn queue_decode(
        &self,
        queue: &Queue<'_, D>,
        plan: &ModelPlan,
        mode: DecodeMode,
        payloads: u32,
        buffers: DecodeBuffers<D::Slice>,
    ) -> Result<(), Error> {
        let work = DecodeModel { plan, mode, payloads };
        queue.run(work, WithTable { table: queue.all(&self.table), buffers })
    }

    /// Where an encode leaves its body.
    #[cfg(feature = "cuda")]
    pub(in crate::compressor::resident) fn body(&self) -> &D::Room {
        &self.body
    }

    pub(in crate::compressor::resident) fn encode(
        &self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        part: &Part,
        seed: Seed,
        message: &mut Writer<'_>,
    ) -> Result<(), Error> {
        let Method::Dense { plan, .. } = &part.method else { return Ok(()) };
        self.queue_encode(queue, place, part, seed)?;
        for payload in self.encoded(queue, plan)? {
            message.append(place.device.packed(payload, part.recipe.entropy)?.as_bytes())?;
        }
        Ok(())
    }

    /// The payloads of values that lie in the device's memory, of one tensor after another.
    pub(super) fn payloads(
        &self,
        queue: &Queue<'_, D>,
        plan: &ModelPlan,
        values: D::Slice,
        seed: Seed,
    ) -> Result<Vec<Payload>, Error> {
        self.encode_of(queue, plan, (values, None), seed)?;
        self.encoded(queue, plan)
    }

    /// The payloads that an encode has left.
    fn encoded(&self, queue: &Queue<'_, D>, plan: &ModelPlan) -> Result<Vec<Payload>, Error> {
        if let Some(workspace) = self.workspace.as_ref().filter(|_| plan.is_guarded() && plan.launches() > 0) {
            let mut status = [0u32];
            queue.read(&queue.all(workspace), 0, &mut status)?;
            refuse_not_finite(status[0])?;
        }
        let ([scalars, codes], from, body) = (plan.part_bytes(), plan.codes_offset(), queue.all(&self.body));
        let (scalars, codes) = (queue.bytes(&body, 0..scalars)?, queue.bytes(&body, from..from + codes)?);
        Ok(plan.seal_parts(&scalars, &codes))
    }

    pub(in crate::compressor::resident) fn decode(
        &mut self,
        queue: &Queue<'_, D>,
        device: &Device,
        part: &Part,
        ranks: &[Vec<PayloadView<'_>>],
        onto: Onto<'_, D>,
    ) -> Result<(), Error> {
        let Method::Dense { plan, .. } = &part.method else { return Ok(()) };
        let ranks = &ranks[onto.ranks];
        self.decode_of(queue, (device, part.recipe.entropy), plan, ranks, (onto.mode, onto.output.clone()))
    }

    /// Decodes payloads, which are packed if there is an entropy code, over or onto an output.
    pub(super) fn decode_of(
        &mut self,
        queue: &Queue<'_, D>,
        (device, entropy): (&Device, Entropy),
        plan: &ModelPlan,
        ranks: &[Vec<PayloadView<'_>>],
        (mode, output): (DecodeMode, D::Slice),
    ) -> Result<(), Error> {
        let (count, each) = (ranks.len() as u32, plan.body_bytes());
        let bodies = self.bodies.room(queue, count, each)?;
        let mut body = vec![0; each as usize];
        for (rank, payloads) in (0u64..).zip(ranks) {
            if entropy != Entropy::None {
                let unpacked = payloads.iter().map(|payload| device.unpack(payload));
                plan.write_body(&unpacked.collect::<Result<Vec<_>, _>>()?, &mut body)?;
            } else {
                plan.write_body(payloads, &mut body)?;
            }
            queue.write(&bodies, rank * each, &body)?;
        }
        self.queue_decode(queue, plan, mode, count, DecodeBuffers { bodies, output })
    }
}
