//! The operations, with what all ranks have to agree on.

use std::fmt;

/// An operation, with what all ranks have to agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    AllGather,
    AllToAll,
    AllReduce { values: usize },
    Exchange { peer: u32 },
    Broadcast { root: u32 },
}

impl Op {
    /// The operation as two numbers, for the head of a message.
    #[cfg(any(feature = "mpi", feature = "nccl"))]
    pub(crate) fn to_numbers(self) -> (u32, u64) {
        match self {
            Self::AllGather => (1, 0),
            Self::AllToAll => (2, 0),
            Self::AllReduce { values } => (3, values as u64),
            Self::Exchange { peer } => (4, u64::from(peer)),
            Self::Broadcast { root } => (5, u64::from(root)),
        }
    }

    /// The operation of [`to_numbers`](Self::to_numbers); nothing if there is none.
    #[cfg(any(feature = "mpi", feature = "nccl"))]
    pub(crate) fn from_numbers(kind: u32, number: u64) -> Option<Self> {
        Some(match kind {
            1 => Self::AllGather,
            2 => Self::AllToAll,
            3 => Self::AllReduce { values: usize::try_from(number).ok()? },
            4 => Self::Exchange { peer: u32::try_from(number).ok()? },
            5 => Self::Broadcast { root: u32::try_from(number).ok()? },
            _ => return None,
        })
    }

    /// Whether two ranks that exchange messages under these operations mean the same.
    pub(crate) fn agrees(self, other: Self) -> bool {
        match (self, other) {
            // Each names the other one, or the message would not lie in the box that was opened.
            (Self::Exchange { .. }, Self::Exchange { .. }) => true,
            _ => self == other,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllGather => write!(f, "an all-gather"),
            Self::AllToAll => write!(f, "an all-to-all"),
            Self::AllReduce { values } => write!(f, "an all-reduce of {values} values"),
            Self::Exchange { peer } => write!(f, "an exchange with rank {peer}"),
            Self::Broadcast { root } => write!(f, "a broadcast of rank {root}"),
        }
    }
}
