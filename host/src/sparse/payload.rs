//! A sparse payload: header, indices, values.

use half::{bf16, f16};

use super::index;
use crate::error::Error;
use crate::gradient::Dtype;
use crate::threads;
use crate::view::{PayloadView, are_finite};
use crate::wire::{HEADER_BYTES, PayloadError, SparseHeader, ValueFormat, expect_checksum, received};
use crate::words::{reserved, zeros};

/// Entries of a gradient, complete and checked: sorted indices without repetition, each below the length, and a value
/// for each.
///
/// ```
/// use gradwire::{Device, Seed, SparsePayload, TopK};
/// let gradient = [0.0f32, 5.0, -1.0, -7.0, 0.5];
/// let device = Device::cpu();
/// let sent = device.encode_sparse(&TopK::count(2), &gradient, Seed::new(1))?;
/// let received = SparsePayload::from_bytes(sent.as_bytes())?;
/// assert_eq!(received.indices(), [1, 3]);
/// assert_eq!(device.decode_sparse(&received)?, [0.0, 5.0, 0.0, -7.0, 0.0]);
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct SparsePayload {
    header: SparseHeader,
    indices: Vec<u32>,
    bytes: Vec<u8>,
}

impl SparsePayload {
    /// Checks received bytes and keeps a copy.
    ///
    /// # Errors
    /// [`PayloadError`] if the bytes are truncated, too long, damaged, of another format or version, or if the
    /// indices do not rise, or reach beyond the gradient, or if there is no memory for them. Nothing is allocated
    /// before every field of the header, the length and the checksum were checked.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PayloadError> {
        let (header, indices) = check(bytes, None)?;
        Ok(Self { header, indices, bytes: received(bytes)? })
    }

    /// Checks received bytes of a gradient with `elements` elements, and keeps a copy.
    ///
    /// An index takes 4 bytes in memory, and a bit or less in a payload. So bytes of a sender who is not trusted are
    /// read with the length that is expected of them: another one is refused before memory is taken for any index.
    ///
    /// # Errors
    /// As [`SparsePayload::from_bytes`]; [`PayloadError::Elements`] for another length.
    pub fn from_bytes_of(bytes: &[u8], elements: u64) -> Result<Self, PayloadError> {
        let (header, indices) = check(bytes, Some(elements))?;
        Ok(Self { header, indices, bytes: received(bytes)? })
    }

    /// Checks received bytes and keeps them, without a copy.
    ///
    /// # Errors
    /// As [`SparsePayload::from_bytes`].
    pub fn from_vec(bytes: Vec<u8>) -> Result<Self, PayloadError> {
        let (header, indices) = check(&bytes, None)?;
        Ok(Self { header, indices, bytes })
    }

    /// Writes entries whose indices rise, each below `header.n`, and whose values are `values`' bytes.
    ///
    /// # Errors
    /// [`Error::Backend`] if there is no memory for the bytes.
    pub(crate) fn seal(header: SparseHeader, indices: Vec<u32>, values: &[u8]) -> Result<Self, Error> {
        let of_indices = header.index_bytes() as usize;
        let mut bytes: Vec<u8> = zeros((HEADER_BYTES + of_indices + values.len()) as u64, "a payload")?;
        let (to_indices, to_values) = bytes[HEADER_BYTES..].split_at_mut(of_indices);
        threads::join(
            || index::write(header.index_format(), header.n, &indices, to_indices),
            || to_values.copy_from_slice(values),
        );
        let head = header.write(&bytes[HEADER_BYTES..]);
        bytes[..HEADER_BYTES].copy_from_slice(&head);
        Ok(Self { header, indices, bytes })
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
    pub fn header(&self) -> &SparseHeader {
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

    /// The indices of the entries, rising.
    pub fn indices(&self) -> &[u32] {
        &self.indices
    }

    /// The values' bytes.
    pub(crate) fn value_part(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES + self.header.index_bytes() as usize..]
    }

    /// Whether all values are finite; of quantized ones, whether their scalars are.
    pub(crate) fn is_finite(&self) -> bool {
        let part = self.value_part();
        let halves = |infinity: u16| {
            let magnitudes = part.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]) & 0x7FFF);
            magnitudes.fold(0, u16::max) < infinity
        };
        match self.header.values {
            ValueFormat::Plain(Dtype::F32) => are_finite(part),
            ValueFormat::Plain(Dtype::F16) => halves(0x7C00),
            ValueFormat::Plain(Dtype::Bf16) => halves(0x7F80),
            ValueFormat::Payload => PayloadView::from_bytes(part).is_ok_and(|values| values.is_finite()),
        }
    }

    /// What gives the value of an entry as f32, by the entry's number, where values are plain.
    pub(crate) fn plain_value(&self) -> Option<impl Fn(usize) -> f32> {
        let ValueFormat::Plain(dtype) = self.header.values else { return None };
        let part = self.value_part();
        let (words, halves) = (part.as_chunks::<4>().0, part.as_chunks::<2>().0);
        Some(move |entry: usize| match dtype {
            Dtype::F32 => f32::from_le_bytes(words[entry]),
            Dtype::F16 => f16::from_le_bytes(halves[entry]).to_f32(),
            Dtype::Bf16 => bf16::from_le_bytes(halves[entry]).to_f32(),
        })
    }

    /// The values as f32, if they are plain.
    ///
    /// # Errors
    /// [`Error::Backend`] if there is no memory for them.
    pub(crate) fn plain_values(&self) -> Result<Option<Vec<f32>>, Error> {
        let Some(value) = self.plain_value() else { return Ok(None) };
        let mut values = reserved(self.indices.len(), "the values of entries")?;
        values.extend((0..self.indices.len()).map(value));
        Ok(Some(values))
    }
}

/// Checks a whole payload, of `elements` elements unless any number will do; its header, and its indices.
fn check(bytes: &[u8], elements: Option<u64>) -> Result<(SparseHeader, Vec<u32>), PayloadError> {
    let header = SparseHeader::read(bytes)?;
    let (head, body) = bytes.split_at(HEADER_BYTES);
    expect_checksum(head, body)?;
    if let Some(expected) = elements.filter(|expected| *expected != header.n) {
        return Err(PayloadError::Elements { found: header.n, expected });
    }
    let (indices, values) = body.split_at(header.index_bytes() as usize);
    // Before the indices, which take memory by the header's counts: here the counts are what the bytes bear out.
    if header.values == ValueFormat::Payload {
        let inner = PayloadView::from_bytes(values)?;
        if inner.len() as u64 != header.count {
            let allowed = "the number of entries in a payload of values";
            return Err(PayloadError::Field { field: "elements", found: inner.len() as u64, allowed });
        }
    }
    let indices = index::read(header.index_format(), header.n, header.count, indices)?;
    Ok((header, indices))
}

impl std::fmt::Debug for SparsePayload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SparsePayload").field("header", &self.header).field("bytes", &self.bytes.len()).finish()
    }
}
