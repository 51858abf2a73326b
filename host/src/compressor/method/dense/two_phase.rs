//! Pieces to their owners, and quantized sums back: [`Algorithm::TwoPhase`](crate::Algorithm::TwoPhase).

use super::pieces::{Sub, plan_of};
use super::quantizer::Dense;
use crate::collective::Collective;
use crate::compressor::failure::Failure;
use crate::compressor::frame;
use crate::compressor::group::Group;
use crate::compressor::host::Host;
use crate::compressor::mean;
use crate::compressor::method::values::view;
use crate::compressor::owner::Owner;
use crate::compressor::planes::{Held, Sides};
use crate::compressor::stamp::Stamp;
use crate::device::Device;
use crate::error::{Error, ExchangeError};
use crate::gradient::Gradient;
use crate::plan::EncodePlan;
use crate::seed::Seed;
use crate::view::PayloadView;
use crate::words::zeros;

/// A piece of a tensor, and how it is encoded.
type Planned = (Sub, EncodePlan);

/// A step of quantized pieces. A rank that cannot do its part says so in both phases: none waits.
pub(super) fn run(
    host: &mut Host<'_>,
    dense: &mut Dense,
    group: &Group,
    step: Stamp,
    between: &mut dyn Collective,
) -> Result<u64, Failure> {
    let (rank, ranks) = (between.rank(), between.ranks());
    let planned = |sub: Sub| plan_of(group, &sub).map(|plan| (sub, plan));
    let piece = |owner| dense.piece(group, owner, ranks).into_iter().map(planned).collect::<Result<Vec<Planned>, _>>();
    let pieces = (0..ranks).map(piece).collect::<Result<Vec<_>, _>>();

    let encoded = match &pieces {
        Ok(pieces) => dense.owner.expect(rank, ranks).and_then(|()| encode(host, group, step, pieces, rank)),
        Err(_) => Ok(Vec::new()),
    };
    let (pieces, refusal) = match (pieces, encoded) {
        (Ok(pieces), Ok(encoded)) => (pieces, Ok(encoded)),
        (Ok(pieces), Err(error)) => (pieces, Err(error)),
        (Err(error), _) => (Vec::new(), Err(error)),
    };
    let messages = |encoded: Vec<Vec<Vec<u8>>>| encoded.iter().map(|payloads| step.written(payloads)).collect();
    let (messages, refusal): (Vec<_>, _) = match refusal.and_then(messages) {
        Ok(messages) => (messages, None),
        Err(error) => (vec![step.refusal(rank, &error); ranks as usize], Some(error)),
    };
    let to: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
    let mut from = Vec::new();
    between.all_to_all(&to, &mut from).map_err(Error::from)?;
    let others = messages.iter().zip(0..).filter(|(_, to)| *to != rank);
    let mut bytes = others.map(|(message, _)| message.len() as u64).sum::<u64>();

    let mut summed = match (refusal, pieces.get(rank as usize)) {
        (Some(error), _) => Err(error),
        (None, Some(piece)) => sum(host.device, &mut dense.owner, group, step, piece, &from, [rank, ranks]),
        (None, None) => Ok(Vec::new()),
    };
    let message = step.message(rank, &mut summed);
    bytes += message.len() as u64;
    between.all_gather(&message, &mut from).map_err(Error::from)?;
    // This rank's own error says more than what follows from it.
    summed?;
    write(host, group, step, &pieces, &from, mean::weight(ranks)).map_err(Failure::behind)?;
    Ok(bytes)
}

/// Writes the mean that the owners have sent.
fn write(
    host: &mut Host<'_>,
    group: &Group,
    step: Stamp,
    pieces: &[Vec<Planned>],
    from: &[Vec<u8>],
    weight: f32,
) -> Result<(), Error> {
    expect_all(from, pieces.len() as u32)?;
    let views = (0..).zip(pieces).zip(from).map(|((owner, piece), message)| read(group, step, piece, message, owner));
    let (mut mean, mut at) = (zeros(group.elements() as u64, "the mean")?, 0);
    for (piece, views) in pieces.iter().zip(frame::all(views)?) {
        for ((sub, plan), view) in piece.iter().zip(views) {
            debug_assert_eq!(plan.len(), sub.range.len());
            let to = at..at + sub.range.len();
            at = to.end;
            host.device.decode_sum(&[view], weight, &mut mean[to])?;
        }
    }
    group.unpack(&mean, host.gradient);
    Ok(())
}

/// The payloads of this rank, by pieces. The residual after the step is what they do not hold.
fn encode(
    host: &mut Host<'_>,
    group: &Group,
    step: Stamp,
    pieces: &[Vec<Planned>],
    rank: u32,
) -> Result<Vec<Vec<Vec<u8>>>, Error> {
    let ranks = pieces.len() as u32;
    let mut residual = std::mem::replace(host.planes.of(Held::Residual), Sides::none());
    let input = host.input(group);
    let mut payloads = |(piece, owner): (&Vec<Planned>, u32)| {
        // Draws of a piece of a tensor are counted from its own beginning.
        let seed = step.seed.worker(ranks.wrapping_mul(owner.wrapping_add(1)).wrapping_add(rank));
        let mut payload = |(sub, plan): &Planned| {
            let range = sub.range.clone();
            let left = match plan.feedback {
                true => {
                    let own = residual.part(range.clone());
                    own.behind.copy_from_slice(own.before);
                    own.behind
                }
                false => &mut [],
            };
            payload(host.device, group, (sub, plan), &input[range], left, seed)
        };
        piece.iter().map(&mut payload).collect::<Result<Vec<_>, _>>()
    };
    let all = pieces.iter().zip(0..).map(&mut payloads).collect();
    *host.planes.of(Held::Residual) = residual;
    all
}

/// The bytes of a payload of a piece of a tensor.
fn payload(
    device: &Device,
    group: &Group,
    (sub, plan): (&Sub, &EncodePlan),
    values: &[f32],
    residual: &mut [f32],
    seed: Seed,
) -> Result<Vec<u8>, Error> {
    let seed = seed.tensor(group.number(sub.tensor));
    let payload = device.encode_plan(plan, Gradient::F32(values), residual, seed).map_err(|error| match error {
        Error::NotFinite { index } => Error::NotFinite { index: sub.range.start as u64 + index },
        other => other,
    })?;
    Ok(device.packed(payload, group.recipe.entropy)?.into_bytes())
}

/// The payloads of the sum of what all ranks sent of this rank's piece, each times a power of two that is at most
/// 1/ranks, so that the sum is finite where the mean is. The owner's residual is what they do not hold.
fn sum(
    device: &Device,
    owner: &mut Owner,
    group: &Group,
    step: Stamp,
    piece: &[Planned],
    from: &[Vec<u8>],
    [rank, ranks]: [u32; 2],
) -> Result<Vec<Vec<u8>>, Error> {
    expect_all(from, ranks)?;
    let views = (0..).zip(from).map(|(rank, message)| read(group, step, piece, message, rank));
    let views = views.collect::<Result<Vec<_>, _>>()?;
    let elements = match group.recipe.memory().feedback {
        true => piece.iter().map(|(sub, _)| sub.range.len()).sum(),
        false => 0,
    };
    let mut left = owner.begin(rank, ranks, elements)?;
    let seed = step.seed.worker(ranks.wrapping_mul(ranks.wrapping_add(1)).wrapping_add(rank));
    let mut payloads = Vec::with_capacity(piece.len());
    for (index, (sub, plan)) in piece.iter().enumerate() {
        let mut sum = zeros(sub.range.len() as u64, "a sum")?;
        let of_ranks: Vec<_> = views.iter().map(|views| views[index]).collect();
        device.decode_sum(&of_ranks, mean::power(ranks).recip(), &mut sum)?;
        let own = if plan.feedback { sub.range.len() } else { 0 };
        let (residual, rest) = std::mem::take(&mut left).split_at_mut(own);
        left = rest;
        payloads.push(payload(device, group, (sub, plan), &sum, residual, seed)?);
    }
    Ok(payloads)
}

/// What a rank sent of a piece, checked.
fn read<'m>(
    group: &Group,
    step: Stamp,
    piece: &[Planned],
    message: &'m [u8],
    rank: u32,
) -> Result<Vec<PayloadView<'m>>, Error> {
    let mut views = Vec::with_capacity(piece.len());
    for ((sub, plan), bytes) in piece.iter().zip(step.read(message, rank, piece.len())?) {
        views.push(view(group, plan, bytes, (rank, sub.tensor))?);
    }
    Ok(views)
}

fn expect_all(from: &[Vec<u8>], ranks: u32) -> Result<(), Error> {
    match from.len() == ranks as usize {
        true => Ok(()),
        false => Err(ExchangeError::Gathered { found: from.len(), expected: ranks }.into()),
    }
}
