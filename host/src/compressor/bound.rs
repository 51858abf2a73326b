//! Ranks that send more than their recipe allows: [`Recipe::peers_within`](crate::Recipe::peers_within).

use std::ops::Range;

use super::clip::norm;
use super::method::{Part, Received, undecodable};
use super::whole::Whole;
use crate::error::{Error, ExchangeError};
use crate::gradient::Dtype;
use crate::sparse::SparsePayload;
use crate::wire::{PayloadError, SparseHeader, ValueFormat};
use crate::words;

/// What memory is for.
const VALUES: &str = "tensors that go uncompressed";

/// Refuses a rank whose payloads of a part decode to values above the part's bound.
pub(super) fn check_part(Part { group, method }: &Part, received: &Received<'_>) -> Result<(), Error> {
    let Some(bound) = group.recipe.peers_bound() else { return Ok(()) };
    let Some(method) = method.gathered() else { return Err(undecodable()) };
    let mut values = Vec::new();
    for rank in 0..received.ranks() {
        let ranges = method.values(group, received, rank, &mut values)?;
        check(rank as u32, ranges.into_iter(), &values, bound)?;
    }
    Ok(())
}

/// Whether tensors that go uncompressed are gathered, since one of them has a bound.
pub(super) fn gathers(whole: &[Whole]) -> bool {
    whole.iter().any(|tensor| tensor.bound.is_some())
}

/// The values of this rank's uncompressed tensors, as a payload of all entries: it has a checksum.
pub(super) fn payload(values: &[f32]) -> Result<SparsePayload, Error> {
    let n = values.len() as u64;
    let header = SparseHeader { n, count: n, values: ValueFormat::Plain(Dtype::F32), dtype: Dtype::F32 };
    let mut indices = words::reserved(values.len(), VALUES)?;
    indices.extend(0..n as u32);
    let mut bytes = words::reserved(4 * values.len(), VALUES)?;
    values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
    SparsePayload::seal(header, indices, &bytes)
}

/// Reads the payload of `n` values that a rank sent.
pub(super) fn read(rank: u32, bytes: &[u8], n: u64) -> Result<SparsePayload, Error> {
    // Errors name the first tensor.
    let tensor = 0;
    let payload = SparsePayload::from_bytes_of(bytes, n).map_err(|source| match source {
        PayloadError::Memory { .. } => Error::from(source),
        PayloadError::Elements { .. } => ExchangeError::Payload { rank, tensor, what: "length" }.into(),
        source => ExchangeError::Damaged { rank, tensor, source }.into(),
    })?;
    let header = payload.header();
    if header.count == n && header.values == ValueFormat::Plain(Dtype::F32) {
        Ok(payload)
    } else {
        Err(ExchangeError::Payload { rank, tensor, what: "format of values" }.into())
    }
}

/// Adds the values of all ranks, each times `part`, in the order of the ranks. Refuses a rank whose tensors of one
/// bound are above it.
pub(super) fn sum(ranks: &[SparsePayload], whole: &[Whole], part: f32, sums: &mut [f32]) -> Result<(), Error> {
    let mut bounds: Vec<f32> = whole.iter().filter_map(|tensor| tensor.bound).collect();
    bounds.sort_by(f32::total_cmp);
    bounds.dedup();
    let mut at = 0;
    let spans: Vec<(Option<f32>, Range<usize>)> = whole
        .iter()
        .map(|tensor| {
            let from = at;
            at += tensor.span.elements as usize;
            (tensor.bound, from..at)
        })
        .collect();
    // Every rank is checked before any sum is written.
    for (rank, payload) in (0..).zip(ranks) {
        let values = payload.plain_values()?.unwrap_or_default();
        for bound in &bounds {
            let bounded = spans.iter().filter(|(of, _)| of == &Some(*bound)).map(|(_, range)| range.clone());
            check(rank, bounded, &values, *bound)?;
        }
    }
    for (rank, payload) in ranks.iter().enumerate() {
        let Some(value) = payload.plain_value() else { continue };
        let add = |(place, sum): (usize, &mut f32)| {
            let own = value(place) * part;
            *sum = if rank == 0 { own } else { *sum + own };
        };
        sums.iter_mut().enumerate().for_each(add);
    }
    Ok(())
}

/// Refuses a rank whose values in these ranges, together, have a norm above the bound. A NaN passes: the exchange
/// refuses it elsewhere.
fn check(rank: u32, ranges: impl Iterator<Item = Range<usize>>, values: &[f32], bound: f32) -> Result<(), Error> {
    let mut squares = 0.0;
    for range in ranges {
        let norm = f64::from(norm(&values[range])?);
        squares += norm * norm;
    }
    let norm = squares.sqrt();
    if norm > f64::from(bound) {
        let (norm, bound) = (format!("{:?}", norm as f32), format!("{bound:?}"));
        return Err(ExchangeError::Norm { rank, norm, bound }.into());
    }
    Ok(())
}
