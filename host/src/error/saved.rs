//! Why bytes are not the state of a compressor.

/// Why bytes are not the state of a compressor, or not of this one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SavedError {
    /// Another number of bytes than there should be.
    #[error("it has {found} bytes, and {expected} are needed; read the file again, whole")]
    Size {
        /// Bytes there are.
        found: u64,
        /// Bytes there should be.
        expected: u64,
    },
    /// Other bytes where the magic should be.
    #[error("it starts with {found:02x?}, and the state of a compressor starts with {MAGIC:02x?}")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// A version of the format that this crate does not read.
    #[error(
        "it has format version {found}, and this build reads version {VERSION}; use the release that wrote it, or a newer one"
    )]
    Version {
        /// The version.
        found: u32,
    },
    /// The checksum does not match: the bytes were damaged.
    #[error("its checksum is {found:#010x}, and its bytes give {computed:#010x}: it was damaged; take another copy")]
    Checksum {
        /// The checksum at the end of the bytes.
        found: u32,
        /// What they give.
        computed: u32,
    },
    /// A field that does not fit the bytes around it.
    #[error("its field {field} is {found}, which no writer writes; take another copy")]
    Field {
        /// Which field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
    /// Residuals or momenta of cosine coefficients, whose blocks are of other tensors.
    #[error(
        "its residuals and momenta are coefficients of blocks of {found}, and this one has blocks of {expected}; exchange \
         the same tensors in the same order, leave out dct, or begin anew"
    )]
    Blocks {
        /// The tensors there, in their order.
        found: String,
        /// The tensors here.
        expected: String,
    },
    /// A state of another model or policy.
    #[error(
        "it is of a compressor with {what} {found}, and this one has {expected}; make the compressor that the state was saved from"
    )]
    Other {
        /// What differs.
        what: &'static str,
        /// In the state.
        found: String,
        /// In this compressor.
        expected: String,
    },
    /// No state at all, or a rank that is not in the group.
    #[error(
        "rank {rank} of {ranks} was asked for, from {states} states; hand over the states of all ranks that were saved, and a rank below the number of ranks"
    )]
    Ranks {
        /// The rank.
        rank: u32,
        /// Of how many.
        ranks: u32,
        /// States that were handed over.
        states: usize,
    },
}

/// First bytes of every saved state of a compressor.
pub(crate) const MAGIC: [u8; 4] = *b"GWCO";
/// Version of the format.
pub(crate) const VERSION: u32 = 1;
