//! The format of a payload: write, read, validate. `docs/wire.md` describes it to the bit.

mod entropy;
mod error;
mod format;
mod header;
mod index;
mod payload;
mod sparse;

pub use gradwire_kernels::codecs::CodecId;

pub use self::entropy::Entropy;
pub use self::error::PayloadError;
pub use self::format::{HEADER_BYTES, MAGIC, MAX_ELEMENTS, VERSION};
pub use self::header::{Bucket, Header};
pub(crate) use self::header::{CHECKSUM_AT, expect_checksum};
pub use self::index::IndexFormat;
pub(crate) use self::index::Split;
pub use self::payload::Payload;
pub(crate) use self::payload::received;
pub use self::sparse::{SparseHeader, ValueFormat};
