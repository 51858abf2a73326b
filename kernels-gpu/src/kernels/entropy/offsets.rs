//! Where each block's words begin.

use super::{Buffers, Place, before_in_block};
use crate::device;
use crate::params::{EntropyParams, THREADS};

kernel! {
    /// Turns sums of words into what is before each.
    ///
    /// # What
    /// `workspace[i]` becomes the sum of what `workspace[0]` to `workspace[i - 1]` were, and `status[0]` the sum of
    /// all.
    ///
    /// # Arguments
    /// * `p`; `workspace`: `p.sums` words. Read and written.
    /// * `status`: a word. Written.
    /// * `codes`, `values`: not used.
    ///
    /// # Thread mapping
    /// One block; a thread takes every 256th word.
    ///
    /// # Shared memory
    /// 8 words.
    ///
    /// # Launch contract
    /// One block of 256 threads.
    ///
    /// # Traffic
    /// 8 bytes per sum: for each 65,536 codes.
    ///
    /// # Determinism
    /// Backend to backend: sums of integers, modulo 2^32.
    ///
    /// # Edge cases
    /// None.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn entropy_offsets(p: EntropyParams, codes: *mut u8, values: *mut u32, workspace: *mut u32, status: *mut u32) {
        let b = Buffers { codes, values, workspace, status };
        let place = Place::here();
        let (mut base, mut first) = (0u32, 0);
        while first < p.sums {
            let index = first + device::thread();
            // SAFETY: all threads are here, since the bounds are the same for all; the words are there, each one
            // thread's.
            unsafe {
                let at = b.workspace.add(index as usize);
                let (before, sum) = before_in_block(if index < p.sums { *at } else { 0 }, place);
                if index < p.sums {
                    *at = base.wrapping_add(before);
                }
                base = base.wrapping_add(sum);
            }
            first += THREADS;
        }
        if device::thread() == 0 {
            // SAFETY: the word is there.
            unsafe { *b.status = base };
        }
    }
}
