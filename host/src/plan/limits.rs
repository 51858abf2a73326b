//! What a device can run in one pass.

use gradwire_kernels::params::SPAN;

#[cfg(any(feature = "cuda", feature = "wgpu"))]
use super::kernel::Kernel;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use super::pass::Params;
use super::pass::Pass;
use super::role::Role;
use crate::error::Error;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use crate::kind::BackendKind;

/// Parts of a tensor start at multiples of this many elements, so that the parts' inputs, codes, scalars and
/// statistics all start at multiples of 256 bytes, the coarsest alignment that a device asks of a binding.
const CHUNK_UNIT: u64 = 64 * SPAN as u64;

/// The bounds of a single pass on a device, and the promises of the device. Larger tensors take several passes.
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
