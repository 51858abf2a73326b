//! Tensors that are not compressed, where the state is on the device: they are sent as they are, with the last factor.

use super::{Buffers, Matrix, refused};
use crate::arith::float::{bf16_to_f32, canonical};
use crate::arith::powersgd::kept;
use crate::device;
use crate::params::{LOW_RANK_PLAIN, LOW_RANK_TILE_WORDS, LowRankParams, THREADS, dtype, low_rank_flags, mark};

/// Elements of a thread, all in flight together.
const EACH: usize = (LOW_RANK_PLAIN / THREADS) as usize;

kernel! {
    /// Forms, sends or takes the elements of tensors that are not compressed.
    ///
    /// # What
    /// With `FORM`, gradient + residual, which waits in the workspace; the residual becomes the sum, or stays as it
    /// was if that is not finite. With `SCAN` besides, nothing but the complement of the first such element, in the
    /// status. With `SEND`, what waits is written as it is sent. With `COMMIT`, the means are written to the output,
    /// and the residual becomes zero, but where a mean is not finite: then the tensor is poisoned, and unless it was a
    /// short while ago, or there is no feedback, the residual stays. As `low_rank/plain.rs` of the host crate, bit for
    /// bit.
    ///
    /// # Arguments
    /// * `p`; `input`: with `FORM`, the gradient. Read. `residual`: read with `FORM` and `COMMIT`, and written.
    /// * `workspace`: list of tiles and marks are read; what waits is written with `FORM`, and read with `SEND`; with
    ///   `COMMIT` a tensor's poison is written.
    /// * `output`: with `COMMIT`, written. `values`: with `SEND` written, with `COMMIT` read.
    /// * `status`: with `SCAN` raised, with `GUARDED` read.
    ///
    /// # Thread mapping
    /// A block 2048 elements of a tensor, a thread every 256th.
    ///
    /// # Shared memory
    /// None.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, one for each tile of the list that `p.tiles` tells, from `p.first_tile` on.
    ///
    /// # Traffic
    /// An element once in each buffer. Coalesced; what waits and what is sent begin at any word.
    ///
    /// # Determinism
    /// Backend to backend.
    ///
    /// # Edge cases
    /// A NaN that is sent is the one NaN.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn powersgd_plain(
        p: LowRankParams,
        input: *const u8,
        residual: *mut f32,
        workspace: *mut u32,
        status: *mut u32,
        output: *mut f32,
        values: *mut f32,
    ) {
        let b = Buffers { input, residual, workspace, status, output, values };
        let tile = p.tiles + (p.first_tile + device::block()) * LOW_RANK_TILE_WORDS;
        // SAFETY: the tile is in the list, by the launch contract.
        let word = |at: u32| unsafe { *b.word(tile + at) };
        let (index, first, count, place) = (word(0), word(1) - p.first, word(2), word(3));
        // SAFETY: the elements are bound, and this block's.
        unsafe {
            if p.has(low_rank_flags::SCAN) {
                scan(&p, &b, (first, count));
            } else if p.has(low_rank_flags::COMMIT) {
                take(&p, &b, &Matrix::load(&b, index), (first, count, place));
            } else {
                send(&p, &b, (first, count, place));
            }
        }
    }
}

/// # Safety
/// The elements from `first` on are bound, and no other block's.
#[inline(always)]
unsafe fn send(p: &LowRankParams, b: &Buffers, (first, count, place): (u32, u32, u32)) {
    let own = |j: usize| j as u32 * THREADS + device::thread();
    let (waits, to) = (p.plain + place, p.plain_sent + place);
    let mut totals = [0.0; EACH];
    if p.has(low_rank_flags::FORM) {
        // SAFETY: the caller ensures that the elements are bound, and no other block's.
        unsafe { totals = form(p, b, first, count, !refused(p, b)) };
        for j in 0..EACH {
            if own(j) < count {
                // SAFETY: as many words wait as are in the list.
                unsafe { *b.number(waits + own(j)) = totals[j] };
            }
        }
    } else {
        for j in 0..EACH {
            if own(j) < count {
                // SAFETY: as above; they were formed.
                totals[j] = unsafe { *b.number(waits + own(j)) };
            }
        }
    }
    if p.has(low_rank_flags::SEND) {
        for j in 0..EACH {
            if own(j) < count {
                // SAFETY: the last factor has them after it.
                unsafe { *b.values.add((to + own(j)) as usize) = totals[j] };
            }
        }
    }
}

/// # Safety
/// As [`send`]; only atomic operations touch the status.
#[inline(always)]
unsafe fn scan(p: &LowRankParams, b: &Buffers, (first, count): (u32, u32)) {
    // SAFETY: the caller ensures that the elements are bound, and no other block's.
    let totals = unsafe { form(p, b, first, count, false) };
    for j in 0..EACH {
        let own = j as u32 * THREADS + device::thread();
        if own < count && !totals[j].is_finite() {
            // SAFETY: only atomics touch the status, as the caller ensures.
            unsafe { device::atomic_max(b.status, !(p.first + first + own)) };
        }
    }
}

/// Gradient + residual of a thread's elements. With `write` the residual becomes the sum, unless that is not finite.
///
/// # Safety
/// As [`send`].
#[inline(always)]
unsafe fn form(p: &LowRankParams, b: &Buffers, first: u32, count: u32, write: bool) -> [f32; EACH] {
    let own = |j: usize| j as u32 * THREADS + device::thread();
    let mut raw = [0; EACH];
    if p.dtype == dtype::F32 {
        for j in 0..EACH {
            if own(j) < count {
                // SAFETY: the caller ensures that the element is bound, and no other block's.
                raw[j] = unsafe { *b.input.cast::<u32>().add((first + own(j)) as usize) };
            }
        }
    } else {
        for j in 0..EACH {
            if own(j) < count {
                // SAFETY: the caller ensures that the element is bound, and no other block's.
                raw[j] = u32::from(unsafe { *b.input.cast::<u16>().add((first + own(j)) as usize) });
            }
        }
        if p.dtype == dtype::F16 {
            raw = raw.map(|half| device::half_to_f32(half as u16).to_bits());
        } else {
            raw = raw.map(|half| bf16_to_f32(half as u16).to_bits());
        }
    }
    let mut totals = [0.0; EACH];
    for j in 0..EACH {
        if own(j) < count {
            let mut old = 0.0;
            if p.has(low_rank_flags::FEEDBACK) {
                // SAFETY: the caller ensures that the element is bound, and no other block's.
                old = unsafe { *b.residual.add((first + own(j)) as usize) };
            }
            let total = f32::from_bits(raw[j]) + old;
            if write && p.has(low_rank_flags::FEEDBACK) {
                // SAFETY: the caller ensures that the element is bound, and no other block's.
                unsafe { *b.residual.add((first + own(j)) as usize) = kept(total, old) };
            }
            totals[j] = canonical(total);
        }
    }
    totals
}

/// # Safety
/// As [`send`]; the marks are there, and what becomes of tensors is not written by this launch.
#[inline(always)]
unsafe fn take(p: &LowRankParams, b: &Buffers, matrix: &Matrix, (first, count, place): (u32, u32, u32)) {
    let own = |j: usize| j as u32 * THREADS + device::thread();
    // SAFETY: the caller ensures that the marks are there, and that this launch does not write this one.
    let keeps = p.has(low_rank_flags::FEEDBACK) && unsafe { matrix.mark(p, b, mark::WARY_FOR) } == 0;
    let mut means = [0.0f32; EACH];
    for j in 0..EACH {
        if own(j) < count {
            // SAFETY: the last factor has them after it.
            means[j] = unsafe { *b.values.add((p.plain_sent + place + own(j)) as usize) };
        }
    }
    for j in 0..EACH {
        if own(j) < count {
            let at = (first + own(j)) as usize;
            let finite = means[j].is_finite();
            // SAFETY: the element is bound; of a poison that several threads find, all write the same.
            unsafe {
                *b.output.add(at) = means[j];
                if p.has(low_rank_flags::FEEDBACK) && (finite || !keeps) {
                    *b.residual.add(at) = 0.0;
                }
                if !finite {
                    device::atomic_max(b.word(p.marks + matrix.index * mark::WORDS + mark::POISONED), 1);
                }
            }
        }
    }
}
