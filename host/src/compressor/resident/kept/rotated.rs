//! Tensors that are rotated before they are quantized.

use super::{Bodies, Onto, Packed, Place, taken, unpack};
use crate::compressor::frame::Writer;
use crate::compressor::part::{Method, Part};
use crate::compressor::resident::finite::Finite;
use crate::compressor::resident::memory::Queue;
use crate::device::Device;
use crate::embed::{Decode, DecodeBuffers, DeviceMemory, Encode, EncodeBuffers, Work};
use crate::entropy::table::Entropy;
use crate::error::Error;
use crate::plan::{DecodeMode, DecodePlan, EncodePlan};
use crate::rotation::{Rotation, Turn, TurnBuffers};
use crate::seed::Seed;
use crate::view::PayloadView;

pub(in crate::compressor::resident) struct Rotated<D: DeviceMemory> {
    packed: Option<Packed<D>>,
    /// What is quantized, and then the sum of what all ranks have.
    rotated: D::Room,
    body: D::Room,
    workspace: Option<D::Room>,
    bodies: Bodies<D>,
    finite: Option<Finite<D>>,
}

impl<D: DeviceMemory> Rotated<D> {
    pub(super) fn new(
        queue: &Queue<'_, D>,
        (rotation, plan): (Rotation, &EncodePlan),
        part: &Part,
        packed: bool,
    ) -> Result<Self, Error> {
        let (elements, limits) = (part.elements() as u64, queue.memory().limits());
        // A device that is too small is refused here, and in no step.
        turn(rotation, part, false, Seed::new(0)).passes(&limits)?;
        plan.passes(Seed::new(0), &limits)?;
        let workspace = plan.workspace_bytes();
        Ok(Self {
            packed: if packed { Some(Packed::new(queue, elements, false)?) } else { None },
            rotated: queue.room(4 * rotation.rotated_len(elements))?,
            body: queue.room(plan.header().body_bytes())?,
            workspace: if workspace > 0 { Some(queue.room(workspace)?) } else { None },
            bodies: Bodies::new(),
            finite: Finite::under(queue, part.recipe.non_finite)?,
        })
    }

    pub(in crate::compressor::resident) fn encode(
        &self,
        queue: &Queue<'_, D>,
        place: &Place<'_, D>,
        part: &Part,
        seed: Seed,
        message: &mut Writer<'_>,
    ) -> Result<(), Error> {
        let Method::Rotated { rotation, plan } = &part.method else { return Ok(()) };
        let (input, _) = taken(queue, self.packed.as_ref(), place, part)?;
        self.finite.as_ref().map_or(Ok(()), |finite| finite.refuse(queue, part, &input))?;
        let (seed, gradient, body) = (part.seed_of(seed), queue.all(&self.rotated), queue.all(&self.body));
        queue.run(turn(*rotation, part, false, seed), TurnBuffers { input, output: gradient.clone() })?;
        let workspace = self.workspace.as_ref().map(|room| queue.all(room));
        let buffers = EncodeBuffers { gradient, residual: None, body: body.clone(), workspace };
        queue.run(Encode { plan, seed }, buffers)?;
        // What lies between scalars and codes was not written.
        let (header, mut bytes) = (plan.header(), vec![0; plan.header().body_bytes() as usize]);
        for (from, length) in [(0, header.scalar_bytes()), (header.codes_offset(), header.code_bytes())] {
            queue.read(&body, from, &mut bytes[from as usize..(from + length) as usize])?;
        }
        message.append(place.device.packed(header.seal(&bytes)?, part.recipe.entropy)?.as_bytes());
        Ok(())
    }

    pub(super) fn decode(
        &mut self,
        queue: &Queue<'_, D>,
        device: &Device,
        part: &Part,
        payloads: &[PayloadView<'_>],
        onto: Onto<'_, D>,
    ) -> Result<(), Error> {
        let (Method::Rotated { rotation, plan }, DecodeMode::Sum(_)) = (&part.method, onto.mode) else {
            return Ok(());
        };
        let (payloads, header) = (&payloads[onto.ranks], plan.header());
        let (count, each) = (payloads.len() as u32, header.body_bytes());
        let bodies = self.bodies.room(queue, count, each)?;
        let mut body = vec![0; each as usize];
        for (rank, payload) in (0u64..).zip(payloads) {
            match part.recipe.entropy {
                Entropy::None => payload.write_body(&mut body)?,
                _ => device.unpack(payload)?.write_body(&mut body)?,
            }
            queue.write(&bodies, rank * each, &body)?;
        }
        let sum = queue.all(&self.rotated);
        let decode = Decode { plan: &DecodePlan::new(*header, count), mode: onto.mode };
        queue.run(decode, DecodeBuffers { bodies, output: sum.clone() })?;
        let packed = self.packed.as_ref().map(|packed| queue.all(&packed.input));
        let output = packed.clone().unwrap_or_else(|| onto.output.clone());
        queue.run(turn(*rotation, part, true, part.seed_of(onto.step)), TurnBuffers { input: sum, output })?;
        match packed {
            Some(packed) => unpack(queue, part.ranges(), &packed, onto.output),
            None => Ok(()),
        }
    }
}

fn turn(rotation: Rotation, part: &Part, back: bool, seed: Seed) -> Turn {
    Turn { rotation, elements: part.elements() as u64, back, seed }
}
