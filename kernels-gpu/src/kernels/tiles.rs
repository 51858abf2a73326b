//! Tiles of a matrix, concatenated, and back.

use crate::device;
use crate::params::{DECODE_SPAN, THREADS, TilesParams};

/// Elements of a thread.
const SLOTS: usize = (DECODE_SPAN / THREADS) as usize;

kernel! {
    /// Concatenates the elements of tiles, or puts them back.
    ///
    /// # What
    /// `output[p.ordered + i] = input[p.place(i)]` for `i < p.n` (`integer/tiles.rs`); back, `output[p.place(i)] =
    /// input[p.ordered + i]`. Bits are kept.
    ///
    /// # Arguments
    /// * `p`; `input`: a word per element, up to the last one that is read. `output`: up to the last one that is
    ///   written. What lies between is left.
    ///
    /// # Thread mapping
    /// A block takes 2048 elements of the order; slot `j` of thread `i` is the block's element `256 j + i`.
    ///
    /// # Shared memory
    /// None.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(p.n / 2048)` of them.
    ///
    /// # Traffic
    /// 8 bytes per element.
    ///
    /// # Determinism
    /// Backend to backend.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn dct_tiles(p: TilesParams, input: *const u32, output: *mut u32) {
        let base = device::block() * DECODE_SPAN + device::thread();
        let (mut words, mut to) = ([0; SLOTS], [0; SLOTS]);
        // All loads come before the first use of one.
        for slot in 0..SLOTS {
            let at = base + THREADS * slot as u32;
            if at < p.n {
                let (lies, ordered) = (p.place(at), p.ordered + at);
                let (from, behind) = if p.is_inverse() { (ordered, lies) } else { (lies, ordered) };
                // SAFETY: the element is there.
                words[slot] = unsafe { *input.add(from as usize) };
                to[slot] = behind;
            }
        }
        for slot in 0..SLOTS {
            if base + THREADS * (slot as u32) < p.n {
                // SAFETY: the element is there, and no other thread's.
                unsafe { *output.add(to[slot] as usize) = words[slot] };
            }
        }
    }
}
