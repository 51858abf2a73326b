//! State that every element has from step to step.

use crate::arith::memory::momentum;
use crate::device;
use crate::params::{DECODE_SPAN, MomentumParams, RestoreParams, THREADS};

/// Elements of a thread.
const SLOTS: usize = (DECODE_SPAN / THREADS) as usize;

kernel! {
    /// Adds a gradient to a momentum.
    ///
    /// # What
    /// `momentum[i] = gain * input[i] + factor * momentum[i]`, each operation rounded, for `p.first <= i < p.end`. A
    /// momentum that is not finite counts as 0, and a NaN becomes the one NaN.
    ///
    /// # Arguments
    /// * `p`; `input`: `p.end` f32. Read. `residual`: as many, the momentum. Read and written.
    ///
    /// # Thread mapping
    /// A block takes 2048 elements; slot `j` of thread `i` is the block's element `256 j + i`.
    ///
    /// # Shared memory
    /// None.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(p.end / 2048)` of them.
    ///
    /// # Traffic
    /// 12 bytes per element.
    ///
    /// # Determinism
    /// Backend to backend.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn memory_momentum(p: MomentumParams, input: *const f32, residual: *mut f32) {
        let base = device::block() * DECODE_SPAN + device::thread();
        let (factor, gain) = (f32::from_bits(p.factor), f32::from_bits(p.gain));
        // All loads come before the first use of one.
        let (mut gradients, mut before) = ([0.0; SLOTS], [0.0; SLOTS]);
        for slot in 0..SLOTS {
            let at = base + THREADS * slot as u32;
            if at >= p.first && at < p.end {
                // SAFETY: the element is there.
                unsafe {
                    gradients[slot] = *input.add(at as usize);
                    before[slot] = *residual.add(at as usize);
                }
            }
        }
        for slot in 0..SLOTS {
            let at = base + THREADS * slot as u32;
            if at >= p.first && at < p.end {
                // SAFETY: the element is there, and no other thread's.
                unsafe { *residual.add(at as usize) = momentum(before[slot], factor, gradients[slot], gain) };
            }
        }
    }
}

kernel! {
    /// Takes a step back if it found a number that is not finite.
    ///
    /// # What
    /// Nothing if all `p.words` words of `status` are zero. Else `residual[i] = input[i]` for `i < p.elements`, or with
    /// `p.copies` of zero, `p.fill`.
    ///
    /// # Arguments
    /// * `p`; `input`: `p.elements` words, the copy from before the step, or null. Read. `residual`: as many words.
    ///   Written. `status`: `p.words` words. Read.
    ///
    /// # Thread mapping
    /// A block takes `p.spans` times 2048 contiguous elements; slot `j` of thread `i` is element `256 j + i` of a span.
    /// Each warp reads all of the status.
    ///
    /// # Shared memory
    /// None.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(p.elements / (2048 p.spans))` of them.
    ///
    /// # Traffic
    /// The status if all is finite. Else 8 bytes per element, or 4 with `p.copies` of zero.
    ///
    /// # Determinism
    /// Backend to backend.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn memory_restore(p: RestoreParams, input: *const u32, residual: *mut u32, status: *const u32) {
        let mut found = 0;
        let mut word = device::thread() % device::WARP;
        while word < p.words {
            // SAFETY: the word is there.
            found |= unsafe { *status.add(word as usize) };
            word += device::WARP;
        }
        // SAFETY: all lanes of the warp are here.
        if unsafe { device::fold_max(found) } == 0 {
            return;
        }
        for span in 0..p.spans {
            let base = (device::block() * p.spans + span) * DECODE_SPAN + device::thread();
            // All loads come before the first store.
            let mut values = [p.fill; SLOTS];
            for slot in 0..SLOTS {
                let at = base + THREADS * slot as u32;
                if at < p.elements && p.copies != 0 {
                    // SAFETY: the element is there.
                    values[slot] = unsafe { *input.add(at as usize) };
                }
            }
            for slot in 0..SLOTS {
                let at = base + THREADS * slot as u32;
                if at < p.elements {
                    // SAFETY: the element is there, and no other thread's.
                    unsafe { *residual.add(at as usize) = values[slot] };
                }
            }
        }
    }
}
