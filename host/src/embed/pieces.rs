//! Pieces of a caller's memory, and what a plan asks of each.

use crate::gradient::Dtype;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use crate::plan::ROLES;
use crate::plan::Role;

/// How the passes of a plan use a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// No pass writes it.
    Read,
    /// Passes write it, and read no more of it than what they write themselves.
    Write,
    /// One pass clears or writes it, and another one reads it.
    Scratch,
}

/// A piece of a caller's memory, and what a plan asks of it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Piece<B> {
    /// Its name, as errors have it.
    pub what: &'static str,
    /// How a backend names it.
    pub buffer: B,
    /// Bytes of it that are used; zero if it is not looked at.
    pub needed: u64,
    /// Bytes that its address has to be a multiple of on CUDA. On the host, floats and indices need the alignment of
    /// their type.
    pub alignment: u64,
    /// How it is used.
    pub access: Access,
    /// Bytes from its start on that hold, beforehand, what the work reads.
    pub before: u64,
    /// Bytes from its start on that the work leaves for its caller.
    pub after: u64,
    /// The type of its elements, if it holds floats.
    pub dtype: Option<Dtype>,
    /// The buffers of the plan's passes that lie in it, and where they begin.
    pub(crate) roles: [Option<(Role, u64)>; 2],
}

impl<B> Piece<B> {
    pub(crate) fn new(what: &'static str, buffer: B, needed: u64, roles: [Option<(Role, u64)>; 2]) -> Self {
        Self { what, buffer, needed, alignment: 4, access: Access::Write, before: 0, after: needed, dtype: None, roles }
    }

    /// A piece that is read alone.
    pub(crate) fn read(self) -> Self {
        Self { access: Access::Read, before: self.needed, after: 0, ..self }
    }

    /// A piece that is written, and read before.
    pub(crate) fn updated(self) -> Self {
        Self { before: self.needed, ..self }
    }

    /// A piece that is scratch, but for its first bytes: the work reads `before` of them, and keeps `after`.
    pub(crate) fn scratch(self, before: u64, after: u64) -> Self {
        Self { access: Access::Scratch, before, after, ..self }
    }

    /// A piece of floats.
    pub(crate) fn floats(what: &'static str, buffer: B, count: u64, role: Role) -> Self {
        Self { dtype: Some(Dtype::F32), ..Self::new(what, buffer, 4 * count, [Some((role, 0)), None]) }
    }

    /// A gradient, which is read.
    pub(crate) fn gradient(buffer: B, elements: u64, dtype: Dtype) -> Self {
        let size = dtype.bytes() as u64;
        let piece = Self::new("gradient", buffer, elements * size, [Some((Role::Input, 0)), None]);
        Self { alignment: size, dtype: Some(dtype), ..piece.read() }
    }

    /// The same piece, under another name of a backend's.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(crate) fn map<C>(self, name: impl FnOnce(B) -> C) -> Piece<C> {
        let Self { what, buffer, needed, alignment, access, before, after, dtype, roles } = self;
        Piece { what, buffer: name(buffer), needed, alignment, access, before, after, dtype, roles }
    }
}

/// The pieces that are used at all: a selection from small blocks has a workspace of no bytes, and any piece will do.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) fn used<B: Copy>(pieces: &[Piece<B>]) -> Vec<Piece<B>> {
    pieces.iter().copied().filter(|piece| piece.needed > 0).collect()
}

/// Spreads pieces over the roles that their parts have.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) fn by_role<B, T: Copy>(pieces: &[Piece<B>], none: T, part: impl Fn(&Piece<B>, u64) -> T) -> [T; ROLES] {
    let mut parts = [none; ROLES];
    for piece in pieces {
        for (role, offset) in piece.roles.into_iter().flatten() {
            parts[role as usize] = part(piece, offset);
        }
    }
    parts
}
