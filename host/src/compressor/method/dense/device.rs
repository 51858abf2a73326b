//! Every element is quantized, in a device's memory.

use super::quantizer::Dense;
use crate::compressor::frame::Writer;
use crate::compressor::group::Group;
use crate::compressor::method::contract::{Received, Target};
use crate::compressor::method::on_device::GatheredOn;
use crate::compressor::queue::{Bodies, Place, Queue};
use crate::device::Device;
use crate::embed::{DecodeBuffers, DecodeModel, DeviceMemory, EncodeBuffers, EncodeModel, WithTable};
use crate::error::Error;
use crate::model::ModelPlan;
use crate::plan::{DecodeMode, refuse_not_finite};
use crate::seed::Seed;
use crate::view::PayloadView;
use crate::wire::{Entropy, Payload};

/// Every element is quantized, in a device's memory.
pub(crate) struct Resident<D: DeviceMemory> {
    pub(super) plan: ModelPlan,
    table: D::Room,
    /// An encode's body.
    pub(super) body: D::Room,
    workspace: Option<D::Room>,
    pub(super) bodies: Bodies<D>,
}

impl<D: DeviceMemory> Resident<D> {
    pub(crate) fn of(queue: &Queue<'_, D>, dense: &Dense) -> Result<Self, Error> {
        Self::new(queue, &dense.plan)
    }

    pub(crate) fn new(queue: &Queue<'_, D>, plan: &ModelPlan) -> Result<Self, Error> {
        let workspace = plan.workspace_bytes();
        Ok(Self {
            plan: plan.clone(),
            table: queue.holding(&plan.table())?,
            body: queue.room(plan.body_bytes())?,
            workspace: if workspace > 0 { Some(queue.room(workspace)?) } else { None },
            bodies: Bodies::new(),
        })
    }

    /// Queues the encode.
    pub(super) fn queue_encode(
        &self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        group: &Group,
        seed: Seed,
    ) -> Result<(), Error> {
        self.encode_of(queue, (place.input.clone(), place.residual.clone()), group.seed_of(seed))
    }

    /// Queues the encode of a gradient, with a residual or without.
    fn encode_of(
        &self,
        queue: &Queue<'_, D>,
        (gradient, residual): (D::Slice, Option<D::Slice>),
        seed: Seed,
    ) -> Result<(), Error> {
        let buffers = EncodeBuffers {
            gradient,
            residual,
            body: queue.all(&self.body),
            workspace: self.workspace.as_ref().map(|room| queue.all(room)),
        };
        queue.run(EncodeModel { plan: &self.plan, seed }, WithTable { table: queue.all(&self.table), buffers })
    }

    /// Queues the decode of `payloads` contiguous bodies.
    pub(super) fn queue_decode(
        &self,
        queue: &Queue<'_, D>,
        mode: DecodeMode,
        payloads: u32,
        buffers: DecodeBuffers<D::Slice>,
    ) -> Result<(), Error> {
        let work = DecodeModel { plan: &self.plan, mode, payloads };
        queue.run(work, WithTable { table: queue.all(&self.table), buffers })
    }

    /// The payloads of values in the device's memory, of one tensor after another.
    pub(crate) fn payloads(&self, queue: &Queue<'_, D>, values: D::Slice, seed: Seed) -> Result<Vec<Payload>, Error> {
        self.encode_of(queue, (values, None), seed)?;
        self.encoded(queue)
    }

    /// The payloads that an encode has written.
    fn encoded(&self, queue: &Queue<'_, D>) -> Result<Vec<Payload>, Error> {
        let plan = &self.plan;
        if let Some(workspace) = self.workspace.as_ref().filter(|_| plan.is_guarded() && plan.launches() > 0) {
            let mut status = [0u32];
            queue.read(&queue.all(workspace), 0, &mut status)?;
            refuse_not_finite(status[0])?;
        }
        let ([scalars, codes], from, body) = (plan.part_bytes(), plan.codes_offset(), queue.all(&self.body));
        let (scalars, codes) = (queue.bytes(&body, 0..scalars)?, queue.bytes(&body, from..from + codes)?);
        Ok(plan.seal_parts(&scalars, &codes))
    }

    /// Decodes payloads, which are packed if there is an entropy code, over or onto an output.
    pub(crate) fn decode_of(
        &mut self,
        queue: &Queue<'_, D>,
        (device, entropy): (&Device, Entropy),
        ranks: &[Vec<PayloadView<'_>>],
        (mode, output): (DecodeMode, D::Slice),
    ) -> Result<(), Error> {
        let (count, each) = (ranks.len() as u32, self.plan.body_bytes());
        let bodies = self.bodies.room(queue, count, each)?;
        let mut body = vec![0; each as usize];
        for (rank, payloads) in (0u64..).zip(ranks) {
            if entropy != Entropy::None {
                let unpacked = payloads.iter().map(|payload| device.unpack(payload));
                self.plan.write_body(&unpacked.collect::<Result<Vec<_>, _>>()?, &mut body)?;
            } else {
                self.plan.write_body(payloads, &mut body)?;
            }
            queue.write(&bodies, rank * each, &body)?;
        }
        self.queue_decode(queue, mode, count, DecodeBuffers { bodies, output })
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
        self.queue_encode(queue, place, group, seed)?;
        for payload in self.encoded(queue)? {
            message.append(place.device.packed(payload, group.recipe.entropy)?.as_bytes())?;
        }
        Ok(())
    }

    fn decode(
        &mut self,
        queue: &Queue<'_, D>,
        device: &Device,
        group: &Group,
        received: &Received<'_>,
        onto: Target<&D::Slice>,
    ) -> Result<(), Error> {
        let ranks = &received.payloads()?[onto.ranks];
        self.decode_of(queue, (device, group.recipe.entropy), ranks, (onto.mode, onto.output.clone()))
    }

    /// Nothing: every element was sent, and momentum goes on.
    fn mask(&mut self, _: &Queue<'_, D>, _: &Place<'_, D>, _: &[u32], _: u64) -> Result<(), Error> {
        Ok(())
    }
}
