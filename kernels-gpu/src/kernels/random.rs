//! Entries that a seed draws.

use crate::arith::float::{accumulate, canonical};
use crate::arith::memory::rest;
use crate::arith::permutation::place;
use crate::device;
use crate::params::{RandomParams, THREADS, random_flags};

kernel! {
    /// Takes the entries that a seed draws.
    ///
    /// # What
    /// `output[j] = factor * input[i]`, `i` the place of number `p.first + j` (`arith/permutation.rs`). With `TAKE` it
    /// is `residual[i]` in the place of `input[i]`, which becomes `residual[i] - output[j]`, and +0 where the factor is
    /// 1. A factor of 1 leaves the bits of what is no NaN, and a NaN is written as the one NaN.
    ///
    /// With `ADD` nothing is taken: `residual[i] = residual[i] + factor * input[i]`, `i` the number `p.first + j`
    /// itself.
    ///
    /// # Arguments
    /// * `p`; `input`: `p.n` f32. Read without `TAKE`. `residual`: `p.n` f32. Read and written with `TAKE` or `ADD`.
    /// * `output`: `p.entries` f32. Written without `ADD`.
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
    /// 4 bytes per entry. Uncoalesced: a sector of the input per entry, where entries are sparse; with `TAKE` another.
    /// With `ADD` 12 bytes per element.
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
        let factor = f32::from_bits(p.factor);
        if p.flags & random_flags::ADD != 0 {
            let at = (p.first + entry) as usize;
            // SAFETY: the element is there, and no other thread's.
            unsafe { *residual.add(at) = accumulate(*residual.add(at), factor, *input.add(at)) };
            return;
        }
        let at = place(&p, p.first + entry) as usize;
        // SAFETY: a place is below `p.n`, and no other entry's; the entry is there.
        unsafe {
            let take = p.flags & random_flags::TAKE != 0;
            let value = if take { *residual.add(at) } else { *input.add(at) };
            let sent = canonical(value * factor);
            if take {
                *residual.add(at) = rest(value, sent, factor);
            }
            *output.add(entry as usize) = sent;
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
    /// 4 bytes per entry. Uncoalesced: a sector of the output per entry, where entries are sparse; twice with
    /// `ACCUMULATE`.
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
