//! The tree of gTop-k: [`Algorithm::Tree`].

use super::selection::Sparse;
use crate::collective::Collective;
use crate::compressor::failure::Failure;
use crate::compressor::frame;
use crate::compressor::group::Group;
use crate::compressor::host::Host;
use crate::compressor::method::contract::{Gathered, Values};
use crate::compressor::planes::Held;
use crate::compressor::stamp::Stamp;
use crate::compressor::witness::Witness;
use crate::error::Error;
use crate::plan::NonFinite;
use crate::recipe::Algorithm;
use crate::sparse::SparsePayload;

/// A step of a selection. A rank that cannot do its part tells its parent, and in the end all ranks know: none waits.
pub(super) fn run(
    host: &mut Host<'_>,
    sparse: &Sparse,
    group: &Group,
    step: Stamp,
    between: &mut Witness<'_>,
    weight: f32,
) -> Result<u64, Failure> {
    let (rank, ranks) = (between.rank(), between.ranks());
    let mut mine = encode(host, (sparse, group), step, rank).map_err(|error| group.told(error, rank));
    let (mut bytes, mut message, mut ack) = (0, Vec::new(), Vec::new());
    for (round, child) in (1..).zip(Algorithm::children(rank, ranks)) {
        between.exchange(child, &[], &mut message).map_err(Error::from)?;
        let theirs = read((sparse, group), step, &message, child);
        mine = mine
            .and_then(|mine| {
                merge(host, (sparse, group), step, [&mine, &theirs?], ranks.wrapping_mul(round).wrapping_add(rank))
            })
            .map_err(|error| group.told(error, rank));
    }
    let mut own = mine.map(|payload| vec![payload.into_bytes()]);
    message = step.message(rank, &mut own);
    if let Some(parent) = Algorithm::parent(rank) {
        bytes += message.len() as u64;
        between.exchange(parent, &message, &mut ack).map_err(Error::from)?;
        between.exchange(parent, &[], &mut message).map_err(Error::from)?;
    }
    for child in Algorithm::children(rank, ranks).rev() {
        bytes += message.len() as u64;
        between.exchange(child, &message, &mut ack).map_err(Error::from)?;
    }
    between.note(&message);
    // This rank's own error says more than what follows from it.
    own?;
    let result = read((sparse, group), step, &message, Algorithm::parent(rank).unwrap_or(rank));
    let written = result.and_then(|result| sparse.write(group, host.device, &[result], weight, host.gradient));
    written.map_err(Failure::behind)?;
    Ok(bytes)
}

/// This rank's selection. The rest goes into the residual's new values.
fn encode(
    host: &mut Host<'_>,
    (sparse, group): (&Sparse, &Group),
    step: Stamp,
    rank: u32,
) -> Result<SparsePayload, Error> {
    let mut message = Vec::new();
    let mut writer = frame::Writer::new(&mut message, step.step, step.model);
    let residual = host.planes.of(Held::Residual);
    let values = Values { device: host.device, input: host.gradient, residual, seed: step.seed.worker(rank) };
    sparse.encode(group, values, &mut writer)?;
    writer.finish();
    read((sparse, group), step, &message, rank)
}

/// The selection that a rank sent, checked.
fn read((sparse, group): (&Sparse, &Group), step: Stamp, message: &[u8], rank: u32) -> Result<SparsePayload, Error> {
    let payloads = step.read(message, rank, 1)?;
    let bytes = payloads.first().copied().unwrap_or_default();
    sparse.entries(group, rank, bytes)
}

/// A new selection from both. Entries that drop go into the residual's new values.
fn merge(
    host: &mut Host<'_>,
    (sparse, group): (&Sparse, &Group),
    step: Stamp,
    [mine, theirs]: [&SparsePayload; 2],
    worker: u32,
) -> Result<SparsePayload, Error> {
    let (seed, left) = (group.seed_of(step.seed).worker(worker), &mut *host.planes.of(Held::Residual).behind);
    // All values are finite here. A sum that is not is refused before the residual takes it.
    let codec = sparse.codec.clone().non_finite(NonFinite::Error);
    if !sparse.packed {
        return host.device.merge_sparse(&codec, mine, theirs, left, seed);
    }
    let mut own = group.pack(left)?;
    let merged =
        host.device.merge_sparse(&codec, mine, theirs, &mut own, seed).map_err(|error| group.unpacked(error))?;
    group.unpack(&own, left);
    Ok(merged)
}
