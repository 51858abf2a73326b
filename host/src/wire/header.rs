//! The header of a dense payload: write, read, validate.

use gradwire_kernels::arith::pack;
use gradwire_kernels::codecs::{CodecId, SPARSE_TAG, wire_flags};
use gradwire_kernels::params::WHOLE;

use super::entropy::Entropy;
use super::error::PayloadError;
use super::format::{HEADER_BYTES, MAGIC, MAX_ELEMENTS, VERSION};
use crate::gradient::Dtype;

const ENTROPY_AT: usize = 20;
const WORDS_AT: usize = 24;
pub(crate) const CHECKSUM_AT: usize = 28;
const WHOLE_TAG: u8 = 0xff;

/// How many elements share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bucket {
    /// This many, a power of two from 32 to 8192.
    Of(u32),
    /// All of the tensor.
    Whole,
}

impl Bucket {
    /// The base-2 logarithm that kernels shift an index by to get its bucket.
    pub(crate) const fn log2(self) -> u32 {
        match self {
            Self::Of(size) => size.trailing_zeros(),
            Self::Whole => WHOLE,
        }
    }

    /// Elements that share a scale in a tensor of `n`.
    pub fn elements(self, n: u64) -> u64 {
        match self {
            Self::Of(size) => u64::from(size).min(n),
            Self::Whole => n,
        }
    }

    const fn tag(self) -> u8 {
        match self {
            Self::Of(size) => size.trailing_zeros() as u8,
            Self::Whole => WHOLE_TAG,
        }
    }
}

impl std::fmt::Display for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Of(size) => write!(f, "{size}"),
            Self::Whole => write!(f, "whole"),
        }
    }
}

/// What a payload is: everything that decoding it needs besides its body.
///
/// Every header has only values that the format allows. It comes from a plan
/// ([`EncodePlan::header`](crate::EncodePlan::header)), from a payload ([`Payload::header`](super::Payload::header)) or
/// from received bytes ([`Header::read`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub(crate) codec: CodecId,
    pub(crate) bits: u32,
    pub(crate) levels: u32,
    pub(crate) bucket: Bucket,
    pub(crate) l2: bool,
    pub(crate) scaled: bool,
    pub(crate) dtype: Dtype,
    pub(crate) n: u64,
    /// How the codes are packed.
    pub(crate) entropy: Entropy,
    /// Words of packed codes; 0 if codes have a fixed width.
    pub(crate) words: u32,
}

impl Header {
    /// The header of the same payload with codes of fixed width.
    pub(crate) fn fixed(&self) -> Self {
        Self { entropy: Entropy::None, words: 0, ..*self }
    }

    /// The most bytes of the payload with its codes packed so.
    pub(crate) fn most_bytes(&self, entropy: Entropy) -> u64 {
        if entropy == Entropy::None {
            return self.fixed().payload_bytes();
        }
        let words = entropy.most_words(self.n, self.bits);
        HEADER_BYTES as u64 + self.scalar_bytes() + entropy.table_bytes(self.n) + 4 * words
    }

    /// What keeps two payloads from being summed in one pass. Neither the norm's kind nor the gradient's type does:
    /// decoding does not look at them.
    pub(crate) fn difference(&self, other: &Self) -> Option<&'static str> {
        let checks = [
            (self.n != other.n, "length"),
            (self.codec != other.codec, "codec"),
            (self.bits != other.bits, "code width"),
            (self.levels != other.levels, "level count"),
            (self.bucket != other.bucket, "bucket"),
        ];
        checks.into_iter().find(|(differs, _)| *differs).map(|(_, what)| what)
    }

    /// Which codec made the payload.
    pub fn codec(&self) -> CodecId {
        self.codec
    }

    /// Bits per code.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// Levels: the largest magnitude (QSGD), the largest code (uniform) or the number of codes (quantiles).
    pub fn levels(&self) -> u32 {
        self.levels
    }

    /// How many elements share a scale.
    pub fn bucket(&self) -> Bucket {
        self.bucket
    }

    /// Whether the scale is the L2 norm (QSGD only).
    pub fn is_l2(&self) -> bool {
        self.l2
    }

    /// Whether the scalars carry the factor 1/(1 + omega) of the contraction.
    pub fn is_scaled(&self) -> bool {
        self.scaled
    }

    /// Type of the gradient that was encoded. Decoding gives f32 whatever it was.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// How the codes are packed ([`Device::pack`](crate::Device::pack)).
    pub fn entropy(&self) -> Entropy {
        self.entropy
    }

    /// 32-bit words of the packed codes, after their table. None if the codes have a fixed width.
    pub fn packed_words(&self) -> Option<u32> {
        self.is_packed().then_some(self.words)
    }

    /// Whether the codes are packed.
    pub fn is_packed(&self) -> bool {
        self.entropy != Entropy::None
    }

    /// Elements of the gradient.
    pub fn elements(&self) -> u64 {
        self.n
    }

    /// Buckets of the tensor.
    pub fn buckets(&self) -> u64 {
        match self.bucket {
            Bucket::Of(size) => self.n.div_ceil(u64::from(size)),
            Bucket::Whole => self.n.min(1),
        }
    }

    /// Bytes of the scalars, the first part of the body.
    pub fn scalar_bytes(&self) -> u64 {
        4 * self.buckets() * self.codec.scalars(self.bits) as u64
    }

    /// Bytes of the codes, the second part of the body: whole units of 256 elements, or the packed codes with their
    /// table.
    pub fn code_bytes(&self) -> u64 {
        if self.is_packed() {
            return self.entropy.table_bytes(self.n) + 4 * u64::from(self.words);
        }
        self.n.div_ceil(pack::UNIT as u64) * pack::unit_bytes(self.bits) as u64
    }

    /// Bytes of the payload, header included.
    pub fn payload_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.scalar_bytes() + self.code_bytes()
    }

    /// The header's bytes; the checksum is that of the header followed by `body`.
    pub fn write(&self, body: &[u8]) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0..4].copy_from_slice(&MAGIC);
        out[4] = VERSION;
        out[5] = self.codec.tag();
        out[6] = self.bits as u8;
        out[7] = self.bucket.tag();
        out[8..16].copy_from_slice(&self.n.to_le_bytes());
        out[16..18].copy_from_slice(&(self.levels as u16).to_le_bytes());
        out[18] = self.dtype.tag();
        out[19] = if self.l2 { wire_flags::L2 } else { 0 } | if self.scaled { wire_flags::SCALED } else { 0 };
        out[ENTROPY_AT] = self.entropy.tag();
        out[WORDS_AT..CHECKSUM_AT].copy_from_slice(&self.words.to_le_bytes());
        let sum = checksum(&out, body);
        out[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads and checks a payload's header, and that `bytes` has the length that the header describes. The body is not
    /// checked.
    pub fn read(bytes: &[u8]) -> Result<Self, PayloadError> {
        let total = bytes.len() as u64;
        let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(PayloadError::Truncated { found: total, expected: HEADER_BYTES as u64 });
        };
        let magic = [head[0], head[1], head[2], head[3]];
        if magic != MAGIC {
            return Err(PayloadError::Magic { found: magic });
        }
        if head[4] != VERSION {
            return Err(PayloadError::Version { found: head[4] });
        }
        let header = Self::fields(head)?;
        let expected = header.payload_bytes();
        match total {
            _ if total < expected => Err(PayloadError::Truncated { found: total, expected }),
            _ if total > expected => Err(PayloadError::Trailing { found: total, expected }),
            _ => Ok(header),
        }
    }

    fn fields(head: &[u8; HEADER_BYTES]) -> Result<Self, PayloadError> {
        let field = |field, found: u64, allowed| Err(PayloadError::Field { field, found, allowed });
        let codec = match (head[5], CodecId::of_tag(head[5])) {
            (SPARSE_TAG, _) => {
                return Err(PayloadError::Kind { found: "sparse", reader: "SparsePayload::from_bytes" });
            }
            (_, Some(codec)) => codec,
            (other, None) => return field("codec", other.into(), CodecId::TAGS),
        };
        let bits = u32::from(head[6]);
        if !codec.packs(bits) {
            return field("bits", bits.into(), codec.allowed_widths());
        }
        let [least, most] = codec.bucket_log2s();
        let bucket = match head[7] {
            log2 if (least..=most).contains(&log2) => Bucket::Of(1 << log2),
            WHOLE_TAG if codec.has_whole_tensors() => Bucket::Whole,
            other if codec.has_whole_tensors() => {
                return field("bucket", other.into(), "5 to 13, or 255 for the whole tensor,");
            }
            other if codec == CodecId::Quantile => return field("bucket", other.into(), "8 to 12, of quantiles,"),
            other => return field("bucket", other.into(), "5 to 13, of EDEN,"),
        };
        let n = u64::from_le_bytes([head[8], head[9], head[10], head[11], head[12], head[13], head[14], head[15]]);
        if n > MAX_ELEMENTS {
            return field("elements", n, "at most 2^31");
        }
        let levels = u32::from(u16::from_le_bytes([head[16], head[17]]));
        if !codec.has_levels(bits, levels) {
            return field("levels", levels.into(), "what docs/wire.md says of the codec and the code width");
        }
        let Some(dtype) = Dtype::from_tag(head[18]) else {
            return field("dtype", head[18].into(), "0 (f32), 1 (f16) or 2 (bf16)");
        };
        let known = codec.wire_flags();
        if head[19] & !known != 0 {
            return field(
                "flags",
                head[19].into(),
                "bit 0 (L2, QSGD only) and bit 1 (scaled, not 1-bit SGD, signs, DRIVE, EDEN, floats or quantiles)",
            );
        }
        let entropy = head[ENTROPY_AT];
        let words = u32::from_le_bytes([head[24], head[25], head[26], head[27]]);
        let reserved = if entropy == 0 { &head[ENTROPY_AT + 1..CHECKSUM_AT] } else { &head[ENTROPY_AT + 1..WORDS_AT] };
        if let Some(reserved) = reserved.iter().find(|b| **b != 0) {
            return field("reserved", u64::from(*reserved), "0");
        }
        let Some(entropy) = Entropy::from_tag(entropy).filter(|entropy| entropy.fits(codec, bits, levels)) else {
            let allowed = "0 (none), 1 (Elias gamma: QSGD, ternary and integers only), 2 (base 3: QSGD and ternary with 2 bits), 3 \
                           (Elias delta: as gamma) or 4 (places: as gamma)";
            return field("entropy", entropy.into(), allowed);
        };
        let possible = entropy.least_words(n)..=entropy.most_words(n, bits);
        if entropy != Entropy::None && !possible.contains(&words.into()) {
            return field("words", words.into(), "from what the shortest codes take per unit to what the longest do");
        }
        let (l2, scaled) = (head[19] & wire_flags::L2 != 0, head[19] & wire_flags::SCALED != 0);
        Ok(Self { codec, bits, levels, bucket, l2, scaled, dtype, n, entropy, words })
    }

    /// Reads the header and checks the whole payload, checksum included.
    pub(crate) fn check(bytes: &[u8]) -> Result<Self, PayloadError> {
        let header = Self::read(bytes)?;
        let (head, body) = bytes.split_at(HEADER_BYTES);
        expect_checksum(head, body)?;
        if header.is_packed() {
            let table = &body[header.scalar_bytes() as usize..];
            let expected = u64::from(header.words);
            let found = header.entropy.words_of(table, header.n, header.bits).map_err(|entry| PayloadError::Field {
                field: "table",
                found: entry.into(),
                allowed: "at most 16384 codes of a unit that are not zero, with as many bits as their width has levels",
            })?;
            if found != expected {
                return Err(PayloadError::Table { found, expected });
            }
        }
        Ok(header)
    }
}

/// CRC-32 (IEEE 802.3, as in zlib) of the header up to the checksum, then the body.
pub(crate) fn checksum(head: &[u8; HEADER_BYTES], body: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&head[..CHECKSUM_AT]);
    crc.update(body);
    crc.finalize()
}

/// Compares the checksum that a header holds with that of its bytes.
pub(crate) fn expect_checksum(head: &[u8], body: &[u8]) -> Result<(), PayloadError> {
    let Some(head) = head.first_chunk::<HEADER_BYTES>() else {
        return Err(PayloadError::Truncated { found: head.len() as u64, expected: HEADER_BYTES as u64 });
    };
    let found = u32::from_le_bytes([head[28], head[29], head[30], head[31]]);
    let computed = checksum(head, body);
    if found == computed { Ok(()) } else { Err(PayloadError::Checksum { found, computed }) }
}
