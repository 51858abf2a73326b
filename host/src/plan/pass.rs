//! A pass: a kernel, its argument, and the ranges of buffers that it works on.

use gradwire_kernels::params::{
    DctParams, DecodeParams, EncodeParams, EntropyParams, LowRankParams, MomentumParams, RandomParams, RestoreParams,
    RotateParams, ScatterParams, SelectParams, TilesParams, VoteParams,
};

use super::kernel::Kernel;
use super::role::Role;

/// Every region of a device buffer starts at a multiple of this.
pub(crate) const ALIGNMENT: u64 = 256;

/// Bytes of the status buffer.
pub const STATUS_BYTES: u64 = 8;

/// A kernel's argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Params {
    /// Of the scan, statistics, combine and encode kernels.
    Encode(EncodeParams),
    /// Of the decode kernels.
    Decode(DecodeParams),
    /// Of the top-k kernels.
    Select(SelectParams),
    /// Of the kernel that decodes sparse payloads.
    Scatter(ScatterParams),
    /// Of the kernel that adds a gradient to a momentum.
    Momentum(MomentumParams),
    /// Of the kernel that takes a step back.
    Restore(RestoreParams),
    /// Of the kernel that rotates blocks.
    Rotate(RotateParams),
    /// Of the kernel that transforms blocks by cosines.
    Dct(DctParams),
    /// Of the kernel that puts tiles one after another.
    Tiles(TilesParams),
    /// Of the kernel that counts votes.
    Vote(VoteParams),
    /// Of the kernel that takes the entries that a seed draws.
    Gather(RandomParams),
    /// Of the kernel that puts entries in the places that a seed draws.
    Spread(RandomParams),
    /// Of the PowerSGD kernels.
    LowRank(LowRankParams),
    /// Of the kernels that pack codes, and unpack them.
    Entropy(EntropyParams),
}

impl Params {
    /// The argument's bytes, as PTX and WGSL take them.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Encode(p) => bytemuck::bytes_of(p),
            Self::Decode(p) => bytemuck::bytes_of(p),
            Self::Select(p) => bytemuck::bytes_of(p),
            Self::Scatter(p) => bytemuck::bytes_of(p),
            Self::Momentum(p) => bytemuck::bytes_of(p),
            Self::Restore(p) => bytemuck::bytes_of(p),
            Self::Rotate(p) => bytemuck::bytes_of(p),
            Self::Dct(p) => bytemuck::bytes_of(p),
            Self::Tiles(p) => bytemuck::bytes_of(p),
            Self::Vote(p) => bytemuck::bytes_of(p),
            Self::Gather(p) | Self::Spread(p) => bytemuck::bytes_of(p),
            Self::LowRank(p) => bytemuck::bytes_of(p),
            Self::Entropy(p) => bytemuck::bytes_of(p),
        }
    }
}

/// A range of bytes of a named buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First byte. A multiple of 256.
    pub offset: u64,
    /// Bytes. Zero where the kernel does not use the buffer.
    pub bytes: u64,
}

/// The ranges that a pass works on; a kernel reads and writes nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bindings {
    /// The gradient, in its own type. Read.
    pub input: Span,
    /// The residual, f32. Read, and written by the encode kernels.
    pub residual: Span,
    /// The wire's scalars.
    pub scalars: Span,
    /// The wire's codes.
    pub codes: Span,
    /// Scratch between passes.
    pub workspace: Span,
    /// Two words: what went wrong.
    pub status: Span,
    /// The decoded values, f32.
    pub output: Span,
    /// The indices of sparse entries.
    pub indices: Span,
    /// Their values, f32; or packed codes with their table.
    pub values: Span,
    /// Whether the pass was moved to another tensor's place.
    pub(crate) moved: bool,
}

impl Bindings {
    /// The range of a buffer.
    pub fn of(&self, role: Role) -> Span {
        match role {
            Role::Input => self.input,
            Role::Residual => self.residual,
            Role::Scalars => self.scalars,
            Role::Codes => self.codes,
            Role::Workspace => self.workspace,
            Role::Status => self.status,
            Role::Output => self.output,
            Role::Indices => self.indices,
            Role::Values => self.values,
        }
    }

    fn of_mut(&mut self, role: Role) -> &mut Span {
        match role {
            Role::Input => &mut self.input,
            Role::Residual => &mut self.residual,
            Role::Scalars => &mut self.scalars,
            Role::Codes => &mut self.codes,
            Role::Workspace => &mut self.workspace,
            Role::Status => &mut self.status,
            Role::Output => &mut self.output,
            Role::Indices => &mut self.indices,
            Role::Values => &mut self.values,
        }
    }
}

/// One launch of one kernel. Only a plan makes one, so that its parameters and its bindings agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    pub(crate) kernel: Kernel,
    pub(crate) params: Params,
    pub(crate) bindings: Bindings,
    pub(crate) groups: u32,
}

impl Pass {
    /// The same pass over ranges that begin later, by as many bytes of each buffer as `by` says: over another of
    /// several tensors that lie one after another in a session's buffers. The bytes have to be multiples of 256:
    /// sessions refuse ranges that begin elsewhere.
    ///
    /// Sessions on the CPU hold one tensor, and refuse passes that were moved to another.
    pub fn moved(&self, by: impl Fn(Role) -> u64) -> Self {
        let mut moved = *self;
        for role in Role::ALL {
            let span = moved.bindings.of_mut(role);
            if span.bytes > 0 {
                let shift = by(role);
                // Saturated, it lies beyond every buffer, and sessions refuse it.
                span.offset = span.offset.saturating_add(shift);
                moved.bindings.moved |= shift != 0;
            }
        }
        moved
    }

    /// Which kernel.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Its argument.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The buffers that it works on.
    pub fn bindings(&self) -> &Bindings {
        &self.bindings
    }

    /// Workgroups of 256 threads.
    pub fn groups(&self) -> u32 {
        self.groups
    }

    /// Whether the kernel trusts the contents of memory, and would read or write elsewhere if that were wrong:
    /// a table of tensors, segments or matrices, indices, what an earlier pass of the plan left.
    ///
    /// [`Session::run`](crate::session::Session::run) refuses such a pass, and
    /// [`Session::run_trusted`](crate::session::Session::run_trusted) runs it.
    pub fn is_trusting(&self) -> bool {
        match self.kernel {
            Kernel::Clear
            | Kernel::FiniteScan
            | Kernel::Momentum
            | Kernel::Restore
            | Kernel::Rotate
            | Kernel::Dct
            | Kernel::Tiles
            | Kernel::Vote
            | Kernel::RandomGather
            | Kernel::RandomScatter
            | Kernel::Stats(_)
            | Kernel::Combine(_)
            | Kernel::Decode(_) => false,
            // Of a tensor that is one bucket, the statistic of all elements; else each bucket's is worked out here.
            Kernel::Encode(_) => self.bindings.workspace.bytes > 0,
            _ => true,
        }
    }
}
