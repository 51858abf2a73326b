//! The sample: between which two keys the last kept one is likely to lie.

use super::{Buffers, Raw, SLOTS, Sent, prefix};
use crate::arith::topk::{TOGETHER, sampled};
use crate::device::{self, WARP};
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
    /// `1 << samples_log2` blocks a segment; 8 lanes read a sector. The blocks after those make 4096 words zero each.
    ///
    /// # Shared memory
    /// 32 words, and the stage.
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
        let slots_log2 = table(segment::SLOTS_LOG2);
        // No segment has more slots. But the word is in another sector than the others, and is loaded together with
        // them only if this depends on it.
        if (start >= end) | (slots_log2 > SLOTS.ilog2()) {
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
        // SAFETY: as above.
        let sent = unsafe { Sent::load(&p, &b, index) };
        let ranks = [table(segment::RANK_LOW), table(segment::RANK_HIGH)];
        let sample = Sample { slots_log2, start, end, of_segment };
        // SAFETY: the segment's elements are bound. Nothing above depends on anything but the block, so that all
        // threads are here, and the stage was not used.
        let keys = unsafe { keys_of(&p, &b, sent, sample) };
        // SAFETY: as above.
        let [low, high] = unsafe { of_rank(&p, &keys, ranks) };
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

/// What a block samples of a segment.
#[derive(Clone, Copy)]
struct Sample {
    /// Base-2 logarithm of a thread's keys.
    slots_log2: u32,
    /// The first element of the segment that is bound, and the first after those.
    start: u32,
    end: u32,
    /// Which of the segment's blocks this is.
    of_segment: u32,
}

impl Sample {
    /// The first element of the sector of this thread's slot.
    #[inline(always)]
    fn sector(&self, slot: u32) -> u32 {
        let &Self { slots_log2, start, end, of_segment } = self;
        let sector = (slot * THREADS + device::thread()) / TOGETHER;
        let within = sampled(sector, 5 + slots_log2, end - start, of_segment);
        ((start + within) / TOGETHER * TOGETHER).max(start)
    }

    /// The elements of this thread's slots, counted from `first` or [`NONE`], and what `load` makes of them; zero where
    /// there is none.
    ///
    /// # Safety
    /// All lanes of the warp arrive together.
    #[inline(always)]
    unsafe fn each(&self, first: u32, load: impl Fn(usize) -> u32) -> ([u32; SLOTS], [u32; SLOTS]) {
        // A branch for each slot would keep the compiler from computing places side by side.
        const BRANCH: usize = TOGETHER as usize;
        let (mut elements, mut raws) = ([NONE; SLOTS], [0; SLOTS]);
        let of_sector = device::thread() % TOGETHER;
        for branch in 0..SLOTS / BRANCH {
            if branch * BRANCH < 1 << self.slots_log2 {
                // The lanes that read a sector together work out where one of their sectors is each.
                let own = self.sector((branch * BRANCH) as u32 + of_sector);
                for k in 0..BRANCH {
                    let slot = branch * BRANCH + k;
                    // SAFETY: the caller brings all lanes here, as the branch is the block's.
                    let sector = unsafe { device::shuffle(own, device::thread() - of_sector + k as u32) };
                    let element = sector + of_sector;
                    elements[slot] =
                        if slot < 1 << self.slots_log2 && element < self.end { element - first } else { NONE };
                }
                for slot in branch * BRANCH..(branch + 1) * BRANCH {
                    if elements[slot] != NONE {
                        raws[slot] = load(elements[slot] as usize);
                    }
                }
            }
        }
        (elements, raws)
    }
}

/// The keys of a sample; zero where there is no element. The bins are cleared meanwhile.
///
/// # Safety
/// The sample's elements are bound. All threads of the block come here once, and nothing uses the stage before the next
/// barrier.
#[inline(always)]
unsafe fn keys_of(p: &SelectParams, b: &Buffers, sent: Sent, sample: Sample) -> [u32; SLOTS] {
    // One block works on a segment's sample, and nothing else hides its waiting: all loads are on their way before the
    // first is used.
    let (elements, mut raws) = if p.dtype == dtype::F32 {
        // SAFETY: the caller ensures that the element is bound, and brings all lanes here.
        unsafe { sample.each(p.first, |element| *b.input.cast::<u32>().add(element)) }
    } else {
        // SAFETY: as above.
        unsafe { sample.each(p.first, |element| u32::from(*b.input.cast::<u16>().add(element))) }
    };
    // SAFETY: the caller's. No load is waited for before this.
    unsafe { clear_bins() };
    if p.has(select_flags::FEEDBACK) {
        let mut residuals = [0.0; SLOTS];
        for slot in 0..SLOTS {
            if elements[slot] != NONE {
                // SAFETY: as above.
                residuals[slot] = unsafe { *b.residual.add(elements[slot] as usize) };
            }
        }
        for slot in 0..SLOTS {
            // Where there is no element, zero.
            raws[slot] = b.summed(p, sent, elements[slot], raws[slot], residuals[slot]).0;
        }
    }
    let order = p.order();
    raws.map(|raw| order.key(Raw(raw)))
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

/// Bins of a digit: of the first one those of both ranks, of a later one half of them each rank's.
const BINS: u32 = 2048;
/// Base-2 logarithm of the bins of a rank in a later digit.
const LATER_LOG2: u32 = (BINS / 2).ilog2();
/// Bins whose sum is one word, so that each lane has one.
const SUMMED: u32 = BINS / WARP;
/// Neighbouring bins of a thread.
const OWN: u32 = BINS / THREADS;
/// Digits of the longest key. Each has bins of its own, or they would have to be made zero in between.
const DIGITS: u32 = 3;
/// More keys than a block has.
const MANY: u32 = 1 << 16;

const _: () = assert!(DIGITS * BINS <= device::STAGE && OWN == 8 && SUMMED == 2 * WARP && MANY > THREADS * WARP);
const _: () = assert!(31 - BINS.ilog2() == 2 * LATER_LOG2, "three digits are a key");

/// Makes the bins zero, but for the lowest one of each range. It holds [`MANY`] from the start: the key of a rank that
/// no other bin reaches is there.
///
/// # Safety
/// All threads of the block come here once; nothing uses the stage before the next barrier.
#[inline(always)]
unsafe fn clear_bins() {
    let first = device::thread() * OWN;
    for digit in 0..DIGITS {
        let is_lowest = first.is_multiple_of(if digit == 0 { BINS } else { BINS / 2 });
        let lowest = if is_lowest { MANY } else { 0 };
        // SAFETY: the bins are this thread's until the barrier.
        unsafe {
            device::stage_store_four(digit * BINS + first, [lowest, 0, 0, 0].map(f32::from_bits));
            device::stage_store_four(digit * BINS + first + 4, [0.0; 4]);
        }
    }
}

/// Keys from which on as many of the block's keys are as two ranks say, counted from 1 for the largest: zero where
/// there are fewer. Of a rank of zero it is some key.
///
/// Digit by digit from the highest on. The keys of a range are counted in bins by a digit; the bin in which a rank is
/// becomes the range. When exactly enough keys are left, for both ranks, lower digits would tell no more about the
/// sample.
///
/// # Safety
/// All threads of the block arrive together. [`clear_bins`] was called by all; the first 32 words of shared memory are
/// free.
#[inline(always)]
unsafe fn of_rank(p: &SelectParams, keys: &[u32; SLOTS], ranks: [u32; 2]) -> [u32; 2] {
    let mut ranks = ranks.map(|rank| rank.max(1));
    // Keys of halves have 15 bits, and two digits.
    let mut shift = if p.is_half() { 15 } else { 31 } - BINS.ilog2();
    let mut bins = 0;
    // SAFETY: the caller brings all threads here. Bins are made zero, added to, and read, with a barrier in between.
    unsafe {
        device::barrier();
        for slot in 0..SLOTS {
            device::stage_count(keys[slot] >> shift);
        }
        let (mut found, mut is_exact) = reached(bins, &mut ranks, false);
        found = found.map(|bin| bin << shift);
        // The compiler knows nothing of the shift, or it would write the loop out.
        shift = device::opaque(shift);
        while shift != 0 && !is_exact {
            bins += BINS;
            let next = shift.saturating_sub(LATER_LOG2);
            // The lowest bins need no counting.
            let (lowest, width) = (1 << next, (1 << shift) - (1 << next));
            let both = (found[1].wrapping_sub(found[0])).wrapping_add(width);
            for slot in 0..SLOTS {
                // Most keys are in neither range, and a branch costs more than what is in it.
                if keys[slot].wrapping_sub(found[0] + lowest) < both {
                    for k in 0..2 {
                        let offset = keys[slot].wrapping_sub(found[k] + lowest);
                        if offset < width {
                            device::stage_count(bins + k as u32 * (BINS / 2) + 1 + (offset >> next));
                        }
                    }
                }
            }
            let (bin, is) = reached(bins, &mut ranks, true);
            found[0] += bin[0] << next;
            found[1] += (bin[1] - BINS / 2) << next;
            (shift, is_exact) = (next, is);
        }
        found
    }
}

/// The bins that reach two ranks, of a digit's that begin with `bins`, and whether they end at them. The ranks become
/// those among the bins' keys. With `halved`, the first rank's bins are the lower half, and the other's are the upper
/// one.
///
/// # Safety
/// All threads of the block arrive together, and have counted in the bins. The first 32 words of shared memory are
/// free.
#[inline(always)]
unsafe fn reached(bins: u32, ranks: &mut [u32; 2], halved: bool) -> ([u32; 2], bool) {
    let (thread, lane) = (device::thread(), device::thread() % WARP);
    // SAFETY: the caller brings all threads here. Sums are stored between the two barriers, and read after the second
    // one; the next digit's are stored another barrier later.
    unsafe {
        device::barrier();
        let mut sum = 0;
        for k in 0..OWN / 4 {
            let four = device::stage_load_four(bins + thread * OWN + 4 * k).map(f32::to_bits);
            sum += four[0] + four[1] + four[2] + four[3];
        }
        for step in 0..(SUMMED / OWN).ilog2() {
            sum += device::shuffle_xor(sum, 1 << step);
        }
        if lane % (SUMMED / OWN) == 0 {
            device::shared_store(thread / (SUMMED / OWN), sum);
        }
        device::barrier();
        // From the highest bins on: the first lane has those.
        let count = device::shared_load(WARP - 1 - lane);
        let up_to = prefix(count);
        if halved {
            ranks[0] += device::shuffle(up_to, WARP / 2 - 1);
        }
        let (mut found, mut is_exact) = ([0; 2], true);
        for k in 0..2 {
            let place = device::ballot(up_to >= ranks[k]).trailing_zeros();
            ranks[k] -= device::shuffle(up_to - count, place);
            // Two bins a lane.
            let first = (WARP - 1 - place) * SUMMED;
            let [low, high] = device::stage_load_pair(bins + first + SUMMED - 2 - 2 * lane).map(f32::to_bits);
            let both = prefix(low + high);
            let place = device::ballot(both >= ranks[k]).trailing_zeros();
            ranks[k] -= device::shuffle(both - low - high, place);
            let (low, high) = (device::shuffle(low, place), device::shuffle(high, place));
            let is_low = ranks[k] > high;
            ranks[k] -= if is_low { high } else { 0 };
            is_exact &= ranks[k] == if is_low { low } else { high };
            found[k] = first + SUMMED - 1 - 2 * place - u32::from(is_low);
        }
        (found, is_exact)
    }
}
