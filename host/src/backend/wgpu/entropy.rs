//! Packing on WGPU without a wait, for where a thread may not wait: a browser's.

use crate::backend::wgpu::{Copied, SCRATCH, Wgpu};
use crate::embed::{Access, Piece};
use crate::entropy::engine::{Packed, agreed, as_it_is, bytes_of_total, check, front, packed_payload};
use crate::entropy::passes::Layout;
use crate::error::Error;
use crate::kind::BackendKind;
use crate::plan::{Pass, Role};
use crate::view::AsPayload;
use crate::wire::{Entropy, Payload};

/// The buffers of packing, as a caller would name them.
const BUFFERS: [(&str, Role); 4] = [
    ("codes", Role::Codes),
    ("packed codes", Role::Values),
    ("sums of words", Role::Workspace),
    ("count of words", Role::Status),
];

/// Places in the list.
const CODES: usize = 0;
const PACKED: usize = 1;
const COUNT: usize = 3;

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
            return packed_payload(&payload, entropy, &Packed { bytes: Vec::new(), words: 0 });
        }
        let layout = Layout::new(header, entropy);
        let (total, buffers) = self.coded(&layout, &layout.pack(), (CODES, payload.codes()), (COUNT, 4)).await?;
        let total = self.read(total).await?;
        let words = total.first_chunk().map_or(0, |total| u32::from_le_bytes(*total));
        let needed = bytes_of_total(BackendKind::Wgpu, header, entropy, words)?;
        // There is room for the most words, and most often there are far fewer.
        let copied = self
            .contained("copying packed codes", || {
                let mut encoder = self.encoder();
                let copied = self.copied(&mut encoder, &buffers[PACKED], 0, needed)?;
                self.submit(encoder);
                Ok(copied)
            })
            .await?;
        let bytes = self.read(copied).await?;
        packed_payload(&payload, entropy, &agreed(BackendKind::Wgpu, header, entropy, words, bytes)?)
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
            let (layout, length) = (Layout::new(payload.header(), payload.header().entropy()), header.code_bytes());
            let passes = layout.unpack();
            let (codes, _) = self.coded(&layout, &passes, (PACKED, payload.codes()), (CODES, length)).await?;
            bytes[codes_at..].copy_from_slice(&self.read(codes).await?);
        }
        Ok(Payload::seal(header, bytes))
    }

    /// Runs passes of a layout over what is written into one buffer of [`BUFFERS`], and copies the first bytes of
    /// another; with all of them.
    async fn coded(
        &self,
        layout: &Layout,
        passes: &[Pass],
        (to, bytes): (usize, &[u8]),
        (from, length): (usize, u64),
    ) -> Result<(Copied, Vec<wgpu::Buffer>), Error> {
        self.limits().check(passes)?;
        let sizes = layout.sizes();
        self.contained("packing codes", || {
            let room = |(_, role)| self.room(sizes.of(role), SCRATCH);
            let buffers = BUFFERS.into_iter().map(room).collect::<Result<Vec<_>, Error>>()?;
            let named = || BUFFERS.iter().zip(&buffers);
            self.put(&buffers[to], bytes);
            let pieces: Vec<_> = named()
                .map(|((what, role), buffer)| {
                    let piece = Piece::new(what, buffer.slice(..), sizes.of(*role), [Some((*role, 0)), None]);
                    piece.accessed(Access::Write)
                })
                .collect();
            let mut encoder = self.encoder();
            self.record_checked(passes, &mut encoder, &pieces)?;
            let copied = self.copied(&mut encoder, &buffers[from], 0, length)?;
            self.submit(encoder);
            Ok((copied, buffers))
        })
        .await
    }
}
