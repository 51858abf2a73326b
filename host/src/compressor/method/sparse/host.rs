//! Entries are selected, in the host's memory.

use std::ops::Range;

use super::segments::of_spans;
use super::selection::{Sparse, check, gaps};
use super::tree;
use crate::codec::topk::Keep;
use crate::compressor::failure::Failure;
use crate::compressor::frame::Writer;
use crate::compressor::group::Group;
use crate::compressor::host::Host;
use crate::compressor::method::contract::{Gathered, Method, Received, Target, Values, undecodable};
use crate::compressor::method::values::sized;
use crate::compressor::stamp::Stamp;
use crate::compressor::witness::Witness;
use crate::device::Device;
use crate::entropy::Packing;
use crate::error::Error;
use crate::gradient::{Dtype, Gradient};
use crate::plan::{DecodeMode, Limits};
use crate::recipe::Quantize;
use crate::sparse::SparsePayload;
use crate::wire::{Entropy, HEADER_BYTES, SparseHeader, ValueFormat};
use crate::words;

/// The name of memory for the numbers of entries in errors.
const SENT: &str = "the numbers of the entries that were sent";

impl Method for Sparse {
    fn fit(&mut self, group: &Group, to: &Limits) -> Result<(), Error> {
        if group.recipe.entropy == Entropy::None {
            return Ok(());
        }
        let plan = self.codec.plan(self.elements, Dtype::F32, group.recipe.memory().adds_residual())?;
        let values = plan.quantizer(plan.most() as usize, false)?;
        values.map_or(Ok(()), |values| Packing::new(values.header(), values.entropy(), to).map(drop))
    }

    fn warm_up(&mut self, group: &Group, step: u64) -> Result<(), Error> {
        if let Some(next) = group.recipe.sparse_at(step) {
            let next = of_spans(&next, &group.spans, self.packed, self.elements as u64);
            check(&next, self.elements as u64, &group.recipe)?;
            self.codec = next;
        }
        Ok(())
    }

    fn payload_bytes(&self, group: &Group) -> Result<Option<Vec<u64>>, Error> {
        let dtype = match group.recipe.quantize {
            Quantize::Exact => Dtype::F32,
            Quantize::Round(dtype) => dtype,
            _ => return Ok(None),
        };
        let n = self.elements as u64;
        let plan = self.codec.plan(self.elements, Dtype::F32, false)?;
        let count = match self.codec.keep() {
            Keep::Above(_) | Keep::Estimate { .. } | Keep::PerSign(_) => return Ok(None),
            // The last block may have fewer elements.
            Keep::Blocks { elements: block, k } => (n / block * k.min(block)) + k.min(&(n % block)),
            _ => plan.most(),
        };
        let header = SparseHeader { n, count, values: ValueFormat::Plain(dtype), dtype: Dtype::F32 };
        let body = header.index_bytes() + header.value_bytes().unwrap_or(0);
        Ok(Some(vec![HEADER_BYTES as u64 + body]))
    }
}

impl Gathered for Sparse {
    fn payloads(&self) -> usize {
        1
    }

    fn encode(&self, group: &Group, values: Values<'_, '_>, message: &mut Writer<'_>) -> Result<(), Error> {
        let Values { device, input, residual, seed } = values;
        let (codec, seed) = (&self.codec, group.seed_of(seed));
        let packed = if self.packed { Some(group.pack(input)?) } else { None };
        let input = packed.as_deref().unwrap_or(input);
        let payload = match (group.recipe.memory().adds_residual(), self.packed) {
            (false, _) => device.encode_sparse(codec, input, seed),
            (true, false) => {
                let (before, behind) = (&*residual.before, &mut *residual.behind);
                let payload = device.encode_sums(codec, Gradient::F32(input), before, behind, seed);
                // Elements between the tensors go uncompressed.
                gaps(group.ranges(), input.len()).for_each(|gap| residual.behind[gap].fill(0.0));
                payload
            }
            (true, true) => {
                let mut own = group.pack(residual.before)?;
                let payload = device.encode_sparse_with_feedback(codec, input, &mut own, seed);
                group.unpack(&own, residual.behind);
                payload
            }
        };
        let payload = payload.map_err(|error| if self.packed { group.unpacked(error) } else { error })?;
        message.append(payload.as_bytes())
    }

    fn receive<'m>(&self, group: &Group, ranks: &[&[&'m [u8]]]) -> Result<Received<'m>, Error> {
        let mut all = Vec::with_capacity(ranks.len());
        for (rank, payloads) in (0..).zip(ranks) {
            for bytes in *payloads {
                all.push(self.entries(group, rank, bytes)?);
            }
        }
        Ok(Received::Entries(all))
    }

    fn decode(
        &self,
        group: &Group,
        device: &Device,
        received: &Received<'_>,
        Target { output, ranks, mode, .. }: Target<&mut [f32]>,
    ) -> Result<(), Error> {
        let payloads = &received.entries()?[ranks];
        let weight = match mode {
            DecodeMode::Sum(weight) => return self.write(group, device, payloads, weight, output),
            DecodeMode::Add(weight) => weight,
            DecodeMode::Write => return Err(undecodable()),
        };
        let mut packed = if self.packed { Some(group.pack(output)?) } else { None };
        let to = packed.as_deref_mut().unwrap_or(&mut *output);
        payloads.iter().try_for_each(|payload| device.decode_sparse_add(payload, weight, to))?;
        if let Some(packed) = packed {
            group.unpack(&packed, output);
        }
        Ok(())
    }

    fn values(
        &self,
        _: &Group,
        received: &Received<'_>,
        rank: usize,
        values: &mut Vec<f32>,
    ) -> Result<Vec<Range<usize>>, Error> {
        let values = sized(values, self.elements)?;
        Device::cpu().decode_sparse_sum(&received.entries()?[rank..=rank], 1.0, values)?;
        Ok(std::iter::once(0..self.elements).collect())
    }

    fn masked(&self, group: &Group, received: &Received<'_>, rank: usize) -> Result<Vec<u32>, Error> {
        let mine = received.entries()?.get(rank).map_or(&[][..], SparsePayload::indices);
        if !self.packed {
            return words::copied(mine, SENT);
        }
        let mut sent = words::reserved(mine.len(), SENT)?;
        let mut indices = mine.iter().map(|index| *index as usize).peekable();
        let mut before = 0;
        for range in group.ranges() {
            while let Some(index) = indices.next_if(|index| *index < before + range.len()) {
                sent.push((range.start + index - before) as u32);
            }
            before += range.len();
        }
        Ok(sent)
    }

    fn exchange(
        &mut self,
        group: &Group,
        host: &mut Host<'_>,
        stamp: Stamp,
        ranks: &mut Witness<'_>,
        weight: f32,
    ) -> Result<u64, Failure> {
        tree::run(host, self, group, stamp, ranks, weight)
    }
}
