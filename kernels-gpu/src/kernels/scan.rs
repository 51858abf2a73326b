//! The scan for elements that are not finite.

use super::tile::{Buffers, Place, UNITS, load, of_item};
use crate::arith::float::{INF_BITS, MAGNITUDE};
use crate::arith::pack::{SLOTS, UNIT};
use crate::device;
use crate::params::EncodeParams;

kernel! {
    /// Leaves where the first element is that is not finite.
    ///
    /// # What
    /// `status[0] = max(status[0], !i)` for every element `i` of the tensor whose value (gradient, or gradient +
    /// residual) is NaN or infinite. Zero stays zero where there is none, and `!status[0]` is the first such index
    /// else.
    ///
    /// # Arguments
    /// * `p`: `n`, `first_unit`, `dtype`, and of `flags` the feedback are read.
    /// * `input`: `n` elements of type `dtype`, aligned to their size. Read.
    /// * `residual`: with feedback, `n` f32. Read. Else null.
    /// * `status`: one word that only this kernel touches meanwhile. Raised.
    /// * `scalars`, `codes`, `workspace`: not used.
    ///
    /// # Thread mapping
    /// A block takes 8192 elements, a warp 1024 of them as four units of 256; slot `j` of lane `i` of a unit is its
    /// element `32 j + i`, so that every load of a warp is consecutive.
    ///
    /// # Shared memory
    /// None.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(n / 8192)` of them, 1 <= n <= 2^31.
    ///
    /// # Traffic
    /// 4 bytes per element (2 for the half types), 4 more with feedback: every element once. A word a warp that holds
    /// an element which is not finite.
    ///
    /// # Determinism
    /// Backend to backend: a maximum does not depend on order.
    ///
    /// # Edge cases
    /// Gradient + residual may overflow to infinity where neither is infinite, and counts.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn finite_scan(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        let b = Buffers { input, residual, scalars, codes, workspace, status };
        // SAFETY: the kernel's contract.
        unsafe { scan(&p, &b, Place::here(), p.first_unit * UNIT as u32) }
    }
}

kernel! {
    /// Leaves where the first element is that is not finite, of many tensors that lie in one buffer.
    ///
    /// # What
    /// As `finite_scan`, with the index counted in the flat buffer; what lies between tensors is not looked at.
    ///
    /// # Arguments
    /// * `p`: `partials`, `base`, `dtype`, and of `flags` the feedback are read.
    /// * `input`, `residual`: as `finite_scan` has them, of the flat buffer.
    /// * `workspace`: the table of [`item`](crate::params::item). Read.
    /// * `status`: as `finite_scan` has it.
    /// * `scalars`, `codes`: not used.
    ///
    /// # Thread mapping
    /// A block takes an item; within it as `finite_scan`.
    ///
    /// # Shared memory
    /// None.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, as many as items from `partials` on.
    ///
    /// # Traffic
    /// As `finite_scan`, and 32 bytes of the table an item.
    ///
    /// # Determinism
    /// Backend to backend: a maximum does not depend on order.
    ///
    /// # Edge cases
    /// As `finite_scan`.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn finite_scan_segments(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        let b = Buffers { input, residual, scalars, codes, workspace, status };
        // SAFETY: the kernel's contract.
        unsafe {
            let (p, b) = of_item(&p, &b);
            scan(&p, &b, Place::in_span(0), p.base);
        }
    }
}

/// The body of the scans; `first` is the index of the launch's first element.
///
/// # Safety
/// As the kernels ask.
#[inline(always)]
unsafe fn scan(p: &EncodeParams, b: &Buffers, place: Place, first: u32) {
    // SAFETY: the kernel's contract covers the input and the residual. Pads are zero, which is finite.
    let tile = unsafe { load::<false>(p, b, place) };
    let mut found = 0;
    for unit in 0..UNITS {
        for slot in 0..SLOTS {
            let index = first + place.element(unit, slot);
            let finite = tile[unit][slot] & MAGNITUDE < INF_BITS;
            found = if finite { found } else { found.max(!index) };
        }
    }
    // SAFETY: all lanes of the warp are here.
    let first = unsafe { device::fold_max(found) };
    // One lane speaks for the warp, or a tensor of NaN would be 2^31 atomic operations on one word.
    if first != 0 && place.lane == 0 {
        // SAFETY: the kernel's contract covers the status word.
        unsafe { device::atomic_max(b.status, first) };
    }
}
