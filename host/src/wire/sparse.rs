//! The header of a sparse payload: write, read, validate.

use gradwire_kernels::codecs::{CodecId, SPARSE_TAG};

use super::error::PayloadError;
use super::format::{HEADER_BYTES, MAGIC, MAX_ELEMENTS, VERSION};
use super::header::checksum;
use super::index::IndexFormat;
use crate::gradient::Dtype;

/// How the values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueFormat {
    /// As they are, in this type.
    Plain(Dtype),
    /// Quantized: the values are a payload of their own, of as many elements as there are entries.
    Payload,
}

impl ValueFormat {
    const fn tag(self) -> u8 {
        match self {
            Self::Plain(dtype) => dtype.tag(),
            Self::Payload => 3,
        }
    }
}

/// What a sparse payload says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparseHeader {
    /// Elements of the gradient.
    pub n: u64,
    /// Entries that were kept.
    pub count: u64,
    /// How the values are written.
    pub values: ValueFormat,
    /// Type of the gradient that was encoded. Decoding gives f32 whatever it was.
    pub dtype: Dtype,
}

impl SparseHeader {
    /// How the indices are written: the smallest way, a function of the two counts.
    pub fn index_format(&self) -> IndexFormat {
        IndexFormat::choose(self.n, self.count)
    }

    /// Bytes of the indices, the first part of the body.
    pub fn index_bytes(&self) -> u64 {
        self.index_format().bytes(self.n, self.count)
    }

    /// Bytes of the values, the second part of the body; `None` if they are a payload, which says so itself.
    pub fn value_bytes(&self) -> Option<u64> {
        match self.values {
            ValueFormat::Plain(dtype) => Some(self.count.saturating_mul(dtype.bytes() as u64)),
            ValueFormat::Payload => None,
        }
    }

    /// Bytes of one value, where values are plain.
    pub(crate) fn value_size(&self) -> Option<u64> {
        match self.values {
            ValueFormat::Plain(dtype) => Some(dtype.bytes() as u64),
            ValueFormat::Payload => None,
        }
    }

    pub(crate) fn write(&self, body: &[u8]) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0..4].copy_from_slice(&MAGIC);
        out[4..8].copy_from_slice(&[VERSION, SPARSE_TAG, self.values.tag(), self.index_format().tag()]);
        out[8..16].copy_from_slice(&self.n.to_le_bytes());
        out[18] = self.dtype.tag();
        out[20..24].copy_from_slice(&(self.count as u32).to_le_bytes());
        let sum = checksum(&out, body);
        out[28..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, PayloadError> {
        let found = bytes.len() as u64;
        let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(PayloadError::Truncated { found, expected: HEADER_BYTES as u64 });
        };
        let magic = [head[0], head[1], head[2], head[3]];
        if magic != MAGIC {
            return Err(PayloadError::Magic { found: magic });
        }
        if head[4] != VERSION {
            return Err(PayloadError::Version { found: head[4] });
        }
        let field = |field, found: u64, allowed| Err(PayloadError::Field { field, found, allowed });
        match head[5] {
            SPARSE_TAG => {}
            tag if CodecId::of_tag(tag).is_some() => {
                return Err(PayloadError::Kind { found: "dense", reader: "Payload::from_bytes" });
            }
            other => return field("codec", other.into(), CodecId::TAGS),
        }
        let values = match head[6] {
            3 => ValueFormat::Payload,
            tag => match Dtype::from_tag(tag) {
                Some(dtype) => ValueFormat::Plain(dtype),
                None => return field("values", tag.into(), "0 (f32), 1 (f16), 2 (bf16) or 3 (a payload)"),
            },
        };
        let n = u64::from_le_bytes([head[8], head[9], head[10], head[11], head[12], head[13], head[14], head[15]]);
        if n > MAX_ELEMENTS {
            return field("elements", n, "at most 2^31");
        }
        let Some(dtype) = Dtype::from_tag(head[18]) else {
            return field("dtype", head[18].into(), "0 (f32), 1 (f16) or 2 (bf16)");
        };
        let count = u64::from(u32::from_le_bytes([head[20], head[21], head[22], head[23]]));
        if count > n {
            return field("count", count, "at most the number of elements");
        }
        let header = Self { n, count, values, dtype };
        if head[7] != header.index_format().tag() {
            return field("indices", head[7].into(), "the smallest format for these counts, and no other,");
        }
        let reserved = head[16..18].iter().chain(&head[19..20]).chain(&head[24..28]);
        if let Some(reserved) = reserved.into_iter().find(|b| **b != 0) {
            return field("reserved", u64::from(*reserved), "0");
        }
        let least = HEADER_BYTES as u64 + header.index_bytes() + header.value_bytes().unwrap_or(HEADER_BYTES as u64);
        match header.values {
            _ if found < least => Err(PayloadError::Truncated { found, expected: least }),
            ValueFormat::Plain(_) if found > least => Err(PayloadError::Trailing { found, expected: least }),
            _ => Ok(header),
        }
    }
}
