//! What goes wrong between ranks, and with saved states.

use crate::wire::PayloadError;

/// Why a step between ranks failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// Bytes that are no message of a step.
    #[error(
        "the message of rank {rank} {what}; let every rank run the same release, and call exchange and nothing else"
    )]
    Message {
        /// Who sent it.
        rank: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// Another number of messages than there are ranks.
    #[error("{found} messages were gathered from {expected} ranks; the engine of the group is at fault")]
    Gathered {
        /// How many.
        found: usize,
        /// The ranks.
        expected: u32,
    },
    /// A rank with another model, policy or run.
    #[error("rank {rank} has another run, other tensors or other recipes; give every rank the same")]
    Model {
        /// Which rank.
        rank: u32,
    },
    /// A payload that was damaged on the way, or that no release wrote.
    #[error("the payload of rank {rank} for tensor {tensor} is not readable: {source}")]
    Damaged {
        /// Who sent it.
        rank: u32,
        /// Which tensor it is for, or the first of those that it is for.
        tensor: u64,
        /// What is wrong with it.
        source: PayloadError,
    },
    /// A rank that is at another step.
    #[error(
        "rank {rank} is at step {found}, and this rank is at step {expected}; restore all ranks from states of one step"
    )]
    Step {
        /// Who sent it.
        rank: u32,
        /// Its step.
        found: u64,
        /// This rank's step.
        expected: u64,
    },
    /// A rank that could not do its part of the step.
    #[error(
        "rank {rank} could not do its part of the step, and its own error says why; on every rank the step was not made, and the group can \
         be used again"
    )]
    Refused {
        /// Which rank.
        rank: u32,
    },
    /// A rank that could not do its part of the step, as another one says.
    #[error(
        "rank {by} says that rank {rank} could not do its part of the step; the error of rank {rank} says why, and if it has none, \
         rank {by} is at fault. On every rank the step was not made, and the group can be used again"
    )]
    Told {
        /// Which rank.
        rank: u32,
        /// Who says so.
        by: u32,
    },
    /// Ranks that got different bytes in the step before, so that their means differ.
    #[error(
        "ranks {first} and {rank} got different bytes in step {step}, and so have different means of it; find out which rank or \
         link is at fault, and restore all ranks from states of one step"
    )]
    Parted {
        /// The first rank that knows what it got.
        first: u32,
        /// The first rank that got something else.
        rank: u32,
        /// The step after which they differ.
        step: u64,
    },
    /// NaN or infinity in what a rank sent for a tensor whose recipe has `finite`.
    #[error(
        "rank {rank} sent NaN or infinity, which finite refuses; on every rank the step was not made, and the group can be \
         used again"
    )]
    NotFinite {
        /// Which rank.
        rank: u32,
    },
    /// A sum over the ranks that is not finite, of a tensor whose recipe has `finite`.
    #[error(
        "entry {index} of a sum over the ranks is not finite, which finite refuses; on every rank the step was not made, \
         and the group can be used again"
    )]
    NotFiniteSum {
        /// Its number in the sum.
        index: u64,
    },
    /// What a rank sent is longer than its recipe's bound ([`Recipe::peers_within`](crate::Recipe::peers_within)).
    #[error(
        "rank {rank} sent values of norm {norm}, and peers:norm={bound} is the most that a rank may send; on every rank the step was \
         not made, and the group can be used again. Leave the rank out if it is at fault, or raise the bound"
    )]
    Norm {
        /// Which rank.
        rank: u32,
        /// The L2 norm of what it sent, as text.
        norm: String,
        /// The bound, as text.
        bound: String,
    },
    /// NaN or infinity, where the recipe has no `finite`: the step is skipped. No call returns it.
    #[doc(hidden)]
    #[error("the step is skipped, since the gradient of rank {rank} is not finite")]
    Skipped {
        /// Which rank, or any for a sum.
        rank: u32,
    },
    /// A rank that could not make ready for exchanges that are queued.
    #[error(
        "rank {rank} could not make ready for queued exchanges, and its own error says why; nothing was changed on any rank, and the \
         group can be used again"
    )]
    Unready {
        /// Which rank.
        rank: u32,
    },
    /// A group in which this rank has another number than in the one that memory was made for, or that has other ranks.
    #[error(
        "memory was made for rank {of} of {of_ranks}, and this is rank {rank} of {ranks}; hand over the group that \
         Compressor::queued was given, or call it again for this one"
    )]
    Group {
        /// The rank that it was made for.
        of: u32,
        /// Of how many.
        of_ranks: u32,
        /// This rank.
        rank: u32,
        /// The ranks there are.
        ranks: u32,
    },
    /// A step that was broken off: by a panic in the group, by a device that failed while the step was undone, or by
    /// anything behind the first operation of a step that is queued.
    #[error(
        "an earlier step was broken off, and gradient and state may be half changed; restore a saved state on every rank"
    )]
    BrokenOff,
    /// No step to take back.
    #[error(
        "there is no step to take back: undo comes right behind an exchange that succeeded, once, and not in a clone; \
         restore a saved state"
    )]
    NothingToUndo,
    /// The owner's residual of a piece, in a group where this rank has another piece, or none.
    #[error(
        "the owner's residual is of the piece of rank {of} of {of_ranks}, and this is rank {rank} of {ranks}; save the states and \
         restore them for the new group, which adds it to the residual"
    )]
    Owner {
        /// The rank whose piece it is of.
        of: u32,
        /// Of how many ranks.
        of_ranks: u32,
        /// This rank.
        rank: u32,
        /// The ranks there are.
        ranks: u32,
    },
    /// Another number of payloads than this model has.
    #[error("rank {rank} sent {found} payloads, and {expected} are needed; give every rank the same model and policy")]
    Payloads {
        /// Who sent them.
        rank: u32,
        /// How many.
        found: u64,
        /// How many there should be.
        expected: u64,
    },
    /// A payload that does not fit this model's recipe.
    #[error(
        "the payload of rank {rank} for tensor {tensor} has another {what}; give every rank the same model and policy"
    )]
    Payload {
        /// Who sent it.
        rank: u32,
        /// Which tensor it is for, or the first of those that it is for.
        tensor: u64,
        /// What differs.
        what: &'static str,
    },
}

impl ExchangeError {
    /// Whether every rank finds the same in the messages, so that none goes on with the step.
    pub(super) fn is_known_to_all(&self) -> bool {
        let of_values = matches!(
            self,
            Self::NotFinite { .. } | Self::NotFiniteSum { .. } | Self::Skipped { .. } | Self::Norm { .. }
        );
        of_values || matches!(self, Self::Refused { .. } | Self::Told { .. } | Self::Model { .. })
    }
}

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
        /// What the bytes end with.
        found: u32,
        /// What they give.
        computed: u32,
    },
    /// A field that does not fit the bytes around it.
    #[error("its field {field} is {found}, which no writer writes; take another copy")]
    Field {
        /// Which field.
        field: &'static str,
        /// What it holds.
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
pub(super) const MAGIC: [u8; 4] = *b"GWCO";
/// Version of the format.
pub(super) const VERSION: u32 = 1;
