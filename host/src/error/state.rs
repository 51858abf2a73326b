//! Why bytes are not a state.

/// First bytes of every saved state.
pub(crate) const MAGIC: [u8; 4] = *b"GWLR";
/// Version of the format. The first had no outcomes, and did not say whether there is feedback.
pub(crate) const VERSION: u8 = 2;

/// Why bytes are not a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Another number of bytes than there should be.
    #[error("it has {found} bytes, and {expected} are needed; read the file again, whole")]
    Size {
        /// Bytes there are.
        found: u64,
        /// Bytes there should be.
        expected: u64,
    },
    /// Other bytes where the magic should be.
    #[error("it starts with {found:02x?}, and a state starts with {MAGIC:02x?}")]
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
    /// The checksum does not match: the bytes were damaged.
    #[error("its checksum is {found:#010x}, and its bytes give {computed:#010x}: it was damaged; take another copy")]
    Checksum {
        /// The checksum at the end of the bytes.
        found: u32,
        /// What they give.
        computed: u32,
    },
    /// A field that no writer writes.
    #[error("its field {field} is {found}, which no writer writes")]
    Field {
        /// Which field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
    /// A residual or factor with an entry that is NaN or infinite.
    #[error("entry {index} of its numbers is not finite, which no writer writes")]
    NotFinite {
        /// Which, over residuals and factors together.
        index: u64,
    },
    /// A factor with an entry that is finite, and larger than any that a step ends with.
    #[error("entry {index} of its numbers is too large for a factor, which no writer writes")]
    TooLarge {
        /// Which, over residuals and factors together.
        index: u64,
    },
}
