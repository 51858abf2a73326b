//! Segments of one tile at most: read once, selected in registers.

use super::{Buffers, Extent, SLOTS, Sent, WARP_TILE, WARPS, load};
use crate::device::{self, WARP};
use crate::params::{SelectParams, segment, select_flags};

/// Words of shared memory, after two rows for counts.
const BEFORE: u32 = 2 * WARPS;

kernel! {
    /// Selects the largest of each segment, or of each block of a gradient, of at most 8192 elements.
    ///
    /// # What
    /// The last kept key is found bit by bit, by counting; entries from it on are kept, of those that have it the first
    /// ones, and written in the order of their indices. With feedback, what is selected from is gradient + residual,
    /// and the residual becomes that sum; with `SENT`, zero where an entry is kept.
    ///
    /// # Arguments
    /// * `p`: without segments, blocks of `p.block` elements, of each of which `p.keep` are kept, or all it has.
    /// * `input`: `p.bound` elements. Read. `residual`: with feedback, as many. Read and written. Else null.
    /// * `workspace`: the table is read, if there is one.
    /// * `indices`, `values`: a word for each entry of the whole selection. Written.
    ///
    /// # Thread mapping
    /// A block a segment, a warp 1024 elements of it; with `WARPS`, a warp a segment. Slot `j` of lane `i` is the
    /// warp's element `32 j + i`.
    ///
    /// # Shared memory
    /// 32 words.
    ///
    /// # Launch contract
    /// Blocks of 256 threads, one for each of `p.tiles` segments, or blocks of the gradient, from `p.first_tile` on;
    /// with `WARPS`, for each 8. `p.first` is a multiple of 32, as the place of a tile's first element is.
    ///
    /// # Traffic
    /// 4 bytes per element (2 for the half types; with feedback 4 more, and 4 written), 8 an entry. Uncoalesced: a
    /// segment begins at any element, and its entries at any word; the words of the table are a sector each.
    ///
    /// # Determinism
    /// Backend to backend.
    ///
    /// # Safety
    /// The buffers are as above and stay so until the kernel is done, the launch is as above.
    fn topk_block(
        p: SelectParams,
        input: *const u8,
        residual: *mut f32,
        workspace: *mut u32,
        indices: *mut u32,
        values: *mut u32,
    ) {
        let b = Buffers { input, residual, workspace, indices, values };
        let by_warps = p.has(select_flags::WARPS);
        let mut of_launch = device::block();
        if by_warps {
            of_launch = of_launch * WARPS + device::thread() / WARP;
            // The same in all lanes; no barrier follows.
            if of_launch >= p.tiles {
                return;
            }
        }
        let index = p.first_tile + of_launch;
        let [start, elements, keep, output] = if p.segments > 0 {
            // SAFETY: the segment is in the table, by the launch contract.
            [segment::START, segment::ELEMENTS, segment::KEEP, segment::OUTPUT]
                .map(|word| unsafe { *b.word(index * segment::WORDS + word) })
        } else {
            let start = index * p.block;
            let elements = (p.elements - start).min(p.block);
            [start, elements, p.keep.min(elements), index * p.keep]
        };
        let extent = Extent::new(start, elements, 0);
        let mut sent = Sent::NOTHING;
        if p.segments > 0 {
            // SAFETY: as above.
            sent = unsafe { Sent::load(&p, &b, index) };
        }
        // SAFETY: the kernel's contract; whether a tile is full is the same in all threads.
        unsafe {
            if by_warps {
                select::<false, true>(&p, &b, sent, extent, keep, output);
            } else if extent.is_full() {
                select::<true, false>(&p, &b, sent, extent, keep, output);
            } else {
                select::<false, false>(&p, &b, sent, extent, keep, output);
            }
        }
    }
}

/// # Safety
/// All threads of the block arrive together, with `WARP_ALONE` all lanes of the warp; as the kernel asks.
#[inline(always)]
unsafe fn select<const FULL: bool, const WARP_ALONE: bool>(
    p: &SelectParams,
    b: &Buffers,
    sent: Sent,
    extent: Extent,
    keep: u32,
    output: u32,
) {
    let (lane, warp) = (device::thread() % WARP, if WARP_ALONE { 0 } else { device::thread() / WARP });
    let first = extent.base + warp * WARP_TILE + lane;
    let order = p.order();
    let slots = extent.slots(first);
    // SAFETY: the segment is bound, and this block's, or this warp's.
    let raws = unsafe { load::<FULL>(p, b, sent, slots, first) };
    if keep == 0 {
        return;
    }
    // A key that is not there is below all others, which are raised by 1.
    let keys = core::array::from_fn::<u32, SLOTS, _>(|slot| {
        if FULL || slots >> slot & 1 != 0 { order.key(raws[slot]) + 1 } else { 0 }
    });
    // Slots from there on are empty in every lane: a small segment's warp passes over them.
    let used = if WARP_ALONE { (extent.end - extent.base).div_ceil(WARP) } else { SLOTS as u32 };
    // SAFETY: all threads are here, or all lanes.
    let (last, above) = unsafe { last_kept::<WARP_ALONE>(&keys, used, keep) };
    let ties = keep - above;
    let (mut greater, mut equal) = (0, 0);
    if !WARP_ALONE {
        for slot in 0..SLOTS {
            // Two counts in a word, as no warp has 2^16 elements.
            greater += u32::from(keys[slot] > last) + (u32::from(keys[slot] == last) << 16);
        }
        // SAFETY: all threads are here; nothing else uses the words.
        unsafe {
            greater = super::sum(greater);
            if lane == 0 {
                device::shared_store(BEFORE + warp, greater);
            }
            device::barrier();
        }
        greater = 0;
        for other in 0..WARPS {
            if other < warp {
                // SAFETY: nothing writes the words any more.
                let both = unsafe { device::shared_load(BEFORE + other) };
                greater += both & 0xffff;
                equal += both >> 16;
            }
        }
    }
    let mine = (1u32 << lane) - 1;
    for slot in 0..SLOTS {
        if WARP_ALONE && slot as u32 >= used {
            continue;
        }
        // SAFETY: all lanes are here; an entry's place in the output is its own.
        unsafe {
            let larger = device::ballot(keys[slot] > last);
            let tied = device::ballot(keys[slot] == last);
            let ties_before = equal + (tied & mine).count_ones();
            if keys[slot] > last || (keys[slot] == last && ties_before < ties) {
                let to = (output + greater + (larger & mine).count_ones() + ties_before.min(ties)) as usize;
                let element = first + slot as u32 * WARP;
                *b.indices.add(to) = element;
                // Read once more: kept entries are few, and all values would take as many registers as the keys.
                *b.values.add(to) = b.settled(p, (element - p.first) as usize).bits(p);
                if p.has(select_flags::SENT) {
                    *b.residual.add((element - p.first) as usize) = 0.0;
                }
            }
            greater += larger.count_ones();
            equal += tied.count_ones();
        }
    }
}

/// Slots that are passed over together.
const BATCH: usize = 8;

/// The largest key that at least `keep` keys of the block, or of the warp, reach, and how many are above it.
///
/// # Safety
/// All threads of the block arrive together, or all lanes of the warp, which have `keep` keys that are not 0. The first
/// 16 words of shared memory are free.
#[inline(always)]
unsafe fn last_kept<const WARP_ALONE: bool>(keys: &[u32; SLOTS], used: u32, keep: u32) -> (u32, u32) {
    let (lane, warp) = (device::thread() % WARP, device::thread() / WARP);
    let (mut last, mut above, mut row) = (0, 0, 0);
    // The compiler knows nothing of the first bit, or it would write the loop out 31 times.
    let mut bit = device::opaque(1 << 30);
    while bit != 0 {
        let trial = last | bit;
        let mut count = 0;
        for batch in 0..SLOTS / BATCH {
            if !WARP_ALONE || ((batch * BATCH) as u32) < used {
                for slot in 0..BATCH {
                    count += u32::from(keys[batch * BATCH + slot] >= trial);
                }
            }
        }
        // SAFETY: the caller brings all lanes here.
        count = unsafe { super::sum(count) };
        if !WARP_ALONE {
            // SAFETY: the caller brings all threads here. Two rows in turn: a warp that is ahead writes the other one.
            unsafe {
                if lane == 0 {
                    device::shared_store(row + warp, count);
                }
                device::barrier();
                count = 0;
                for other in 0..WARPS {
                    count += device::shared_load(row + other);
                }
            }
        }
        // Of the trials that too few reach, the last one is the key above the last kept one.
        if count >= keep {
            last = trial;
        } else {
            above = count;
        }
        row ^= WARPS;
        bit >>= 1;
    }
    (last, above)
}
