//! Pieces of a caller's memory, and what a plan asks of each.

use crate::plan::{ROLES, Role};

/// What the passes of a plan do with a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// No pass writes it.
    Read,
    /// Passes write it, and read no more of it than what they write themselves.
    Write,
    /// One pass clears or writes it, and another one reads it.
    Scratch,
}

/// A piece of a caller's memory, and what a plan asks of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<B> {
    pub(crate) what: &'static str,
    pub(crate) buffer: B,
    pub(crate) needed: u64,
    /// Bytes that its address has to be a multiple of for a kernel to read it.
    pub(crate) alignment: u64,
    pub(crate) access: Access,
    /// The buffers of the plan's passes that lie in it, and where they begin.
    pub(crate) roles: [Option<(Role, u64)>; 2],
}

impl<B: Copy> Piece<B> {
    pub(crate) fn new(what: &'static str, buffer: B, needed: u64, roles: [Option<(Role, u64)>; 2]) -> Self {
        Self { what, buffer, needed, alignment: 4, access: Access::Write, roles }
    }

    pub(crate) fn accessed(self, access: Access) -> Self {
        Self { access, ..self }
    }
}

/// The pieces that are used at all: a selection from small blocks has a workspace of no bytes, and any piece will do.
pub(crate) fn used<B: Copy>(pieces: &[Piece<B>]) -> Vec<Piece<B>> {
    pieces.iter().copied().filter(|piece| piece.needed > 0).collect()
}

/// Spreads pieces over the roles that their parts have.
pub(crate) fn by_role<B, T: Copy>(pieces: &[Piece<B>], none: T, part: impl Fn(&Piece<B>, u64) -> T) -> [T; ROLES] {
    let mut parts = [none; ROLES];
    for piece in pieces {
        for (role, offset) in piece.roles.into_iter().flatten() {
            parts[role as usize] = part(piece, offset);
        }
    }
    parts
}
