//! Decoding sparse payloads.

use crate::arith::float::{accumulate, canonical};
use crate::device;
use crate::params::{ScatterParams, THREADS, scatter_flags};

kernel! {
    /// Puts the entries of a sparse payload in their places.
    ///
    /// # What
    /// `output[i] = value`, or with `ACCUMULATE` `output[i] = output[i] + weight * value`, for every entry whose index
    /// `i` lies in what is bound of the output. A NaN is written as the one NaN.
    ///
    /// # Arguments
    /// * `p`; `indices`: `p.entries` indices, none twice. Read. `values`: as many f32. Read.
    /// * `output`: the elements from `p.first` on, `p.bound` of them. Written, with `ACCUMULATE` read.
    ///
    /// # Thread mapping
    /// A thread an entry.
    ///
    /// # Shared memory
    /// None.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(p.entries / 256)` of them.
    ///
    /// # Traffic
    /// 8 bytes per entry. Uncoalesced: a sector of the output an entry, where entries are sparse; twice with
    /// `ACCUMULATE`.
    ///
    /// # Determinism
    /// Backend to backend.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn sparse_scatter(p: ScatterParams, indices: *const u32, values: *const f32, output: *mut f32) {
        let entry = device::block() * THREADS + device::thread();
        if entry >= p.entries {
            return;
        }
        // SAFETY: the entry is there.
        let (index, value) = unsafe { (*indices.add(entry as usize), *values.add(entry as usize)) };
        // What lies before the first wraps around, and is not below either.
        let at = index.wrapping_sub(p.first);
        if at >= p.bound {
            return;
        }
        // SAFETY: the element is bound, and no other entry's.
        unsafe {
            let place = output.add(at as usize);
            *place = if p.flags & scatter_flags::ACCUMULATE != 0 {
                accumulate(*place, f32::from_bits(p.weight), value)
            } else {
                canonical(value)
            };
        }
    }
}
