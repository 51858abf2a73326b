//! Packing on WGPU without a wait, for where a thread may not wait: a browser's.

use std::borrow::Cow;

use crate::backend::wgpu::Wgpu;
use crate::embed::{HostSlice, Pack, PackBuffers, Unpack};
use crate::entropy::payload::{Packed, agreed, as_it_is, check, front, packed_payload};
use crate::error::Error;
use crate::kind::BackendKind;
use crate::view::AsPayload;
use crate::wire::{Entropy, Payload};

impl Wgpu {
    /// As [`Device::pack`](crate::Device::pack), bit for bit, without a wait in a browser. Elsewhere the returned
    /// future waits for the device when it is polled.
    ///
    /// ```no_run
    /// # async fn run(gradient: &[f32]) -> Result<(), gradwire::Error> {
    /// use gradwire::backend::wgpu::Wgpu;
    /// use gradwire::{Codec, Dtype, Entropy, Qsgd, Seed};
    /// let gradwire = Wgpu::open_async().await?;
    /// let plan = Qsgd::bits(4).l2().plan(gradient.len(), Dtype::F32)?;
    /// let payload = gradwire.encode_async(&plan, gradient.into(), &mut [], Seed::new(42)).await?;
    /// let packed = gradwire.pack_async(&payload, Entropy::Elias).await?;
    /// assert_eq!(gradwire.unpack_async(&packed).await?.as_bytes().len(), payload.as_bytes().len());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Device::pack`](crate::Device::pack).
    pub async fn pack_async(&self, payload: &(impl AsPayload + ?Sized), entropy: Entropy) -> Result<Payload, Error> {
        let payload = payload.as_payload();
        check(payload.header(), entropy)?;
        if entropy == payload.header().entropy() {
            return as_it_is(&payload);
        }
        if entropy == Entropy::None {
            return self.unpack_async(&payload).await;
        }
        let unpacked = match payload.header().is_packed() {
            true => Some(self.unpack_async(&payload).await?),
            false => None,
        };
        let payload = unpacked.as_ref().map_or(payload, Payload::view);
        let header = payload.header();
        if header.elements() == 0 {
            return packed_payload(&payload, entropy, &Packed { bytes: Cow::default(), words: 0 });
        }
        let (device, mut packed) = (BackendKind::Wgpu, Vec::new());
        let buffers = PackBuffers {
            codes: HostSlice::In(payload.codes()),
            packed: HostSlice::grown(&mut packed),
            sums: HostSlice::Out(&mut []),
            count: HostSlice::Out(&mut []),
        };
        self.run_async(Pack { header, entropy, device }, buffers).await?;
        packed_payload(&payload, entropy, &agreed(device, header, entropy, &packed)?)
    }

    /// As [`Device::unpack`](crate::Device::unpack), bit for bit, without a wait in a browser.
    ///
    /// # Errors
    /// As [`Device::unpack`](crate::Device::unpack).
    pub async fn unpack_async(&self, payload: &(impl AsPayload + ?Sized)) -> Result<Payload, Error> {
        let payload = payload.as_payload();
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
            self.run_async(Unpack { header: payload.header() }, buffers).await?;
        }
        Ok(Payload::seal(header, bytes))
    }
}
