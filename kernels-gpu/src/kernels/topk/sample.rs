//! The sample: between which two keys the last kept one is likely to lie.

use super::{Buffers, Raw, SLOTS, Sent, WARPS, sum};
use crate::arith::topk::{TOGETHER, sampled};
use crate::device::{self, OWN_WORDS, WARP};
use crate::params::{SelectParams, THREADS, ZEROED_WORDS, dtype, segment, select_flags};

kernel! {
    /// Guesses a segment's floor and sure key by a sample of it, and makes zero what all that follows adds to.
    ///
    /// # What
    /// Of 256 times `1 << SLOTS_LOG2` keys, sampled in sectors that are spread evenly over what is bound of the
    /// segment, two keys from which on exactly `RANK_LOW` and `RANK_HIGH` of them are, ties aside. Elements above the
    /// former become candidates, those from the latter on are taken for sure. Of several workgroups' answers the lower
    /// floor and the higher sure key count; each is left in words of its own. Whatever they are, the selection is
    /// exact: they decide how long it takes.
    ///
    /// # Arguments
    /// * `p`; `input` and, with feedback, `residual`: `p.bound` elements. Read.
    /// * `workspace`: the table is read; guesses are written, or raised where an earlier part of the gradient had some;
    ///   the room, states, sums and histograms are made zero.
    /// * `indices`, `values`: not used.
    ///
    /// # Thread mapping
    /// `1 << samples_log2` blocks a segment; 8 lanes read a sector. Those behind make 4096 words zero each.
    ///
    /// # Shared memory
    /// 16 words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, `p.tiles << p.samples_log2` of them, the segments from `p.first_tile` on; and any number
    /// more.
    ///
    /// # Traffic
    /// Uncoalesced: a sector for each 8 keys, 1 KiB to 32 KiB per block.
    ///
    /// # Determinism
    /// Run to run. A backend's guesses are its own: where lower bits tell no more about the sample, this one leaves
    /// them out.
    ///
    /// # Edge cases
    /// Of a segment whose floor is fixed, or without a sample, the guess is zero; one of which nothing is bound is left
    /// alone.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn topk_sample(
        p: SelectParams,
        input: *const u8,
        residual: *mut f32,
        workspace: *mut u32,
        indices: *mut u32,
        values: *mut u32,
    ) {
        let b = Buffers { input, residual, workspace, indices, values };
        let (thread, block) = (device::thread(), device::block());
        let sampling = p.tiles << p.samples_log2;
        if block >= sampling {
            let first = (p.counted + block - sampling) * ZEROED_WORDS;
            let mut at = first + thread;
            while at < (first + ZEROED_WORDS).min(p.next) {
                // SAFETY: the word is there, by the launch contract, and this thread's.
                unsafe { *b.word(p.room + at) = 0 };
                at += THREADS;
            }
            return;
        }
        let index = p.first_tile + (block >> p.samples_log2);
        let of_segment = block & ((1 << p.samples_log2) - 1);
        // SAFETY: the segment is in the table, by the launch contract.
        let table = |word: u32| unsafe { *b.word(index * segment::WORDS + word) };
        let start = table(segment::START).max(p.first);
        let end = (table(segment::START) + table(segment::ELEMENTS)).min(p.first + p.bound);
        if start >= end {
            return;
        }
        // SAFETY: the guess is there, and this block's; one thread uses it.
        let guess = unsafe { b.word(p.guesses(index) + 2 * of_segment) };
        if table(segment::FIXED) | table(segment::UNSAMPLED) != 0 {
            if thread == 0 {
                // SAFETY: as above.
                unsafe { leave(guess, [0; 2]) };
            }
            return;
        }
        let slots_log2 = table(segment::SLOTS_LOG2);
        // SAFETY: as above.
        let sent = unsafe { Sent::load(&p, &b, index) };
        let mut elements = [NONE; SLOTS];
        for slot in 0..SLOTS {
            if slot < 1 << slots_log2 {
                let sector = (slot as u32 * THREADS + thread) / TOGETHER;
                let within = sampled(sector, 5 + slots_log2, end - start, of_segment);
                let element = ((start + within) / TOGETHER * TOGETHER).max(start) + thread % TOGETHER;
                if element < end {
                    elements[slot] = element - p.first;
                }
            }
        }
        // SAFETY: those elements are bound.
        let keys = unsafe { keys_of(&p, &b, sent, &elements) };
        let ranks = [table(segment::RANK_LOW), table(segment::RANK_HIGH)];
        // SAFETY: nothing above depends on anything but the block, so that all threads are here.
        let [low, high] = unsafe { of_rank(&keys, ranks) };
        let floor = if ranks[0] == 0 { 0 } else { low + 1 };
        let sure = if ranks[1] == 0 { p.no_key() } else { high };
        if thread == 0 {
            let (mut low, mut high) = (!floor, sure);
            // SAFETY: as above; an earlier launch sampled what is bound before.
            unsafe {
                if table(segment::START) < p.first {
                    low = low.max(*guess);
                    high = high.max(*guess.add(1));
                }
                leave(guess, [low, high]);
            }
        }
    }
}

/// In the place of an element: there is none.
const NONE: u32 = !0;

/// The keys of elements, counted from the first that is bound; zero where there is none.
///
/// # Safety
/// They are bound.
#[inline(always)]
unsafe fn keys_of(p: &SelectParams, b: &Buffers, sent: Sent, elements: &[u32; SLOTS]) -> [u32; SLOTS] {
    // One block works on a segment's sample, and nothing else hides its waiting: all loads are on their way before the
    // first is used.
    let mut raws = [0; SLOTS];
    if p.dtype == dtype::F32 {
        for slot in 0..SLOTS {
            if elements[slot] != NONE {
                // SAFETY: the caller ensures that the element is bound.
                raws[slot] = unsafe { *b.input.cast::<u32>().add(elements[slot] as usize) };
            }
        }
    } else {
        for slot in 0..SLOTS {
            if elements[slot] != NONE {
                // SAFETY: the caller ensures that the element is bound.
                raws[slot] = u32::from(unsafe { *b.input.cast::<u16>().add(elements[slot] as usize) });
            }
        }
    }
    if p.has(select_flags::FEEDBACK) {
        let mut residuals = [0.0; SLOTS];
        for slot in 0..SLOTS {
            if elements[slot] != NONE {
                // SAFETY: the caller ensures that the element is bound.
                residuals[slot] = unsafe { *b.residual.add(elements[slot] as usize) };
            }
        }
        for slot in 0..SLOTS {
            raws[slot] = b.summed(p, sent, elements[slot], raws[slot], residuals[slot]).0;
        }
    }
    let order = p.order();
    let mut keys = [0; SLOTS];
    for slot in 0..SLOTS {
        if elements[slot] != NONE {
            keys[slot] = order.key(Raw(raws[slot]));
        }
    }
    keys
}

/// # Safety
/// Two words are there, and no other thread's.
#[inline(always)]
unsafe fn leave(guess: *mut u32, [low, high]: [u32; 2]) {
    // SAFETY: the caller ensures that both words are there, and no other thread's.
    unsafe {
        *guess = low;
        *guess.add(1) = high;
    }
}

/// A segment's guesses, as one: the complement of the lowest floor, and the highest sure key.
///
/// # Safety
/// All lanes arrive together, with one segment, which was sampled.
#[inline(always)]
pub(super) unsafe fn guessed(p: &SelectParams, b: &Buffers, index: u32) -> [u32; 2] {
    let lane = device::thread() % WARP;
    let mut both = 0;
    // SAFETY: the caller's; two words that are aligned as one of twice the size.
    unsafe {
        if lane < 1 << p.samples_log2 {
            both = *b.word(p.guesses(index) + 2 * lane).cast::<u64>();
        }
        [device::fold_max(both as u32), device::fold_max((both >> 32) as u32)]
    }
}

/// Keys from which on as many of the block's keys are as two ranks say, counted from 1 for the largest: zero where
/// there are fewer.
///
/// Bit by bit from the highest on: a bit is set if that leaves enough keys that are no less. When exactly enough are
/// left, for both ranks, lower bits would tell no more about the sample.
///
/// # Safety
/// All threads of the block arrive together. The first 16 words of shared memory are free.
#[inline(always)]
unsafe fn of_rank(keys: &[u32; SLOTS], ranks: [u32; 2]) -> [u32; 2] {
    let (lane, warp) = (device::thread() % WARP, device::thread() / WARP);
    let halves = [0, OWN_WORDS].map(|first| core::array::from_fn(|k| keys[first + k]));
    let mut found = [0; 2];
    let mut is_exact = ranks.map(|rank| rank == 0);
    let mut row = 0;
    // The compiler knows nothing of the first bit, or it would write the loop out 31 times.
    let mut bit = device::opaque(1 << 30);
    while bit != 0 {
        let trial = [found[0] | bit, found[1] | bit];
        // Both counts in one word: neither passes 8192. A trial is not zero, as its bit is set.
        let [low, high] = trial.map(|trial| {
            let less = (2 * trial).wrapping_neg();
            device::carries(device::carries(0, halves[0], less), halves[1], less).count_ones()
        });
        let mut count = low | high << 16;
        // SAFETY: the caller brings all threads here. Two rows in turn: a warp that is ahead writes the other one.
        unsafe {
            count = sum(count);
            if lane == 0 {
                device::shared_store(row + warp, count);
            }
            device::barrier();
            count = 0;
            for other in 0..WARPS {
                count += device::shared_load(row + other);
            }
        }
        for k in 0..2 {
            let at_least = if k == 0 { count & 0xffff } else { count >> 16 };
            if at_least >= ranks[k] {
                found[k] = trial[k];
                is_exact[k] |= at_least == ranks[k];
            }
        }
        if is_exact[0] && is_exact[1] {
            break;
        }
        row ^= WARPS;
        bit >>= 1;
    }
    found
}
