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
