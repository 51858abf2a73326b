//! The randomised Hadamard transform of blocks, and back.

use crate::arith::rotation::{ROW_LOG2, block_log2, flip, scale, scaled, signs};
use crate::device::{self, WARP};
use crate::params::{RotateParams, SPAN, THREADS};

/// Elements of a thread, and rows of a warp.
const SLOTS: usize = (SPAN / THREADS) as usize;

/// Warps of a block.
const WARPS: usize = (THREADS / WARP) as usize;

/// Levels whose distance is less than a warp's 1024 elements, and not less than a row.
const OWN_LEVELS: u32 = 5;

/// Levels between warps.
const WARP_LEVELS: u32 = 3;

kernel! {
    /// Rotates blocks of 2^`p.block_log2` elements, or rotates them back.
    ///
    /// # What
    /// Of each block (`arith/rotation.rs`): signs, butterflies of distance 1, 2, 4 and so on, each sum rounded, and one
    /// multiplication; back, the signs come last. A NaN becomes the one NaN.
    ///
    /// # Arguments
    /// * `p`; `input`: `p.n` f32, back `32 p.rows`. Read. `output`: `32 p.rows` f32, back `p.n`. Written.
    ///
    /// # Thread mapping
    /// A block of threads takes 8192 elements, a warp 1024 of them: element `32 j + i` of a warp is slot `j` of lane
    /// `i`.
    ///
    /// # Shared memory
    /// 8 KiB of the stage, by blocks of more than 1024 elements.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(p.rows / 256)` of them.
    ///
    /// # Traffic
    /// 8 bytes per element.
    ///
    /// # Determinism
    /// Backend to backend.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn rotate_blocks(p: RotateParams, input: *const f32, output: *mut f32) {
        let (warp, lane) = (device::thread() / WARP, device::thread() % WARP);
        let first_row = device::block() * (SPAN / WARP) + warp * SLOTS as u32;
        let (from, to) = if p.is_inverse() { (p.rows * WARP, p.n) } else { (p.n, p.rows * WARP) };
        let mut values = [0.0; SLOTS];
        for slot in 0..SLOTS {
            let at = (first_row + slot as u32) * WARP + lane;
            if at < from {
                // SAFETY: the element is there.
                values[slot] = unsafe { *input.add(at as usize) };
            }
        }
        // Lane `i` draws the signs of row `i` of the warp.
        let drawn = signs(p.stream(), p.first_call + (first_row + lane) / 4);
        let low = if lane & 1 == 0 { drawn[0] } else { drawn[1] };
        let high = if lane & 1 == 0 { drawn[2] } else { drawn[3] };
        let own = if lane & 2 == 0 { low } else { high };
        if !p.is_inverse() {
            for slot in 0..SLOTS {
                // SAFETY: all lanes are here.
                values[slot] = flip(values[slot], unsafe { device::shuffle(own, slot as u32) } >> lane);
            }
        }
        // Within a row, which is never more than a block.
        for level in 0..ROW_LOG2 {
            for slot in 0..SLOTS {
                // SAFETY: all lanes are here.
                let other = f32::from_bits(unsafe { device::shuffle_xor(values[slot].to_bits(), 1 << level) });
                values[slot] = other + flip(values[slot], lane >> level);
            }
        }
        // Between rows of the warp. Rows past the end are garbage that no row in front of it meets.
        for level in 0..OWN_LEVELS {
            if ROW_LOG2 + level < p.block_log2 {
                let distance = 1 << level;
                for slot in 0..SLOTS {
                    if slot & distance == 0 {
                        let (a, b) = (values[slot], values[slot | distance]);
                        let meet = block_log2(first_row + slot as u32, p.rows, p.block_log2) > ROW_LOG2 + level;
                        values[slot] = if meet { a + b } else { a };
                        values[slot | distance] = if meet { a - b } else { b };
                    }
                }
            }
        }
        if p.block_log2 > ROW_LOG2 + OWN_LEVELS {
            // Eight rows of each warp at a time: warp `v` takes the `v`-th of all warps.
            for part in 0..SLOTS / WARPS {
                // SAFETY: all threads are here, a word is one thread's between two barriers, and 2048 words are in the
                // stage.
                unsafe {
                    for slot in 0..WARPS {
                        let at = (slot as u32 * WARPS as u32 + warp) * WARP + lane;
                        device::stage_store(at, values[part * WARPS + slot]);
                    }
                    device::barrier();
                    let mut of_warps = [0.0; WARPS];
                    for slot in 0..WARPS {
                        of_warps[slot] = device::stage_load((warp * WARPS as u32 + slot as u32) * WARP + lane);
                    }
                    // The row of warp 0; the other warps' are 32 rows apart.
                    let row = device::block() * (SPAN / WARP) + (part * WARPS) as u32 + warp;
                    for level in 0..WARP_LEVELS {
                        let distance = 1 << level;
                        for slot in 0..WARPS {
                            if slot & distance == 0 {
                                let (a, b) = (of_warps[slot], of_warps[slot | distance]);
                                let of_block = block_log2(row + (slot * SLOTS) as u32, p.rows, p.block_log2);
                                let meet = of_block > ROW_LOG2 + OWN_LEVELS + level;
                                of_warps[slot] = if meet { a + b } else { a };
                                of_warps[slot | distance] = if meet { a - b } else { b };
                            }
                        }
                    }
                    for slot in 0..WARPS {
                        device::stage_store((warp * WARPS as u32 + slot as u32) * WARP + lane, of_warps[slot]);
                    }
                    device::barrier();
                    for slot in 0..WARPS {
                        let at = (slot as u32 * WARPS as u32 + warp) * WARP + lane;
                        values[part * WARPS + slot] = device::stage_load(at);
                    }
                    // What each thread reads here, it alone writes next: no barrier stands between.
                }
            }
        }
        for slot in 0..SLOTS {
            let row = first_row + slot as u32;
            let mut value = values[slot];
            if p.is_inverse() {
                // SAFETY: all lanes are here.
                value = flip(value, unsafe { device::shuffle(own, slot as u32) } >> lane);
            }
            let value = scaled(value, scale(block_log2(row, p.rows, p.block_log2)));
            if row * WARP + lane < to {
                // SAFETY: the element is there, and no other thread's.
                unsafe { *output.add((row * WARP + lane) as usize) = value };
            }
        }
    }
}
