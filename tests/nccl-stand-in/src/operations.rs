//! The operations of `nccl.h` that are called.

use std::ffi::c_void;

use crate::codes::{INVALID_ARGUMENT, because};
use crate::comm::{Comm, of};
use crate::group::{address, call};
use crate::hub::What;
use crate::work::Step;

/// `ncclSum`.
const SUM: i32 = 0;
/// `ncclFloat32`.
const FLOAT32: i32 = 7;

/// Bytes of so many values of a type.
fn size(count: usize, kind: i32) -> Result<usize, i32> {
    let each = match kind {
        0 | 1 => 1,
        2 | 3 | FLOAT32 => 4,
        _ => return Err(because(INVALID_ARGUMENT, "a type that the stand-in does not have")),
    };
    count.checked_mul(each).ok_or_else(|| because(INVALID_ARGUMENT, "more bytes than there can be"))
}

/// A rank of the communicator.
///
/// # Safety
/// As [`of`].
unsafe fn rank(comm: *mut Comm, rank: i32) -> Result<u32, i32> {
    // SAFETY: as the caller says.
    let ranks = unsafe { of(comm) }?.shared.hub.ranks;
    u32::try_from(rank).ok().filter(|rank| *rank < ranks).ok_or_else(|| because(INVALID_ARGUMENT, "no such rank"))
}

/// Declares operations, each of which becomes a step.
macro_rules! operations {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*; $comm:ident, $stream:ident) $body:block)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($arg: $ty,)* $comm: *mut Comm, $stream: usize) -> i32 {
            let step = || -> Result<Step, i32> { $body };
            // SAFETY: as `nccl.h` has it.
            unsafe { call($comm, $stream, step()) }
        }
    )*};
}

operations! {
    /// As `nccl.h` has it.
    fn ncclAllGather(send: *const c_void, recv: *mut c_void, count: usize, kind: i32; comm, stream) {
        let bytes = size(count, kind)?;
        Ok(Step::All { what: What::Gather { bytes }, from: address(send, bytes)?, to: address(recv, bytes)? })
    }
    /// Sums of f32 alone.
    fn ncclAllReduce(send: *const c_void, recv: *mut c_void, count: usize, kind: i32, op: i32; comm, stream) {
        if kind != FLOAT32 || op != SUM {
            return Err(because(INVALID_ARGUMENT, "the stand-in sums f32 alone"));
        }
        let bytes = size(count, kind)?;
        Ok(Step::All { what: What::Sum { bytes }, from: address(send, bytes)?, to: address(recv, bytes)? })
    }
    /// As `nccl.h` has it.
    fn ncclBroadcast(send: *const c_void, recv: *mut c_void, count: usize, kind: i32, root: i32; comm, stream) {
        let bytes = size(count, kind)?;
        // SAFETY: as `nccl.h` has it.
        let root = unsafe { rank(comm, root) }?;
        Ok(Step::All { what: What::Broadcast { bytes, root }, from: address(send, bytes)?, to: address(recv, bytes)? })
    }
    /// As `nccl.h` has it.
    fn ncclSend(send: *const c_void, count: usize, kind: i32, peer: i32; comm, stream) {
        let bytes = size(count, kind)?;
        // SAFETY: as `nccl.h` has it.
        Ok(Step::Send { peer: unsafe { rank(comm, peer) }?, from: address(send, bytes)?, bytes })
    }
    /// As `nccl.h` has it.
    fn ncclRecv(recv: *mut c_void, count: usize, kind: i32, peer: i32; comm, stream) {
        let bytes = size(count, kind)?;
        // SAFETY: as `nccl.h` has it.
        Ok(Step::Receive { peer: unsafe { rank(comm, peer) }?, to: address(recv, bytes)?, bytes })
    }
}
