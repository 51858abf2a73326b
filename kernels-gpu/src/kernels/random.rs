//! Entries that a seed draws.

use crate::arith::float::{accumulate, canonical};
use crate::arith::permutation::place;
use crate::device;
use crate::params::{RandomParams, THREADS, random_flags};

kernel! {
    /// Takes the entries that a seed draws.
    ///
    /// # What
    /// `output[j] = factor * input[i]`, `i` the place of number `p.first + j` (`arith/permutation.rs`). With `TAKE` it
    /// is `residual[i]` in the place of `input[i]`, which becomes zero. A factor of 1 leaves the bits of what is no
    /// NaN, and a NaN is written as the one NaN.
    ///
    /// # Arguments
    /// * `p`; `input`: `p.n` f32. Read without `TAKE`. `residual`: `p.n` f32. Read and written with it.
    /// * `output`: `p.entries` f32. Written.
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
    /// A sector of the input per entry, where entries are sparse, and 4 bytes. With `TAKE` another sector.
    ///
    /// # Determinism
    /// Backend to backend.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn random_gather(p: RandomParams, input: *const f32, residual: *mut f32, output: *mut f32) {
        let entry = device::block() * THREADS + device::thread();
        if entry >= p.entries {
            return;
        }
        let at = place(&p, p.first + entry) as usize;
        // SAFETY: a place is below `p.n`, and no other entry's; the entry is there.
        unsafe {
            let value = if p.flags & random_flags::TAKE != 0 {
                let own = *residual.add(at);
                *residual.add(at) = 0.0;
                own
            } else {
                *input.add(at)
            };
            *output.add(entry as usize) = canonical(value * f32::from_bits(p.factor));
        }
    }
}

kernel! {
    /// Puts entries in the places that a seed draws.
    ///
    /// # What
    /// `output[i] = factor * values[j]`, or with `ACCUMULATE` `output[i] = output[i] + factor * values[j]`, `i` the
    /// place of number `p.first + j`. A NaN is written as the one NaN.
    ///
    /// # Arguments
    /// * `p`; `values`: `p.entries` f32. Read. `output`: `p.n` f32. Written, with `ACCUMULATE` read.
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
    /// 4 bytes per entry, and a sector of the output, where entries are sparse; twice with `ACCUMULATE`.
    ///
    /// # Determinism
    /// Backend to backend.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn random_scatter(p: RandomParams, values: *const f32, output: *mut f32) {
        let entry = device::block() * THREADS + device::thread();
        if entry >= p.entries {
            return;
        }
        let at = place(&p, p.first + entry) as usize;
        // SAFETY: a place is below `p.n`, and no other entry's; the entry is there.
        unsafe {
            let (place, value) = (output.add(at), *values.add(entry as usize));
            *place = if p.flags & random_flags::ACCUMULATE != 0 {
                accumulate(*place, f32::from_bits(p.factor), value)
            } else {
                canonical(value * f32::from_bits(p.factor))
            };
        }
    }
}
