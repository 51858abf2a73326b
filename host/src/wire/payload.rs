//! A dense payload.

use super::error::PayloadError;
use super::format::HEADER_BYTES;
use super::header::Header;

/// A compressed gradient, complete and checked.
///
/// ```
/// use gradwire::{Device, Payload, Qsgd, Seed};
/// let device = Device::cpu();
/// let sent = device.encode(&Qsgd::bits(4).bucket(512), &[0.5f32; 1000], Seed::new(1))?;
/// let received = Payload::from_bytes(sent.as_bytes())?;
/// assert_eq!(received, sent);
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Payload {
    header: Header,
    bytes: Vec<u8>,
}

impl Payload {
    /// Checks received bytes and keeps a copy. [`PayloadView::from_bytes`](crate::PayloadView::from_bytes) keeps none.
    ///
    /// # Errors
    /// [`PayloadError`] when the bytes are truncated, too long, damaged, of another format or of a version this build
    /// does not read, or when there is no memory for a copy. Nothing is allocated before every field of the header and
    /// the length were checked.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PayloadError> {
        let header = Header::check(bytes)?;
        Ok(Self { header, bytes: received(bytes)? })
    }

    /// Checks received bytes and keeps them, without a copy.
    ///
    /// # Errors
    /// As [`Payload::from_bytes`].
    pub fn from_vec(bytes: Vec<u8>) -> Result<Self, PayloadError> {
        let header = Header::check(&bytes)?;
        Ok(Self { header, bytes })
    }

    /// Completes a payload whose body was written after room for a header.
    pub(crate) fn seal(header: Header, mut bytes: Vec<u8>) -> Self {
        let head = header.write(&bytes[HEADER_BYTES..]);
        bytes[..HEADER_BYTES].copy_from_slice(&head);
        Self { header, bytes }
    }

    /// What to send.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, without a copy.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The header.
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
}

impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Payload").field("header", &self.header).field("bytes", &self.bytes.len()).finish()
    }
}

/// A copy of received bytes.
///
/// # Errors
/// [`PayloadError::Memory`] if there is no memory for it.
pub(crate) fn received(bytes: &[u8]) -> Result<Vec<u8>, PayloadError> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(|_| PayloadError::Memory { bytes: bytes.len() as u64 })?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}
