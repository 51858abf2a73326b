//! Which entries are sent, as which bytes, and what each leaves in the residual.

use std::borrow::Cow;

use half::{bf16, f16};

use super::entries::{Entries, Source};
use crate::codec::topk::{Select, Sought, SparsePlan};
use crate::error::Error;
use crate::gradient::{Dtype, Gradient};
use crate::wire::{IndexFormat, ValueFormat};
use crate::words::{little_endian, reserved};

/// Whether entries above a threshold, with their indices, take more room than all there are. Of a part of each sign, as
/// of all other numbers that are asked for, it does not matter.
pub(crate) fn is_more_than_all(plan: &SparsePlan, entries: &Entries) -> bool {
    if matches!(plan.sought, Some(Sought::PerSign(_))) {
        return false;
    }
    let (Select::Above(_), Some(each)) = (&plan.select, plan.header(0).value_size()) else { return false };
    let count = entries.bits.len() as u64;
    IndexFormat::choose(plan.n, count).bytes(plan.n, count) + each * count > each * plan.n
}

/// Every entry.
pub(crate) fn everything(of: Source<'_>) -> Result<Entries, Error> {
    let mut all = Entries::default();
    all.reserve(of.len())?;
    all.indices.extend(0..of.len() as u32);
    all.bits.extend((0..of.len()).map(|i| of.at(i).to_bits()));
    Ok(all)
}

/// The entries of halves that are sent as halves: the bits as they are, since a conversion there and back may change a
/// NaN.
///
/// # Errors
/// [`Error::Backend`] if there is no memory for them.
pub(crate) fn own_halves<'b>(
    plan: &SparsePlan,
    gradient: Gradient<'_>,
    indices: &[u32],
) -> Result<Option<Cow<'b, [u8]>>, Error> {
    match (plan.values, gradient) {
        (ValueFormat::Plain(Dtype::F16), Gradient::F16(x)) => halves(indices, |i| x[i as usize].to_bits()).map(Some),
        (ValueFormat::Plain(Dtype::Bf16), Gradient::Bf16(x)) => halves(indices, |i| x[i as usize].to_bits()).map(Some),
        _ => Ok(None),
    }
}

/// Values as they are sent, unless they are quantized: as they are, or rounded.
///
/// # Errors
/// [`Error::Backend`] if there is no memory for them.
pub(crate) fn plain_values(format: ValueFormat, bits: &[u32]) -> Result<Option<Cow<'_, [u8]>>, Error> {
    match format {
        ValueFormat::Plain(Dtype::F32) => Ok(Some(little_endian(bits))),
        ValueFormat::Plain(Dtype::F16) => {
            let half = |b| {
                let v = f32::from_bits(b);
                let half = f16::from_f32(v);
                if v.is_finite() && half.is_infinite() { f16::MAX.copysign(half) } else { half }.to_bits()
            };
            halves(bits, half).map(Some)
        }
        ValueFormat::Plain(Dtype::Bf16) => {
            let half = |b| {
                let v = f32::from_bits(b);
                let half = bf16::from_f32(v);
                if v.is_finite() && half.is_infinite() { bf16::MAX.copysign(half) } else { half }.to_bits()
            };
            halves(bits, half).map(Some)
        }
        ValueFormat::Payload => Ok(None),
    }
}

/// The residual of one entry after sending `sent`. An entry that was sent as it is leaves nothing. Where what was sent
/// is not finite, none of a finite value was: it stays, and what is not finite does not come back.
pub(crate) fn rest(bits: u32, sent: f32) -> f32 {
    let value = f32::from_bits(bits);
    if sent.to_bits() == bits {
        0.0
    } else if sent.is_finite() {
        value - sent
    } else if value.is_finite() {
        value
    } else {
        0.0
    }
}

fn halves<'b>(of: &[u32], half: impl Fn(u32) -> u16) -> Result<Cow<'b, [u8]>, Error> {
    let mut bytes = reserved(2 * of.len(), "the values of entries")?;
    bytes.extend(of.iter().flat_map(|v| half(*v).to_le_bytes()));
    Ok(bytes.into())
}

pub(crate) fn refuse(first: Option<u64>) -> Result<(), Error> {
    first.map_or(Ok(()), |index| Err(Error::NotFinite { index }))
}
