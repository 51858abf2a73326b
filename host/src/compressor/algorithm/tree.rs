//! The tree of gTop-k: [`Algorithm::Tree`].

use super::super::failure::Failure;
use super::super::frame;
use super::super::part::{Method, Part};
use super::super::planes::Held;
use super::super::witness::Witness;
use super::{Place, Step};
use crate::collective::Collective;
use crate::error::Error;
use crate::plan::NonFinite;
use crate::recipe::Algorithm;
use crate::sparse::SparsePayload;
use crate::words::zeros;

/// A step of a selection. Where a rank cannot do its part, its parent hears of it, and in the end all ranks do: none
/// waits.
pub(super) fn run(
    host: &mut Place<'_, '_>,
    part: &Part,
    step: Step,
    group: &mut Witness<'_, impl Collective + ?Sized>,
    weight: f32,
) -> Result<u64, Failure> {
    let (rank, ranks) = (group.rank(), group.ranks());
    let mut mine = encode(host, part, step, rank).map_err(|error| part.told(error, rank));
    let (mut bytes, mut message, mut ack) = (0, Vec::new(), Vec::new());
    for (round, child) in (1..).zip(Algorithm::children(rank, ranks)) {
        group.exchange(child, &[], &mut message).map_err(Error::from)?;
        let theirs = read(part, step, &message, child);
        mine = mine
            .and_then(|mine| merge(host, part, step, [&mine, &theirs?], ranks.wrapping_mul(round).wrapping_add(rank)))
            .map_err(|error| part.told(error, rank));
    }
    let mut own = mine.map(|payload| vec![payload.into_bytes()]);
    message = step.message(rank, &mut own);
    if let Some(parent) = Algorithm::parent(rank) {
        bytes += message.len() as u64;
        group.exchange(parent, &message, &mut ack).map_err(Error::from)?;
        group.exchange(parent, &[], &mut message).map_err(Error::from)?;
    }
    for child in Algorithm::children(rank, ranks).rev() {
        bytes += message.len() as u64;
        group.exchange(child, &message, &mut ack).map_err(Error::from)?;
    }
    group.note(&message);
    // This rank's own error says more than what follows from it.
    own?;
    let result = read(part, step, &message, Algorithm::parent(rank).unwrap_or(rank));
    result.and_then(|result| write(host, part, &result, weight)).map_err(Failure::behind)?;
    Ok(bytes)
}

/// This rank's selection. What it leaves is in the residual after the step.
fn encode(host: &mut Place<'_, '_>, part: &Part, step: Step, rank: u32) -> Result<SparsePayload, Error> {
    let mut message = Vec::new();
    let mut writer = frame::Writer::new(&mut message, step.step, step.model);
    let residual = host.planes.of(Held::Residual);
    part.encode(host.device, host.gradient, residual, step.seed.worker(rank), &mut writer)?;
    writer.finish();
    read(part, step, &message, rank)
}

/// The selection that a rank sent, checked.
fn read(part: &Part, step: Step, message: &[u8], rank: u32) -> Result<SparsePayload, Error> {
    let payloads = step.read(message, rank, 1)?;
    let bytes = payloads.first().copied().unwrap_or_default();
    let Method::Sparse { elements, .. } = &part.method else { return Err(part.differs(rank, 0, "length")) };
    part.entries(rank, bytes, *elements as u64)
}

/// Both together, selected anew. What drops goes to the residual after the step.
fn merge(
    host: &mut Place<'_, '_>,
    part: &Part,
    step: Step,
    [mine, theirs]: [&SparsePayload; 2],
    worker: u32,
) -> Result<SparsePayload, Error> {
    let Method::Sparse { codec, packed, .. } = &part.method else { return Ok(mine.clone()) };
    let (seed, left) = (part.seed_of(step.seed).worker(worker), &mut *host.planes.of(Held::Residual).behind);
    // All values are finite here. A sum that is not is refused before the residual takes it.
    let codec = codec.clone().non_finite(NonFinite::Error);
    if !*packed {
        return host.device.merge_sparse(&codec, mine, theirs, left, seed);
    }
    let mut own = part.pack(left)?;
    let merged =
        host.device.merge_sparse(&codec, mine, theirs, &mut own, seed).map_err(|error| part.unpacked(error))?;
    part.unpack(&own, left);
    Ok(merged)
}

/// Writes the mean into the gradient.
fn write(host: &mut Place<'_, '_>, part: &Part, result: &SparsePayload, weight: f32) -> Result<(), Error> {
    let Method::Sparse { packed, .. } = &part.method else { return Ok(()) };
    if !*packed {
        return host.device.decode_sparse_sum(&[result], weight, host.gradient);
    }
    let mut mean = zeros(part.elements() as u64, "the mean")?;
    host.device.decode_sparse_sum(&[result], weight, &mut mean)?;
    part.unpack(&mean, host.gradient);
    Ok(())
}
