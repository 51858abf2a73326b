//! A plan is data: the passes that encode or decode a tensor, over named buffers, with sizes and launch shapes.
//!
//! A plan knows no backend, and a backend knows no codec: it is handed passes. Everything here is pure.

mod decode;
mod encode;
mod kernel;
mod matrices;
mod policy;
mod role;

use gradwire_kernels::params::{
    DctParams, DecodeParams, EncodeParams, EntropyParams, LowRankParams, MomentumParams, RandomParams, RotateParams,
    SPAN, ScatterParams, SelectParams, TilesParams, VoteParams,
};

pub(crate) use self::decode::check_count;
pub use self::decode::{DecodeMode, DecodePlan};
pub use self::encode::EncodePlan;
pub(crate) use self::encode::{Scale, body_range, check_input, omega};
pub use self::kernel::Kernel;
pub(crate) use self::matrices::{Part, Side, Table};
pub use self::policy::NonFinite;
pub(crate) use self::policy::refuse_not_finite;
pub(crate) use self::role::ROLES;
pub use self::role::{Role, Sizes};
use crate::error::Error;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use crate::kind::BackendKind;

/// Parts of a tensor start at multiples of this many elements, so that the parts' inputs, codes, scalars and
/// statistics all start at multiples of 256 bytes, the coarsest alignment that a device asks of a binding.
const CHUNK_UNIT: u64 = 64 * SPAN as u64;

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
    /// Of the kernel that rotates blocks.
    Rotate(RotateParams),
    /// Of the kernel that transforms blocks by cosines.
    Dct(DctParams),
    /// Of the kernel that puts tiles one behind the other.
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

    /// What it works on.
    pub fn bindings(&self) -> &Bindings {
        &self.bindings
    }

    /// Workgroups of 256 threads.
    pub fn groups(&self) -> u32 {
        self.groups
    }

    /// Whether the kernel takes on trust what it finds in memory, and would read or write elsewhere if that were wrong:
    /// a table of tensors, segments or matrices, indices, what an earlier pass of the plan left.
    ///
    /// [`Session::run`](crate::session::Session::run) refuses such a pass, and
    /// [`Session::run_trusted`](crate::session::Session::run_trusted) runs it.
    pub fn is_trusting(&self) -> bool {
        match self.kernel {
            Kernel::Clear
            | Kernel::FiniteScan
            | Kernel::Momentum
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

/// What bounds a single pass on a device, and what the device promises. Larger tensors take several passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes of one binding.
    pub binding_bytes: u64,
    /// The most workgroups of one launch.
    pub groups: u32,
    /// Whether a workgroup may wait for others of its launch that run, as they go on whatever it does. Passes then hand
    /// over to one another within a launch. CUDA from compute capability 7.0 on; WebGPU promises no such thing.
    pub forward_progress: bool,
    /// Whether several workgroups make the columns of a PowerSGD factor orthonormal. Those of PTX do; a shader gives a
    /// factor to one, and its plans hold other passes.
    pub shares_factors: bool,
}

impl Limits {
    /// No bound but that of the parameters, and no promise. Passes that are planned by it run on any CUDA device, and a
    /// selection takes more launches than it would by the device's own limits.
    pub const NONE: Self =
        Self { binding_bytes: u64::MAX, groups: i32::MAX as u32, forward_progress: false, shares_factors: true };

    /// Checks that passes stay within the limits: those over many tensors are planned once, and may come to another
    /// device.
    pub(crate) fn check(&self, passes: &[Pass]) -> Result<(), Error> {
        for pass in passes {
            let needed = Role::ALL.into_iter().map(|role| pass.bindings.of(role).bytes).max().unwrap_or(0);
            if needed > self.binding_bytes {
                let limit = "max_storage_buffer_binding_size";
                return Err(Error::Limit { limit, found: self.binding_bytes, needed });
            }
            if pass.groups > self.groups {
                let limit = "max_compute_workgroups_per_dimension";
                return Err(Error::Limit { limit, found: self.groups.into(), needed: pass.groups.into() });
            }
        }
        Ok(())
    }

    /// Checks that no kernel waits for what a device does not promise, and that passes are those of its kind of device.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(crate) fn check_kernels(&self, passes: &[Pass], backend: BackendKind) -> Result<(), Error> {
        use gradwire_kernels::params::low_rank_flags;

        if !self.forward_progress && passes.iter().any(|pass| pass.kernel == Kernel::TopKRest) {
            let reason = "this device promises nothing to workgroups that wait for one another, as those of topk_rest do: the passes \
                          were planned for another device; plan them by this one's limits (Limits::forward_progress)"
                .to_owned();
            return Err(Error::Unavailable { backend, reason });
        }
        let shared = passes.iter().any(|pass| pass.kernel == Kernel::PowerSgdProducts);
        // A shader takes the mean and makes the products of columns itself; of blocks that share a factor, an earlier
        // pass does.
        let alone = passes.iter().any(|pass| match pass.params {
            Params::LowRank(p) if pass.kernel == Kernel::PowerSgdFactor => {
                p.has(low_rank_flags::TAKE) || p.has(low_rank_flags::ORTHONORMAL) && !shared
            }
            _ => false,
        });
        let is_other = if self.shares_factors { alone } else { shared };
        if is_other {
            let reason = "these passes of PowerSGD were planned for another kind of device, which shares a factor among its workgroups \
                          otherwise: plan them by this one's limits (Limits::shares_factors)"
                .to_owned();
            return Err(Error::Unavailable { backend, reason });
        }
        Ok(())
    }

    /// Elements of one pass, so that `bytes_per_element` and `per_group` stay within the limits.
    pub(crate) fn chunk(&self, bytes_per_element: u64, per_group: u32) -> Result<u64, Error> {
        let by_bytes = self.binding_bytes / bytes_per_element;
        let by_groups = u64::from(self.groups) * u64::from(per_group);
        let chunk = by_bytes.min(by_groups) / CHUNK_UNIT * CHUNK_UNIT;
        if chunk > 0 {
            return Ok(chunk);
        }
        if by_bytes < CHUNK_UNIT {
            let (found, needed) = (self.binding_bytes, CHUNK_UNIT * bytes_per_element);
            return Err(Error::Limit { limit: "max_storage_buffer_binding_size", found, needed });
        }
        let (found, needed) = (self.groups.into(), CHUNK_UNIT / u64::from(per_group));
        Err(Error::Limit { limit: "max_compute_workgroups_per_dimension", found, needed })
    }
}
