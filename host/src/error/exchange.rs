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
        /// The fault.
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
        /// Its fault.
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
        /// The first rank that knows what it got in that step.
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
        /// The L2 norm of the values that it sent for the tensors of a recipe, as text.
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
    /// anything after the first operation of a step that is queued.
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
    pub(crate) fn is_known_to_all(&self) -> bool {
        let of_values = matches!(
            self,
            Self::NotFinite { .. } | Self::NotFiniteSum { .. } | Self::Skipped { .. } | Self::Norm { .. }
        );
        of_values || matches!(self, Self::Refused { .. } | Self::Told { .. } | Self::Model { .. })
    }
}
