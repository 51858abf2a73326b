//! The cosine transform of blocks, and back.

use crate::arith::dct::{
    back_2, back_4, back_8, back_16, back_32, back_64, block_of, row_log2, scale_of, second_2, second_4, second_8,
    second_16, second_32, second_64,
};
use crate::arith::float::canonical;
use crate::arith::rotation::scaled;
use crate::device;
use crate::params::{DCT_SPAN, DctParams, THREADS};

/// Elements of a thread.
const SLOTS: u32 = DCT_SPAN / THREADS;

/// Where an element lies in the stage: a word is left out behind each 64, so that lanes with a row each do not wait for
/// one bank.
#[inline(always)]
fn padded(at: u32) -> u32 {
    at + (at >> 6)
}

/// Transforms a line of 2^`log2` elements of the stage, the first at `at` and the others `stride` behind one another.
///
/// # Safety
/// The line lies in the stage, and between two barriers is this thread's alone.
#[inline(always)]
unsafe fn line(log2: u32, at: u32, stride: u32, is_inverse: bool) {
    macro_rules! of {
        ($n:literal, $second:ident, $back:ident) => {{
            let mut x = [0.0f32; $n];
            for i in 0..$n {
                // SAFETY: the caller's.
                x[i] = unsafe { device::stage_load(padded(at + i as u32 * stride)) };
            }
            let y = if is_inverse { $back(x) } else { $second(x) };
            for i in 0..$n {
                // SAFETY: the caller's.
                unsafe { device::stage_store(padded(at + i as u32 * stride), y[i]) };
            }
        }};
    }
    // By halves, of which the compiler makes no table of jumps. A line of one element is its own transform.
    if log2 < 4 {
        if log2 > 2 {
            of!(8, second_8, back_8);
        } else if log2 > 1 {
            of!(4, second_4, back_4);
        } else if log2 > 0 {
            of!(2, second_2, back_2);
        }
    } else if log2 < 5 {
        of!(16, second_16, back_16);
    } else if log2 < 6 {
        of!(32, second_32, back_32);
    } else {
        of!(64, second_64, back_64);
    }
}

kernel! {
    /// Transforms blocks of 2^`p.block_log2` elements by cosines, or transforms them back.
    ///
    /// # What
    /// Of each block (`arith/dct.rs`): rows, then columns, and one multiplication by the roots of both; back, that
    /// multiplication, columns, and rows. A NaN becomes the one NaN.
    ///
    /// # Arguments
    /// * `p`; `input`: `p.n` f32. Read. `output`: as many. Written.
    ///
    /// # Thread mapping
    /// A block of threads takes 4096 elements: one block, or all smaller ones that lie there. A thread has a line of
    /// the stage, so that of whole blocks 64 threads work.
    ///
    /// # Shared memory
    /// 16 KiB of the stage, and a word behind each 64.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(p.n / 4096)` of them.
    ///
    /// # Traffic
    /// 8 bytes per element.
    ///
    /// # Determinism
    /// Backend to backend.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn dct_blocks(p: DctParams, input: *const f32, output: *mut f32) {
        let (thread, first) = (device::thread(), device::block() * DCT_SPAN);
        let left = p.n - first;
        let here = if left < DCT_SPAN { left } else { DCT_SPAN };
        for slot in 0..SLOTS {
            let at = slot * THREADS + thread;
            if at < here {
                // SAFETY: the element is there.
                let mut value = unsafe { *input.add((first + at) as usize) };
                if p.is_inverse() {
                    let log2 = block_of(first + at, p.n, p.block_log2);
                    value *= scale_of(at & ((1 << log2) - 1), log2);
                }
                // SAFETY: the word is there, and this thread's until the barrier.
                unsafe { device::stage_store(padded(at), value) };
            }
        }
        // SAFETY: all threads are here.
        unsafe { device::barrier() };
        let mut pass = 0;
        while pass < 2 {
            let of_rows = (pass == 0) != p.is_inverse();
            let mut turn = 0;
            while turn < SLOTS {
                let k = turn * THREADS + thread;
                // Lines that are as long as they can be begin at the first turn's elements.
                let at = if of_rows { ((k & 63) << 6) | (k >> 6) } else { k };
                if at < here {
                    let log2 = block_of(first + at, p.n, p.block_log2);
                    let place = at & ((1 << log2) - 1);
                    let of_row = row_log2(log2);
                    let (begins, length, stride) = if of_rows {
                        (place & ((1 << of_row) - 1) == 0, of_row, 1)
                    } else {
                        (place >> of_row == 0, log2 - of_row, 1 << of_row)
                    };
                    if begins {
                        // SAFETY: the line lies within its block, and no two threads have one.
                        unsafe { line(length, at, stride, p.is_inverse()) };
                    }
                }
                turn += 1;
            }
            // SAFETY: all threads are here.
            unsafe { device::barrier() };
            pass += 1;
        }
        for slot in 0..SLOTS {
            let at = slot * THREADS + thread;
            if at < here {
                // SAFETY: the word was written before the barrier.
                let value = unsafe { device::stage_load(padded(at)) };
                let log2 = block_of(first + at, p.n, p.block_log2);
                let scale = scale_of(at & ((1 << log2) - 1), log2);
                let value = if p.is_inverse() { canonical(value) } else { scaled(value, scale) };
                // SAFETY: the element is there, and no other thread's.
                unsafe { *output.add((first + at) as usize) = value };
            }
        }
    }
}
