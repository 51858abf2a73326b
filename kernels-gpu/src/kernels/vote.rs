//! The majority of many payloads of signs.

use crate::arith::vote::{PLANES, Votes, value};
use crate::device::{self, WARP};
use crate::params::{SPAN, THREADS, VoteParams};

/// Words of a warp, one per lane, and the units of 256 elements that they are.
const UNITS: u32 = 4;

kernel! {
    /// The majority of the signs that payloads have, element by element.
    ///
    /// # What
    /// 1 where more than half of the payloads have the code 1, -1 where fewer have, 0 where half of them have
    /// (`arith/vote.rs`).
    ///
    /// # Arguments
    /// * `p`; `input`: the codes of `p.payloads` payloads one after another, `p.words` words each. Read. `output`:
    ///   `p.n` f32. Written.
    ///
    /// # Thread mapping
    /// A block takes 8192 elements, a lane the 32 of one word of codes.
    ///
    /// # Shared memory
    /// None.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `ceil(p.n / 8192)` of them.
    ///
    /// # Traffic
    /// 4 bytes per element, and a bit per payload.
    ///
    /// # Determinism
    /// Backend to backend.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn sign_vote(p: VoteParams, input: *const u32, output: *mut f32) {
        let (warp, lane) = (device::thread() / WARP, device::thread() % WARP);
        let word = (device::block() * (THREADS / WARP) + warp) * WARP + lane;
        let mut votes = Votes::<PLANES>::NONE;
        if word < p.words {
            let mut at = input.wrapping_add(word as usize);
            let mut voter = 0;
            while voter < p.payloads {
                // SAFETY: the payload has the word.
                votes.add(unsafe { *at });
                at = at.wrapping_add(p.words as usize);
                voter += 1;
            }
        }
        let [above, equal] = votes.outcome(p.payloads);
        let first = device::block() * SPAN + warp * (SPAN / (THREADS / WARP)) + lane;
        for unit in 0..UNITS {
            // An element's bit lies in the byte of its lane.
            let (from, shift) = (unit * 8 + lane / 4, lane % 4 * 8);
            // SAFETY: all lanes are here.
            let (above, equal) = unsafe { (device::shuffle(above, from) >> shift, device::shuffle(equal, from) >> shift) };
            for slot in 0..8 {
                let at = first + unit * 256 + slot * WARP;
                if at < p.n {
                    // SAFETY: the element is there, and no other thread's.
                    unsafe { *output.add(at as usize) = value(above >> slot, equal >> slot) };
                }
            }
        }
    }
}
