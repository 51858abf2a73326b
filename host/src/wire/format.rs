//! What all payloads have in common.

/// Bytes of a payload's header.
pub const HEADER_BYTES: usize = 32;
/// First bytes of every payload.
pub const MAGIC: [u8; 4] = *b"GWIR";
/// Version of the format that this crate writes and reads.
pub const VERSION: u8 = 1;
/// The most elements of a tensor.
pub const MAX_ELEMENTS: u64 = 1 << 31;
