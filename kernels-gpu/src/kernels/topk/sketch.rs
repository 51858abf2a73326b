//! The sketch: every 32nd key of short runs in order, from which the rank of any key is known to within one in 32.

use super::histogram::{add_bin, add_bins, bins_of, clear_bins, count_block, shift_of};
use super::segments::Segment;
use super::{Buffers, Raw, SLOTS, Sent, WARP_TILE, WARPS, load};
use crate::device::{self, WARP};
use crate::params::{
    HISTOGRAM_WORDS, SKETCH_RUN, SKETCH_STEP, SelectParams, TILES_AGAIN, select_flags, source, tiles_per_warp,
};

const _: () = assert!(WARP_TILE == SKETCH_RUN && SLOTS == SKETCH_STEP as usize);

kernel! {
    /// Looks for the last kept key where the filter was to find it; and elsewhere sorts runs of 1024 keys, and keeps
    /// every 32nd.
    ///
    /// # What
    /// The first blocks do what [`topk_histogram`](super::histogram) does, in round 0: what the filter counted tells
    /// which segments are left to the sketch. The others sketch the tiles of those, and count the keys that they keep.
    /// Of a run's keys, the largest first, those at ranks 32, 64, and so on are stored, each raised by 1; zeros where
    /// the run has fewer. Munro and Paterson, "Selection and sorting with limited storage", 1980: of the elements from
    /// any of the stored keys on a run has 32 for each that is stored, and up to 31 more. So two ranks in all runs'
    /// sketches are keys between which the last kept one is, whatever the gradient is.
    ///
    /// # Arguments
    /// * `p`; `input`, or with feedback `residual`: `p.bound` elements. Read.
    /// * `workspace`: as [`topk_histogram`](super::histogram); the sketch is written, where the candidates of filtering
    ///   again will be.
    /// * `indices`, `values`: not used.
    ///
    /// # Thread mapping
    /// First as [`topk_histogram`](super::histogram). Then a block takes 8 tiles one after another, as
    /// [`topk_filter_again`](super::filter) does; a warp a run of each, sorted in registers, so that a lane ends up
    /// with 32 neighbours in order, and stores its last one.
    ///
    /// # Shared memory
    /// 33 words, and 2048 of bins.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, one for each `8 * tiles_per_warp` of `p.tiles` tiles, from `p.first_tile` on, and then
    /// one for each 8.
    ///
    /// # Traffic
    /// As [`topk_histogram`](super::histogram). Then a table entry and a state a segment; for the tiles that are
    /// sketched, 4 bytes per element (2 for the half types), and an eighth of a byte written.
    ///
    /// # Determinism
    /// Backend to backend.
    ///
    /// # Edge cases
    /// Elements of a tile that are not there are below all keys.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn topk_sketch(
        p: SelectParams,
        input: *const u8,
        residual: *mut f32,
        workspace: *mut u32,
        indices: *mut u32,
        values: *mut u32,
    ) {
        let b = Buffers { input, residual, workspace, indices, values };
        let counting = p.tiles.div_ceil(WARPS * tiles_per_warp(p.tiles));
        // SAFETY: the filter ran, by the kernel's contract; all threads are here.
        unsafe {
            if device::block() < counting {
                count_block(&p, &b, device::block());
            } else {
                sketch_block(&p, &b, device::block() - counting);
            }
        }
    }
}

/// Sketches what is left to the sketch of 8 tiles.
///
/// # Safety
/// All threads of the block arrive together; as the kernel asks.
#[inline(always)]
pub(super) unsafe fn sketch_block(p: &SelectParams, b: &Buffers, block: u32) {
    let first = block * TILES_AGAIN;
    let behind = (first + TILES_AGAIN).min(p.tiles);
    let mut of_launch = first;
    while of_launch < behind {
        let tile = p.first_tile + of_launch;
        // SAFETY: all threads are here, for one segment after another, and the table is there by the kernel's contract.
        unsafe {
            let segment = Segment::of_block::<false>(p, b, tile);
            let end = of_launch + segment.tiles_from(tile).min(behind - of_launch);
            if segment.source == source::SKETCH {
                sketch_tiles(p, b, &segment, of_launch, end);
            }
            of_launch = end;
        }
    }
}

/// Sketches tiles of one segment, and counts the keys that are kept of them.
///
/// # Safety
/// As [`sketch_block`].
#[inline(always)]
unsafe fn sketch_tiles(p: &SelectParams, b: &Buffers, segment: &Segment, first: u32, behind: u32) {
    let bins = bins_of(p, segment);
    let histogram = p.histograms + segment.index * HISTOGRAM_WORDS;
    // SAFETY: all threads are here; the bins were used before a barrier, if at all.
    unsafe {
        clear_bins(bins);
        device::barrier();
        let mut of_launch = first;
        while of_launch < behind {
            let key = sketch(p, b, segment, p.first_tile + of_launch);
            let offset = key.wrapping_sub(segment.base);
            add_bin(histogram, offset < segment.span, offset >> shift_of(segment), |_, bin, count| {
                device::bin_add(bin, count);
            });
            of_launch += 1;
        }
        device::barrier();
        add_bins(p, b, histogram, bins);
    }
}

/// Stores a tile's sketch: the lane's word of it.
///
/// # Safety
/// All lanes arrive together; as the kernel asks.
#[inline(always)]
unsafe fn sketch(p: &SelectParams, b: &Buffers, segment: &Segment, tile: u32) -> u32 {
    let (lane, warp) = (device::thread() % WARP, device::thread() / WARP);
    let extent = segment.extent(tile);
    let first = extent.base + warp * WARP_TILE + lane;
    let slots = extent.slots(first);
    let raws = if p.has(select_flags::FEEDBACK) {
        let mut raws = [Raw(0); SLOTS];
        for slot in 0..SLOTS {
            if slots >> slot & 1 != 0 {
                // SAFETY: a tile's elements are bound.
                raws[slot] = unsafe { b.settled(p, (first - p.first) as usize + slot * WARP as usize) };
            }
        }
        raws
    } else {
        // SAFETY: as above; without feedback nothing is written.
        unsafe { load::<false>(p, b, Sent::NOTHING, slots, first) }
    };
    let order = p.order();
    let mut keys = [0; SLOTS];
    for slot in 0..SLOTS {
        keys[slot] = if slots >> slot & 1 != 0 { order.key(raws[slot]) + 1 } else { 0 };
    }
    // SAFETY: all lanes are here; the words are this warp's.
    unsafe {
        sort(&mut keys);
        *b.word(p.sketch(tile) + warp * WARP + lane) = keys[SLOTS - 1];
    }
    keys[SLOTS - 1]
}

/// Sorts the keys of a warp, the largest first: key `j` of lane `i` is the one of rank `32 i + j`. A bitonic network in
/// which all comparisons have one direction: the first step of each phase compares with the mirrored place.
///
/// # Safety
/// All lanes arrive together.
#[inline(always)]
unsafe fn sort(keys: &mut [u32; SLOTS]) {
    // Written out: the compiler unrolls loops over the slots, but not loops of them.
    mirror::<1>(keys);
    mirror::<3>(keys);
    apart::<1>(keys);
    mirror::<7>(keys);
    apart::<2>(keys);
    apart::<1>(keys);
    mirror::<15>(keys);
    apart::<4>(keys);
    apart::<2>(keys);
    apart::<1>(keys);
    mirror::<31>(keys);
    apart::<8>(keys);
    apart::<4>(keys);
    apart::<2>(keys);
    apart::<1>(keys);
    let lane = device::thread() % WARP;
    // The compiler knows nothing of the first phase, or it would write the loop out.
    let mut lanes = device::opaque(2);
    while lanes <= WARP {
        // The mirrored place is in another lane, and there in the mirrored slot.
        let is_low = lane & (lanes >> 1) == 0;
        for slot in 0..SLOTS / 2 {
            let mirror = SLOTS - 1 - slot;
            // SAFETY: the caller brings all lanes here.
            let [other, mirrored] =
                unsafe { [device::shuffle_xor(keys[mirror], lanes - 1), device::shuffle_xor(keys[slot], lanes - 1)] };
            keys[slot] = one_of(is_low, keys[slot], other);
            keys[mirror] = one_of(is_low, keys[mirror], mirrored);
        }
        let mut by = lanes >> 2;
        while by != 0 {
            let is_low = lane & by == 0;
            for slot in 0..SLOTS {
                // SAFETY: as above.
                let other = unsafe { device::shuffle_xor(keys[slot], by) };
                keys[slot] = one_of(is_low, keys[slot], other);
            }
            by >>= 1;
        }
        apart::<16>(keys);
        apart::<8>(keys);
        apart::<4>(keys);
        apart::<2>(keys);
        apart::<1>(keys);
        lanes <<= 1;
    }
}

/// Brings slots in order whose numbers differ in all bits of a mask.
#[inline(always)]
fn mirror<const MASK: usize>(keys: &mut [u32; SLOTS]) {
    for slot in 0..SLOTS {
        if slot < slot ^ MASK {
            in_order(keys, slot, slot ^ MASK);
        }
    }
}

/// Brings slots in order that are so far apart.
#[inline(always)]
fn apart<const BY: usize>(keys: &mut [u32; SLOTS]) {
    for slot in 0..SLOTS {
        if slot & BY == 0 {
            in_order(keys, slot, slot | BY);
        }
    }
}

#[inline(always)]
fn in_order(keys: &mut [u32; SLOTS], before: usize, behind: usize) {
    let (a, b) = (keys[before], keys[behind]);
    keys[before] = a.max(b);
    keys[behind] = a.min(b);
}

#[inline(always)]
fn one_of(larger: bool, a: u32, b: u32) -> u32 {
    if larger { a.max(b) } else { a.min(b) }
}
