//! Packing payloads, and unpacking them.

use std::borrow::Cow;

use super::Runner;
use crate::embed::{HostSlice, Pack, PackBuffers, Unpack};
use crate::entropy::payload::{Packed, agreed, as_it_is, check, front, packed_payload};
use crate::error::Error;
use crate::view::PayloadView;
use crate::wire::{Entropy, Payload};

/// The payload with its codes packed in one way.
pub(crate) async fn pack(on: Runner<'_>, payload: PayloadView<'_>, entropy: Entropy) -> Result<Payload, Error> {
    if entropy == Entropy::None {
        return unpack(on, payload).await;
    }
    check(payload.header(), entropy)?;
    if entropy == payload.header().entropy() {
        return as_it_is(&payload);
    }
    let unpacked = if payload.header().is_packed() { Some(unpack(on, payload).await?) } else { None };
    let payload = unpacked.as_ref().map_or(payload, Payload::view);
    let header = payload.header();
    if header.elements() == 0 {
        return packed_payload(&payload, entropy, &Packed { bytes: Cow::default(), words: 0 });
    }
    let (device, mut packed) = (on.kind(), Vec::new());
    let buffers = PackBuffers {
        codes: HostSlice::In(payload.codes()),
        packed: HostSlice::grown(&mut packed),
        sums: HostSlice::Out(&mut []),
        count: HostSlice::Out(&mut []),
    };
    // SAFETY: it reads codes, of which any will do.
    unsafe { on.run_trusting(Pack { header, entropy, device }, buffers).await? };
    packed_payload(&payload, entropy, &agreed(device, header, entropy, &packed)?)
}

/// The payload with codes of fixed width.
pub(crate) async fn unpack(on: Runner<'_>, payload: PayloadView<'_>) -> Result<Payload, Error> {
    let header = payload.header().fixed();
    if header == *payload.header() {
        return as_it_is(&payload);
    }
    let (mut bytes, codes_at) = front(&header, &payload)?;
    if header.elements() > 0 {
        let buffers = PackBuffers {
            codes: HostSlice::Out(&mut bytes[codes_at..]),
            packed: HostSlice::In(payload.codes()),
            sums: HostSlice::Out(&mut []),
            count: HostSlice::Out(&mut []),
        };
        // SAFETY: a payload's table names as many words as there are.
        unsafe { on.run_trusting(Unpack { header: payload.header() }, buffers).await? };
    }
    Ok(Payload::seal(header, bytes))
}
