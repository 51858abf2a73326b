//! The buffers that passes bind, by what they hold.

/// How many roles there are.
pub(crate) const ROLES: usize = 9;

/// A named buffer that passes bind ranges of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The gradient, in its own type.
    Input,
    /// The residual of error feedback, f32.
    Residual,
    /// The wire's scalars.
    Scalars,
    /// The wire's codes.
    Codes,
    /// Scratch between passes.
    Workspace,
    /// Two words: what went wrong.
    Status,
    /// The decoded values, f32.
    Output,
    /// The indices of sparse entries.
    Indices,
    /// Their values, f32; or packed codes with their table.
    Values,
}

impl Role {
    /// Every role, in the order in which kernels take their buffers.
    pub const ALL: [Self; ROLES] = [
        Self::Input,
        Self::Residual,
        Self::Scalars,
        Self::Codes,
        Self::Workspace,
        Self::Status,
        Self::Output,
        Self::Indices,
        Self::Values,
    ];
}

/// Bytes of each buffer of a session, in the order of [`Role::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes(pub [u64; ROLES]);

impl Sizes {
    /// What both need, buffer by buffer the larger.
    pub fn max(self, other: Self) -> Self {
        let mut sizes = self.0;
        for (mine, theirs) in sizes.iter_mut().zip(other.0) {
            *mine = (*mine).max(theirs);
        }
        Self(sizes)
    }

    /// Bytes of one buffer.
    pub fn of(&self, role: Role) -> u64 {
        self.0[role as usize]
    }
}
