//! The tensors are concatenated, rotated as one, and then quantized.

use std::ops::Range;

use gradwire_kernels::arith::float::accumulate;

use crate::compressor::failure::Failure;
use crate::compressor::frame::Writer;
use crate::compressor::group::{Group, VALUES};
use crate::compressor::host::Host;
use crate::compressor::method::contract::{Gathered, Method, Received, Target, Values, undecodable};
use crate::compressor::method::values::sized;
use crate::compressor::stamp::Stamp;
use crate::compressor::witness::Witness;
use crate::device::Device;
use crate::error::Error;
use crate::gradient::Gradient;
use crate::plan::{DecodeMode, EncodePlan, NonFinite};
use crate::rotation::Rotation;
use crate::view::PayloadView;
use crate::words::zeros;

/// The tensors are concatenated, rotated as one, and then quantized.
#[derive(Clone, Debug)]
pub(crate) struct Rotated {
    pub(super) rotation: Rotation,
    pub(super) plan: EncodePlan,
}

impl Rotated {
    /// `dense` makes the plan of a quantizer.
    pub(crate) fn new(
        group: &Group,
        rotation: Rotation,
        dense: impl FnOnce(usize) -> Result<EncodePlan, Error>,
    ) -> Result<Self, Error> {
        let elements = rotation.rotated_len(group.elements() as u64);
        // Non-finite values are refused before the rotation.
        let plan = EncodePlan { non_finite: NonFinite::Propagate, ..dense(elements as usize)? };
        Ok(Self { rotation, plan })
    }

    /// Of each rank, its one payload.
    pub(super) fn payloads_of<'m>(received: &Received<'m>) -> Result<Vec<PayloadView<'m>>, Error> {
        Ok(received.payloads()?.iter().flatten().copied().collect())
    }
}

impl Method for Rotated {
    fn payload_bytes(&self, _: &Group) -> Result<Option<Vec<u64>>, Error> {
        Ok(Some(vec![self.plan.payload_bytes() as u64]))
    }
}

impl Gathered for Rotated {
    fn payloads(&self) -> usize {
        1
    }

    fn encode(&self, group: &Group, values: Values<'_, '_>, message: &mut Writer<'_>) -> Result<(), Error> {
        let Values { device, input, seed, .. } = values;
        if group.recipe.non_finite == NonFinite::Error {
            group.refuse_not_finite(input)?;
        }
        let seed = group.seed_of(seed);
        let rotated = device.rotate(self.rotation, &group.pack(input)?, seed)?;
        let payload = device.encode_plan(&self.plan, Gradient::F32(&rotated), &mut [], seed)?;
        message.append(device.packed(payload, group.recipe.entropy)?.as_bytes())
    }

    fn receive<'m>(&self, group: &Group, ranks: &[&[&'m [u8]]]) -> Result<Received<'m>, Error> {
        Received::of_plans(group, std::slice::from_ref(&self.plan), ranks)
    }

    fn decode(
        &self,
        group: &Group,
        device: &Device,
        received: &Received<'_>,
        Target { output, ranks, mode, seed }: Target<&mut [f32]>,
    ) -> Result<(), Error> {
        // No recipe forms values and rotates them.
        let DecodeMode::Sum(weight) = mode else { return Err(undecodable()) };
        let (payloads, seed) = (&Self::payloads_of(received)?[ranks], group.seed_of(seed));
        let mut sum = zeros(self.plan.len() as u64, VALUES)?;
        if !self.rotation.is_own() {
            device.decode_sum(payloads, weight, &mut sum)?;
            group.unpack(&device.unrotate(self.rotation, &sum, group.elements(), seed)?, output);
            return Ok(());
        }
        let mut mean = Vec::new();
        for (rank, payload) in (0..).zip(payloads) {
            device.decode_sum(&[*payload], weight, &mut sum)?;
            let own = device.unrotate(self.rotation, &sum, group.elements(), seed.worker(rank))?;
            if rank == 0 {
                mean = own;
            } else {
                mean.iter_mut().zip(own).for_each(|(mean, own)| *mean = accumulate(*mean, 1.0, own));
            }
        }
        group.unpack(&mean, output);
        Ok(())
    }

    fn values(
        &self,
        _: &Group,
        received: &Received<'_>,
        rank: usize,
        values: &mut Vec<f32>,
    ) -> Result<Vec<Range<usize>>, Error> {
        let elements = self.plan.len();
        Device::cpu().decode_sum(&received.payloads()?[rank], 1.0, sized(values, elements)?)?;
        Ok(std::iter::once(0..elements).collect())
    }

    /// None: every element was sent, and momentum goes on.
    fn masked(&self, _: &Group, _: &Received<'_>, _: usize) -> Result<Vec<u32>, Error> {
        Ok(Vec::new())
    }

    /// No recipe rotates for another algorithm than a gather.
    fn exchange(&mut self, _: &Group, _: &mut Host<'_>, _: Stamp, _: &mut Witness<'_>, _: f32) -> Result<u64, Failure> {
        Err(undecodable().into())
    }
}
