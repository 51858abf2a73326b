//! Why bytes are not a payload.

use super::format::{MAGIC, VERSION};

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
    /// A header field with a value that the format does not allow.
    #[error("its header field {field} is {found}, and {allowed} is allowed")]
    Field {
        /// Which field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The values that are allowed.
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
        /// The checksum in the header.
        found: u32,
        /// The checksum of the bytes.
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
        /// Its fault.
        what: &'static str,
    },
    /// Nothing is wrong with the bytes, but there is no memory for them.
    #[error("{bytes} bytes for the payload cannot be had; free memory, or work on fewer tensors at a time")]
    Memory {
        /// Bytes that were asked for.
        bytes: u64,
    },
}
