//! The tensors are rotated before they are quantized, in a device's memory.

use gradwire_kernels::arith::float::accumulate;

use super::host::Rotated;
use crate::compressor::frame::Writer;
use crate::compressor::group::Group;
use crate::compressor::method::contract::{Received, Target, undecodable};
use crate::compressor::method::on_device::GatheredOn;
use crate::compressor::queue::{AddMomentum, Bodies, Finite, MomentumBuffers, Packed, Place, Queue, taken, unpack};
use crate::device::Device;
use crate::embed::{Decode, DecodeBuffers, DeviceMemory, Encode, EncodeBuffers, Turn, TurnBuffers, Work};
use crate::error::Error;
use crate::plan::{DecodeMode, DecodePlan, EncodePlan};
use crate::rotation::Rotation;
use crate::seed::Seed;
use crate::view::PayloadView;
use crate::wire::Entropy;

/// The tensors are rotated before they are quantized, in a device's memory.
pub(crate) struct Resident<D: DeviceMemory> {
    rotation: Rotation,
    plan: EncodePlan,
    packed: Option<Packed<D>>,
    /// The rotated values to quantize, and later the sum over the ranks.
    rotated: D::Room,
    body: D::Room,
    workspace: Option<D::Room>,
    bodies: Bodies<D>,
    own: Option<Own<D>>,
    finite: Option<Finite<D>>,
}

/// The values of one rank, rotated back, if each rank has its own signs.
struct Own<D: DeviceMemory> {
    values: D::Room,
    finite: Finite<D>,
}

impl<D: DeviceMemory> Own<D> {
    fn new(queue: &Queue<'_, D>, elements: u64) -> Result<Self, Error> {
        Ok(Self { values: queue.room(4 * elements)?, finite: Finite::new(queue)? })
    }

    /// Adds the values to a sum.
    fn add(&self, queue: &Queue<'_, D>, elements: u64, sum: &D::Slice) -> Result<(), Error> {
        let values = queue.all(&self.values);
        match self.finite.refuse_of(queue, elements, &values) {
            Ok(()) => {
                // A momentum that is not finite counts as 0, and a gradient that is not finite stays: so the sum takes
                // the gradient's place.
                let add = AddMomentum { range: 0..elements, elements, factor: 1.0, gain: 1.0 };
                queue.run(add, MomentumBuffers { gradient: sum.clone(), momentum: values.clone() })?;
                queue.copy((&values, 0), (sum, 0), 4 * elements)
            }
            // A block has overflowed, which is too rare for a kernel of its own.
            Err(Error::NotFinite { .. }) => {
                let mut both = [vec![0.0f32; elements as usize], vec![0.0f32; elements as usize]];
                queue.read(sum, 0, &mut both[0])?;
                queue.read(&values, 0, &mut both[1])?;
                let [mut sums, values] = both;
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum = accumulate(*sum, 1.0, value));
                queue.write(sum, 0, bytemuck::cast_slice(&sums))
            }
            Err(error) => Err(error),
        }
    }
}

impl<D: DeviceMemory> Resident<D> {
    /// `packed` is whether the model has other tensors.
    pub(crate) fn of(queue: &Queue<'_, D>, rotated: &Rotated, group: &Group, packed: bool) -> Result<Self, Error> {
        let Rotated { rotation, plan } = rotated;
        let (elements, limits) = (group.elements() as u64, queue.memory().limits());
        // A device that is too small is refused here, and in no step.
        turn(*rotation, group, false, Seed::new(0)).passes(&limits)?;
        plan.passes(Seed::new(0), &limits)?;
        let workspace = plan.workspace_bytes();
        Ok(Self {
            rotation: *rotation,
            plan: *plan,
            packed: if packed { Some(Packed::new(queue, elements, false)?) } else { None },
            rotated: queue.room(4 * rotation.rotated_len(elements))?,
            body: queue.room(plan.header().body_bytes())?,
            workspace: if workspace > 0 { Some(queue.room(workspace)?) } else { None },
            bodies: Bodies::new(),
            own: if rotation.is_own() { Some(Own::new(queue, elements)?) } else { None },
            finite: Finite::under(queue, group.recipe.non_finite)?,
        })
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
        let Self { rotation, plan, .. } = &*self;
        let (input, _) = taken(queue, self.packed.as_ref(), place, group)?;
        self.finite.as_ref().map_or(Ok(()), |finite| finite.refuse(queue, group, &input))?;
        let (seed, gradient, body) = (group.seed_of(seed), queue.all(&self.rotated), queue.all(&self.body));
        queue.run(turn(*rotation, group, false, seed), TurnBuffers { input, output: gradient.clone() })?;
        let workspace = self.workspace.as_ref().map(|room| queue.all(room));
        let buffers = EncodeBuffers { gradient, residual: None, body: body.clone(), workspace };
        queue.run(Encode { plan, seed }, buffers)?;
        // Bytes between scalars and codes were not written.
        let (header, mut bytes) = (plan.header(), vec![0; plan.header().body_bytes() as usize]);
        for (from, length) in [(0, header.scalar_bytes()), (header.codes_offset(), header.code_bytes())] {
            queue.read(&body, from, &mut bytes[from as usize..(from + length) as usize])?;
        }
        message.append(place.device.packed(header.seal(&bytes)?, group.recipe.entropy)?.as_bytes())
    }

    fn decode(
        &mut self,
        queue: &Queue<'_, D>,
        device: &Device,
        group: &Group,
        received: &Received<'_>,
        onto: Target<&D::Slice>,
    ) -> Result<(), Error> {
        // No recipe forms values and rotates them.
        let DecodeMode::Sum(_) = onto.mode else { return Err(undecodable()) };
        let (payloads, rotation, plan) = (Rotated::payloads_of(received)?, self.rotation, &self.plan);
        let header = plan.header();
        let each = header.body_bytes();
        let mut body = vec![0; each as usize];
        let mut write = |payload: &PayloadView<'_>, bodies: &D::Slice, at: u64| {
            match group.recipe.entropy {
                Entropy::None => payload.write_body(&mut body)?,
                _ => device.unpack(payload)?.write_body(&mut body)?,
            }
            queue.write(bodies, at, &body)
        };
        let sum = queue.all(&self.rotated);
        let packed = self.packed.as_ref().map(|packed| queue.all(&packed.input));
        let output = packed.clone().unwrap_or_else(|| onto.output.clone());
        let seed = group.seed_of(onto.seed);
        let decode = |bodies: D::Slice, count: u32| {
            let decode = Decode { plan: &DecodePlan::new(*header, count), mode: onto.mode };
            queue.run(decode, DecodeBuffers { bodies, output: sum.clone() })
        };
        let back = |seed: Seed, output: D::Slice| {
            queue.run(turn(rotation, group, true, seed), TurnBuffers { input: sum.clone(), output })
        };
        if let Some(own) = &self.own {
            // One rank after another, in the order of the ranks: the host's sum has the same order.
            let bodies = self.bodies.room(queue, 1, each)?;
            for (index, rank) in onto.ranks.enumerate() {
                write(&payloads[rank], &bodies, 0)?;
                decode(bodies.clone(), 1)?;
                let seed = seed.worker(rank as u32);
                if index == 0 {
                    back(seed, output.clone())?;
                    continue;
                }
                back(seed, queue.all(&own.values))?;
                own.add(queue, group.elements() as u64, &output)?;
            }
        } else {
            let payloads = &payloads[onto.ranks];
            let count = payloads.len() as u32;
            let bodies = self.bodies.room(queue, count, each)?;
            for (at, payload) in (0u64..).zip(payloads) {
                write(payload, &bodies, at * each)?;
            }
            decode(bodies, count)?;
            back(seed, output)?;
        }
        match packed {
            Some(packed) => unpack(queue, group.ranges(), &packed, onto.output),
            None => Ok(()),
        }
    }

    /// Nothing: every element was sent, and momentum goes on.
    fn mask(&mut self, _: &Queue<'_, D>, _: &Place<'_, D>, _: &[u32], _: u64) -> Result<(), Error> {
        Ok(())
    }
}

/// The rotation of a group's tensors.
fn turn(rotation: Rotation, group: &Group, back: bool, seed: Seed) -> Turn {
    Turn { rotation, elements: group.elements() as u64, back, seed }
}
