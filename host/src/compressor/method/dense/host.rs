//! Every element is quantized, in the host's memory.

use std::ops::Range;

use super::quantizer::{Dense, plan};
use super::two_phase;
use crate::compressor::failure::Failure;
use crate::compressor::frame::Writer;
use crate::compressor::group::Group;
use crate::compressor::host::Host;
use crate::compressor::method::contract::{Gathered, Method, Received, Target, Values};
use crate::compressor::method::values::sized;
use crate::compressor::planes::Sides;
use crate::compressor::stamp::Stamp;
use crate::compressor::witness::Witness;
use crate::device::Device;
use crate::embed::HostSlice;
use crate::error::Error;
use crate::gradient::Gradient;
use crate::plan::{DecodeMode, EncodePlan, Limits};
use crate::view::PayloadView;
use crate::wire::Entropy;

impl Method for Dense {
    fn fit(&mut self, group: &Group, to: &Limits) -> Result<(), Error> {
        if self.limits != *to {
            (self.plan, self.limits) = (plan(group, to)?, *to);
        }
        Ok(())
    }

    fn payload_bytes(&self, _: &Group) -> Result<Option<Vec<u64>>, Error> {
        Ok(Some(self.plan.tensors().iter().map(|plan| plan.payload_bytes() as u64).collect()))
    }
}

impl Gathered for Dense {
    fn payloads(&self) -> usize {
        self.plan.tensors().len()
    }

    fn encode(&self, group: &Group, values: Values<'_, '_>, message: &mut Writer<'_>) -> Result<(), Error> {
        let Values { device, input, residual, seed } = values;
        let (plan, seed) = (&self.plan, group.seed_of(seed));
        let feedback = group.recipe.memory().adds_residual();
        let elements = plan.layout().elements() as usize;
        let Sides { before, behind } = residual.part(if feedback { 0..elements } else { 0..0 });
        // Elements between these tensors are other groups', which may have written theirs.
        let own = apart(behind, group.ranges().filter(|_| feedback));
        let (gradient, own) = (Gradient::F32(&input[..elements]), HostSlice::floats_apart(before, own));
        if group.recipe.entropy == Entropy::None {
            let lengths = plan.tensors().iter().map(EncodePlan::payload_bytes);
            return device.encode_model_into(plan, gradient, own, seed, message.payloads(lengths)?);
        }
        for payload in device.encode_model_apart(plan, gradient, own, seed)? {
            message.append(device.packed(payload, group.recipe.entropy)?.as_bytes())?;
        }
        Ok(())
    }

    fn receive<'m>(&self, group: &Group, ranks: &[&[&'m [u8]]]) -> Result<Received<'m>, Error> {
        Received::of_plans(group, self.plan.tensors(), ranks)
    }

    fn decode(
        &self,
        group: &Group,
        device: &Device,
        received: &Received<'_>,
        Target { output, ranks, mode, .. }: Target<&mut [f32]>,
    ) -> Result<(), Error> {
        let ranks = &received.payloads()?[ranks];
        // Payloads are added to a state buffer as they are, and not as votes.
        if let DecodeMode::Sum(_) = mode
            && group.recipe.vote
        {
            for (index, range) in group.ranges().enumerate() {
                let votes: Vec<_> = ranks.iter().map(|payloads| payloads[index]).collect();
                device.vote(&votes, &mut output[range])?;
            }
            return Ok(());
        }
        self.decode_model(device, mode, ranks, output)
    }

    fn values(
        &self,
        group: &Group,
        received: &Received<'_>,
        rank: usize,
        values: &mut Vec<f32>,
    ) -> Result<Vec<Range<usize>>, Error> {
        let values = sized(values, self.plan.layout().elements() as usize)?;
        self.decode_model(&Device::cpu(), DecodeMode::Sum(1.0), &received.payloads()?[rank..=rank], values)?;
        Ok(group.ranges().collect())
    }

    /// None: every element was sent, and momentum goes on.
    fn masked(&self, _: &Group, _: &Received<'_>, _: usize) -> Result<Vec<u32>, Error> {
        Ok(Vec::new())
    }

    fn exchange(
        &mut self,
        group: &Group,
        host: &mut Host<'_>,
        stamp: Stamp,
        ranks: &mut Witness<'_>,
        _: f32,
    ) -> Result<u64, Failure> {
        two_phase::run(host, self, group, stamp, ranks)
    }
}

impl Dense {
    fn decode_model(
        &self,
        device: &Device,
        mode: DecodeMode,
        ranks: &[Vec<PayloadView<'_>>],
        output: &mut [f32],
    ) -> Result<(), Error> {
        let ranks: Vec<&[PayloadView<'_>]> = ranks.iter().map(Vec::as_slice).collect();
        device.decode_model(&self.plan, mode, &ranks, &mut output[..self.plan.layout().elements() as usize])
    }
}

/// Ranges of values, in ascending order, each with the number of its first element.
fn apart(values: &mut [f32], ranges: impl Iterator<Item = Range<usize>>) -> Vec<(u64, &mut [f32])> {
    let (mut rest, mut at, mut apart) = (values, 0, Vec::new());
    for range in ranges {
        let (own, after) = rest[range.start - at..].split_at_mut(range.len());
        apart.push((range.start as u64, own));
        (rest, at) = (after, range.end);
    }
    apart
}
