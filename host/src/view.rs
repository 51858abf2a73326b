//! A payload that is read where it lies: received bytes that stay in the caller's buffer.

use crate::wire::{HEADER_BYTES, Header, Payload, PayloadError};

/// A compressed gradient, complete and checked, in memory that it borrows.
///
/// Every decode takes it as it takes a [`Payload`]. Nothing is copied.
///
/// ```
/// use gradwire::{Device, PayloadView, Qsgd, Seed};
/// let device = Device::cpu();
/// let mut received = Vec::new(); // kept from step to step
/// device.encode_into(&Qsgd::bits(4), &[0.5f32; 1000], Seed::new(1), &mut received)?;
/// let mut sum = [0.0; 1000];
/// device.decode_add(&PayloadView::from_bytes(&received)?, 0.25, &mut sum)?;
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PayloadView<'a> {
    header: Header,
    bytes: &'a [u8],
}

impl Payload {
    /// The payload, borrowed.
    pub fn view(&self) -> PayloadView<'_> {
        PayloadView::of_checked(*self.header(), self.as_bytes())
    }
}

impl<'a> PayloadView<'a> {
    /// Checks received bytes, as [`Payload::from_bytes`] does, and keeps no copy.
    ///
    /// # Errors
    /// As [`Payload::from_bytes`].
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Self, PayloadError> {
        let header = Header::check(bytes)?;
        Ok(Self { header, bytes })
    }

    /// Bytes that were checked, or written by an encode.
    pub(crate) fn of_checked(header: Header, bytes: &'a [u8]) -> Self {
        Self { header, bytes }
    }

    /// The bytes, header included.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// What the payload is.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Elements of the gradient.
    pub fn len(&self) -> usize {
        self.header.n as usize
    }

    /// Whether the gradient has no element.
    pub fn is_empty(&self) -> bool {
        self.header.n == 0
    }

    /// The scalars' bytes.
    pub(crate) fn scalars(&self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES..HEADER_BYTES + self.header.scalar_bytes() as usize]
    }

    /// Whether all scalars are finite. An encoder writes NaN for a bucket that holds a NaN or an infinity.
    pub(crate) fn is_finite(&self) -> bool {
        are_finite(self.scalars())
    }

    /// The codes' bytes.
    pub(crate) fn codes(&self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES + self.header.scalar_bytes() as usize..]
    }
}

/// Whether numbers, 4 bytes each, are finite.
pub(crate) fn are_finite(numbers: &[u8]) -> bool {
    let magnitude = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) & 0x7FFF_FFFF;
    numbers.chunks_exact(4).fold(0, |largest, bytes| largest.max(magnitude(bytes))) < 0x7F80_0000
}

impl std::fmt::Debug for PayloadView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PayloadView").field("header", &self.header).field("bytes", &self.bytes.len()).finish()
    }
}

/// What a decode takes: a [`Payload`], a [`PayloadView`], or a reference to one.
///
/// ```
/// use gradwire::{Device, Payload, PayloadView, Qsgd, Seed};
/// let device = Device::cpu();
/// let sent = device.encode(&Qsgd::bits(8), &[1.0f32; 100], Seed::new(1))?;
/// let mut mean = [0.0; 100];
/// device.decode_sum(&[sent.clone(), sent.clone()], 0.5, &mut mean)?;
/// device.decode_sum(&[&sent, &sent], 0.5, &mut mean)?;
/// device.decode_sum(&[sent.view(), PayloadView::from_bytes(sent.as_bytes())?], 0.5, &mut mean)?;
/// assert_eq!(mean, [1.0; 100]);
/// # Ok::<(), gradwire::Error>(())
/// ```
pub trait AsPayload {
    /// The payload, borrowed.
    fn as_payload(&self) -> PayloadView<'_>;
}

impl AsPayload for Payload {
    fn as_payload(&self) -> PayloadView<'_> {
        self.view()
    }
}

impl AsPayload for PayloadView<'_> {
    fn as_payload(&self) -> PayloadView<'_> {
        *self
    }
}

impl<T: AsPayload + ?Sized> AsPayload for &T {
    fn as_payload(&self) -> PayloadView<'_> {
        (**self).as_payload()
    }
}
