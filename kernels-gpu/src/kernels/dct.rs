//! The cosine transform of blocks, and back.

use crate::arith::dct::{
    MOST_LOG2, back_2, back_4, back_8, back_16, back_32, block_of, fourth_16, join_back_64, join_fourth, row_log2,
    scale_of, second_2, second_4, second_8, second_16, second_32, split_64, split_back_64,
};
use crate::arith::float::canonical;
use crate::arith::rotation::scaled;
use crate::device;
use crate::params::{DCT_SPAN, DctParams, THREADS};

/// Elements of a thread.
const SLOTS: u32 = DCT_SPAN / THREADS;

/// Elements of the longest line, which four threads share.
const LONG: u32 = 1 << MOST_LOG2;

/// Words from an element of a long column to the next one.
const DOWN: u32 = LONG + 1;

/// Where an element lies in the stage: a word is left out after each 64, so that lanes with a row each do not wait for
/// one bank.
#[inline(always)]
fn padded(at: u32) -> u32 {
    at + (at >> MOST_LOG2)
}

/// Transforms a line of 2^`log2` elements of the stage, the first at `at` and the others `stride` apart.
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
    if log2 < 3 {
        if log2 > 1 {
            of!(4, second_4, back_4);
        } else if log2 > 0 {
            of!(2, second_2, back_2);
        }
    } else if log2 < 4 {
        of!(8, second_8, back_8);
    } else if log2 < 5 {
        of!(16, second_16, back_16);
    } else {
        of!(32, second_32, back_32);
    }
}

/// A thread's quarter of a long line of the stage: of its elements, `STRIDE` words apart.
struct Quarter<const STRIDE: u32> {
    /// Where the line begins.
    at: u32,
    /// Which quarter, the same of all lanes.
    quarter: u32,
}

/// The constants that tell quarters apart, for a method of each.
macro_rules! of_each {
    ($self:ident, $method:ident) => {
        // SAFETY: the caller's.
        unsafe {
            if $self.quarter < 2 {
                if $self.quarter < 1 { $self.$method::<0>() } else { $self.$method::<1>() }
            } else if $self.quarter < 3 {
                $self.$method::<2>()
            } else {
                $self.$method::<3>()
            }
        }
    };
}

/// # Safety
/// Of each method: the line lies in the stage, all four threads are between the same two barriers, and no others use
/// the line there.
impl<const STRIDE: u32> Quarter<STRIDE> {
    #[inline(always)]
    unsafe fn load(&self, element: usize) -> f32 {
        // SAFETY: the caller's.
        unsafe { device::stage_load(self.at + element as u32 * STRIDE) }
    }

    #[inline(always)]
    unsafe fn store(&self, element: usize, value: f32) {
        // SAFETY: the caller's.
        unsafe { device::stage_store(self.at + element as u32 * STRIDE, value) };
    }

    /// Two levels on the way down. After them the line is its four quarters, one after another; back, the first two
    /// are still among one another, and the others lie in the odd elements, from both ends.
    #[inline(always)]
    unsafe fn split(&self, is_inverse: bool) {
        if is_inverse { of_each!(self, split_back) } else { of_each!(self, split_there) }
    }

    #[inline(always)]
    unsafe fn split_there<const Q: usize>(&self) {
        for pair in 0..2 {
            // What both read is what both write.
            let both = [2 * Q + pair, 15 - 2 * Q - pair];
            let mut parts = [[0.0; 4]; 2];
            for side in 0..2 {
                let j = both[side];
                // SAFETY: the caller's.
                let x = unsafe { [self.load(j), self.load(31 - j), self.load(32 + j), self.load(63 - j)] };
                parts[side] = split_64(x, j);
            }
            for side in 0..2 {
                for quarter in 0..4 {
                    // SAFETY: the caller's.
                    unsafe { self.store(16 * quarter + both[side], parts[side][quarter]) };
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn split_back<const Q: usize>(&self) {
        for pair in 0..4 {
            let j = 4 * Q + pair;
            // SAFETY: the caller's.
            unsafe {
                let [along, across] = split_back_64([self.load(2 * j + 1), self.load(63 - 2 * j)], j);
                self.store(2 * j + 1, along);
                self.store(63 - 2 * j, across);
            }
        }
    }

    /// The elements of this quarter.
    #[inline(always)]
    unsafe fn take(&self, is_inverse: bool) -> [f32; 16] {
        let mut x = [0.0; 16];
        let first = self.quarter * if is_inverse { 2 } else { 16 };
        let from = Self { at: self.at + first * STRIDE, quarter: 0 };
        for i in 0..16 {
            // SAFETY: the caller's.
            x[i] = unsafe {
                if !is_inverse {
                    from.load(i)
                } else if self.quarter < 2 {
                    from.load(4 * i)
                } else if self.quarter < 3 {
                    self.load(2 * i + 1)
                } else {
                    self.load(63 - 2 * i)
                }
            };
        }
        x
    }

    /// Puts this quarter's transform where its last levels have it in place.
    #[inline(always)]
    unsafe fn give(&self, y: [f32; 16], is_inverse: bool) {
        let to = Self { at: self.at + (self.quarter % 2 * 2 + self.quarter / 2) * STRIDE, quarter: 0 };
        for i in 0..16 {
            // SAFETY: the caller's.
            unsafe {
                if !is_inverse {
                    if self.quarter < 3 { to.store(4 * i, y[i]) } else { self.store(63 - 4 * i, y[i]) }
                } else if self.quarter < 2 {
                    if self.quarter < 1 { self.store(i, y[i]) } else { self.store(31 - i, y[i]) }
                } else if self.quarter < 3 {
                    self.store(32 + 2 * i, y[i]);
                } else {
                    self.store(if i > 0 { 31 + 2 * i } else { 63 }, y[i]);
                }
            }
        }
    }

    /// Two levels on the way up, of which most is done where the quarters lie.
    #[inline(always)]
    unsafe fn join(&self, is_inverse: bool) {
        if is_inverse { of_each!(self, join_back) } else { of_each!(self, join_there) }
    }

    #[inline(always)]
    unsafe fn join_there<const Q: usize>(&self) {
        for pair in 0..4 {
            let m = 4 * Q + pair;
            if m > 0 {
                // SAFETY: the caller's.
                unsafe {
                    let [low, high] = join_fourth(self.load(4 * m + 1), self.load(4 * m - 1));
                    self.store(4 * m - 1, low);
                    self.store(4 * m + 1, high);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn join_back<const Q: usize>(&self) {
        for pair in 0..2 {
            let m = 2 * Q + pair;
            // SAFETY: the caller's.
            unsafe {
                if m > 0 {
                    let low = join_fourth(self.load(32 + 2 * m), self.load(63 - 2 * m));
                    let high = join_fourth(self.load(64 - 2 * m), self.load(31 + 2 * m));
                    self.join_four(2 * m - 1, [low[0], high[1]]);
                    self.join_four(2 * m, [low[1], high[0]]);
                } else {
                    let ends = [self.load(32), self.load(63)];
                    let middle = join_fourth(self.load(48), self.load(47));
                    self.join_four(0, ends);
                    self.join_four(15, middle);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn join_four(&self, j: usize, fourth: [f32; 2]) {
        // SAFETY: the caller's.
        unsafe {
            let x = join_back_64([self.load(j), self.load(31 - j)], fourth);
            self.store(j, x[0]);
            self.store(31 - j, x[1]);
            self.store(32 + j, x[2]);
            self.store(63 - j, x[3]);
        }
    }
}

/// Transforms the first `lines` rows of 64 elements of the stage, or columns, four threads each.
///
/// # Safety
/// All threads are here, after a barrier, and another one follows.
#[inline(always)]
unsafe fn long_lines(lines: u32, of_rows: bool, is_inverse: bool) {
    let (number, quarter) = (device::thread() % LONG, device::thread() / LONG);
    let is_one = number < lines;
    let (row, column) = (Quarter::<1> { at: number * DOWN, quarter }, Quarter::<DOWN> { at: number, quarter });
    // SAFETY: all threads arrive at each barrier, and between two of them a word is one thread's.
    unsafe {
        if is_one {
            if of_rows { row.split(is_inverse) } else { column.split(is_inverse) }
        }
        device::barrier();
        let mut values = [0.0; 16];
        if is_one {
            values = if of_rows { row.take(is_inverse) } else { column.take(is_inverse) };
            values = if quarter == 1 {
                fourth_16(values)
            } else if quarter == 0 && is_inverse {
                back_16(values)
            } else {
                second_16(values)
            };
        }
        device::barrier();
        if is_one {
            if of_rows { row.give(values, is_inverse) } else { column.give(values, is_inverse) }
        }
        device::barrier();
        if is_one {
            if of_rows { row.join(is_inverse) } else { column.join(is_inverse) }
        }
    }
}

/// Puts an element into the stage; before it is transformed back, times the roots of its place in a block of 2^`log2`.
///
/// # Safety
/// The element is there, and the word is this thread's until the next barrier.
#[inline(always)]
unsafe fn put(p: &DctParams, input: *const f32, first: u32, at: u32, log2: u32) {
    // SAFETY: the caller's.
    let mut value = unsafe { *input.add((first + at) as usize) };
    if p.is_inverse() {
        value *= scale_of(at & ((1 << log2) - 1), log2);
    }
    // SAFETY: the caller's.
    unsafe { device::stage_store(padded(at), value) };
}

/// Writes an element of the stage, times the roots unless it was transformed back.
///
/// # Safety
/// The element is there, and no other thread's; the word was written before the last barrier.
#[inline(always)]
unsafe fn write(p: &DctParams, output: *mut f32, first: u32, at: u32, log2: u32) {
    // SAFETY: the caller's.
    let value = unsafe { device::stage_load(padded(at)) };
    let scale = scale_of(at & ((1 << log2) - 1), log2);
    let value = if p.is_inverse() { canonical(value) } else { scaled(value, scale) };
    // SAFETY: the caller's.
    unsafe { *output.add((first + at) as usize) = value };
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
    /// the stage, or a quarter of one of 64 elements: the levels of the recursion that take it to quarters and back are
    /// steps of their own, between barriers.
    ///
    /// # Shared memory
    /// 16 KiB of the stage, and a word after each 64.
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
        // The largest block of these elements comes first.
        let largest = block_of(first, p.n, p.block_log2);
        let is_whole = largest == 2 * MOST_LOG2;
        if is_whole {
            for slot in 0..SLOTS {
                // SAFETY: all elements are there, and a word is one thread's until the barrier.
                unsafe { put(&p, input, first, slot * THREADS + thread, 2 * MOST_LOG2) };
            }
        } else {
            for slot in 0..SLOTS {
                let at = slot * THREADS + thread;
                if at < here {
                    // SAFETY: as above; the element is there.
                    unsafe { put(&p, input, first, at, block_of(first + at, p.n, p.block_log2)) };
                }
            }
        }
        // SAFETY: all threads are here.
        unsafe { device::barrier() };
        let mut pass = 0;
        while pass < 2 {
            let of_rows = (pass == 0) != p.is_inverse();
            // A block of half as many elements has rows alone that are as long.
            let long = if is_whole {
                LONG
            } else if of_rows && largest == 2 * MOST_LOG2 - 1 {
                LONG / 2
            } else {
                0
            };
            if long > 0 {
                // SAFETY: all threads are here, and a barrier is on either side.
                unsafe { long_lines(long, of_rows, p.is_inverse()) };
            }
            let mut turn = if is_whole { SLOTS } else { 0 };
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
                    if begins && length < MOST_LOG2 {
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
        if is_whole {
            for slot in 0..SLOTS {
                // SAFETY: all elements are there, one thread's each, and written to the stage before the barrier.
                unsafe { write(&p, output, first, slot * THREADS + thread, 2 * MOST_LOG2) };
            }
        } else {
            for slot in 0..SLOTS {
                let at = slot * THREADS + thread;
                if at < here {
                    // SAFETY: as above; the element is there.
                    unsafe { write(&p, output, first, at, block_of(first + at, p.n, p.block_log2)) };
                }
            }
        }
    }
}
