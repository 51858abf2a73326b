//! The format of a payload: write, read, validate. `docs/wire.md` describes it to the bit.

use gradwire_kernels::arith::pack;
pub use gradwire_kernels::codecs::CodecId;
use gradwire_kernels::codecs::{SPARSE_TAG, wire_flags};
use gradwire_kernels::params::WHOLE;

use crate::entropy::table::Entropy;
use crate::gradient::Dtype;

/// Bytes of a payload's header.
pub const HEADER_BYTES: usize = 32;
/// First bytes of every payload.
pub const MAGIC: [u8; 4] = *b"GWIR";
/// Version of the format that this crate writes and reads.
pub const VERSION: u8 = 1;
/// The most elements of a tensor.
pub const MAX_ELEMENTS: u64 = 1 << 31;

const ENTROPY_AT: usize = 20;
const WORDS_AT: usize = 24;
pub(crate) const CHECKSUM_AT: usize = 28;
const WHOLE_TAG: u8 = 0xff;

/// Why bytes were not read as a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// Fewer bytes than a header, or than the header says.
    #[error("it is truncated: {found} bytes, and {expected} are needed; receive the rest")]
    Truncated {
        /// Bytes there are.
        found: u64,
        /// Bytes there should be.
        expected: u64,
    },
    /// More bytes than the header says.
    #[error("it has {found} bytes, and its header describes {expected}; cut what follows the payload")]
    Trailing {
        /// Bytes there are.
        found: u64,
        /// Bytes there should be.
        expected: u64,
    },
    /// Other bytes where the magic should be.
    #[error("it starts with {found:02x?}, and a Gradwire payload starts with {MAGIC:02x?}")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// A version of the format that this crate does not read.
    #[error(
        "it has format version {found}, and this build reads version {VERSION}; use the release that wrote it, or a newer one"
    )]
    Version {
        /// The version byte.
        found: u8,
    },
    /// A payload of the other kind: sparse where a dense one is read, or the other way round.
    #[error("it is a {found} payload; {reader} reads it")]
    Kind {
        /// Which kind it is, `dense` or `sparse`.
        found: &'static str,
        /// What reads that kind.
        reader: &'static str,
    },
    /// A header field outside of what the format allows.
    #[error("its header field {field} is {found}, and {allowed} is allowed")]
    Field {
        /// Which field.
        field: &'static str,
        /// What it holds.
        found: u64,
        /// What it may hold.
        allowed: &'static str,
    },
    /// A gradient of another length than the reader expects.
    #[error("its gradient has {found} elements, and {expected} are expected; let both sides have the same tensors")]
    Elements {
        /// Elements that the header says.
        found: u64,
        /// Elements that were expected.
        expected: u64,
    },
    /// The checksum does not match: the bytes were damaged.
    #[error(
        "its checksum is {found:#010x}, and its bytes give {computed:#010x}: it was damaged on the way; have it sent again"
    )]
    Checksum {
        /// What the header says.
        found: u32,
        /// What the bytes give.
        computed: u32,
    },
    /// The table of packed codes does not name the words that there are.
    #[error(
        "its table names {found} words of packed codes, and its header {expected}: no writer wrote it; have it sent again"
    )]
    Table {
        /// Words that the table names.
        found: u64,
        /// Words that the header names.
        expected: u64,
    },
    /// Indices of a sparse payload that no writer writes.
    #[error("its index {at} {what}: indices rise, without repetition, and are below the number of elements")]
    Index {
        /// Which index, from 0.
        at: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Nothing is wrong with the bytes, but there is no memory for them.
    #[error("{bytes} bytes for the payload cannot be had; free memory, or work on fewer tensors at a time")]
    Memory {
        /// Bytes that were asked for.
        bytes: u64,
    },
}

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
/// Every header is within what the format allows. It comes from a plan
/// ([`EncodePlan::header`](crate::EncodePlan::header)), from a payload ([`Payload::header`]) or from received bytes
/// ([`Header::read`]).
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
    /// Words of packed codes; 0 where codes have a fixed width.
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

    /// 32-bit words of the packed codes, behind their table. None where the codes have a fixed width.
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

    /// Reads and checks a header, and that a payload of `total` bytes is what it describes. The body is not looked at.
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
}

/// CRC-32 (IEEE 802.3, as in zlib) of the header up to the checksum, then the body.
pub(crate) fn checksum(head: &[u8; HEADER_BYTES], body: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&head[..CHECKSUM_AT]);
    crc.update(body);
    crc.finalize()
}

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

    /// Completes a payload whose body was written behind room for a header.
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
}

impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Payload").field("header", &self.header).field("bytes", &self.bytes.len()).finish()
    }
}

impl Header {
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

/// Compares the checksum that a header holds with that of its bytes.
pub(crate) fn expect_checksum(head: &[u8], body: &[u8]) -> Result<(), PayloadError> {
    let Some(head) = head.first_chunk::<HEADER_BYTES>() else {
        return Err(PayloadError::Truncated { found: head.len() as u64, expected: HEADER_BYTES as u64 });
    };
    let found = u32::from_le_bytes([head[28], head[29], head[30], head[31]]);
    let computed = checksum(head, body);
    if found == computed { Ok(()) } else { Err(PayloadError::Checksum { found, computed }) }
}
