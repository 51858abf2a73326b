//! Encoding and decoding one tensor.

use super::{Runner, entropy};
use crate::embed::{Decode, DecodeBuffers, Encode, EncodeBuffers, HostSlice};
use crate::error::{Error, expect_residual};
use crate::gradient::Gradient;
use crate::plan::{DecodeMode, DecodePlan, EncodePlan, check_input};
use crate::seed::Seed;
use crate::view::PayloadView;
use crate::wire::{HEADER_BYTES, Payload};
use crate::words::{copied, zeros};

/// A payload as a plan says.
pub(crate) async fn encode(
    on: Runner<'_>,
    plan: &EncodePlan,
    gradient: Gradient<'_>,
    residual: &mut [f32],
    seed: Seed,
) -> Result<Payload, Error> {
    if !plan.is_packed() {
        return encode_fixed(on, plan, gradient, residual, seed).await;
    }
    // The caller's residual changes once nothing can fail any more.
    let mut left = copied(residual, "a residual")?;
    let fixed = encode_fixed(on, &plan.fixed(), gradient, &mut left, seed).await?;
    let packed = entropy::pack(on, fixed.view(), plan.entropy()).await?;
    residual.copy_from_slice(&left);
    Ok(packed)
}

/// A payload of codes of fixed width.
async fn encode_fixed(
    on: Runner<'_>,
    plan: &EncodePlan,
    gradient: Gradient<'_>,
    residual: &mut [f32],
    seed: Seed,
) -> Result<Payload, Error> {
    expect_inputs(plan, gradient, residual)?;
    let mut bytes = zeros(plan.payload_bytes() as u64, "a payload")?;
    encode_body(on, plan, gradient, residual, seed, &mut bytes[HEADER_BYTES..]).await?;
    Ok(Payload::seal(*plan.header(), bytes))
}

/// Encodes into the body of a payload: scalars and codes, without the header.
pub(crate) async fn encode_body(
    on: Runner<'_>,
    plan: &EncodePlan,
    gradient: Gradient<'_>,
    residual: &mut [f32],
    seed: Seed,
    body: &mut [u8],
) -> Result<(), Error> {
    let h = plan.header();
    let (scalars, codes) = body.split_at_mut(h.scalar_bytes() as usize);
    let buffers = EncodeBuffers {
        gradient: gradient.into(),
        residual: Some(residual.into()),
        body: HostSlice::parts_out(vec![(0, scalars), (h.codes_offset(), codes)]),
        workspace: Some(HostSlice::Out(&mut [])),
    };
    on.run(Encode { plan, seed }, buffers).await
}

/// Checks a gradient and a residual against a plan.
pub(crate) fn expect_inputs(plan: &EncodePlan, gradient: Gradient<'_>, residual: &[f32]) -> Result<(), Error> {
    check_input(plan, gradient.dtype(), gradient.len())?;
    expect_residual(plan.feedback(), residual.len(), plan.header().n)
}

/// Decodes payloads over or onto the output.
pub(crate) async fn decode(
    on: Runner<'_>,
    payloads: &[PayloadView<'_>],
    mode: DecodeMode,
    output: &mut [f32],
) -> Result<(), Error> {
    let Some(first) = payloads.first() else { return Ok(()) };
    let header = *first.header();
    for (index, payload) in payloads.iter().enumerate() {
        if let Some(what) = header.difference(payload.header()) {
            return Err(Error::Mixed { index, what });
        }
    }
    Error::expect_len("output", "elements", output.len(), header.n)?;
    let plan = DecodePlan::new(header, payloads.len() as u32);
    let is_packed = payloads.iter().any(|payload| payload.header().is_packed());
    let unpacked = if is_packed { unpack_all(on, payloads).await? } else { Vec::new() };
    let (each, codes_at) = (plan.header().body_bytes(), plan.header().codes_offset());
    let mut bodies = Vec::with_capacity(2 * payloads.len());
    for (index, payload) in payloads.iter().enumerate() {
        let payload = unpacked.get(index).and_then(Option::as_ref).map_or(*payload, Payload::view);
        let at = index as u64 * each;
        bodies.extend([(at, payload.scalars()), (at + codes_at, payload.codes())]);
    }
    let output = match mode {
        DecodeMode::Add(_) => output.into(),
        DecodeMode::Write | DecodeMode::Sum(_) => HostSlice::floats_out(output),
    };
    on.run(Decode { plan: &plan, mode }, DecodeBuffers { bodies: HostSlice::parts(bodies), output }).await
}

/// Of each payload that is packed, one that is not.
pub(crate) async fn unpack_all(on: Runner<'_>, payloads: &[PayloadView<'_>]) -> Result<Vec<Option<Payload>>, Error> {
    let mut unpacked = Vec::with_capacity(payloads.len());
    for payload in payloads {
        unpacked.push(match payload.header().is_packed() {
            true => Some(entropy::unpack(on, *payload).await?),
            false => None,
        });
    }
    Ok(unpacked)
}
