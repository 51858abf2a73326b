//! What is kept of every element from step to step.

use crate::arith::memory::momentum;
use crate::device;
use crate::params::{DECODE_SPAN, MomentumParams, THREADS};

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
