//! Folding the partial statistics of a tensor that is one bucket: one block, whatever the tensor's length.

use super::quantizer::{FIRST, Measured, second};
use super::statistic::{Statistic, across_warps};
use super::tile::{Buffers, Place};
use crate::arith::fold::Fold;
use crate::device;
use crate::params::{EncodeParams, THREADS, item, whole};

/// A partial statistic, read as one: 16 bytes by an instruction.
#[derive(Clone, Copy, Default)]
#[repr(C, align(16))]
struct Aligned<P>(P);

/// Partial statistics of one tensor.
struct Partials<P> {
    first: *const Aligned<P>,
    count: u32,
}

/// Words in front of the partial statistics: the final statistic's room.
const FINAL_WORDS: usize = 64;

/// Partial statistics that a thread has on their way at a time; one after another would wait for memory each time.
const AHEAD: u32 = 8;

/// Folds the partial statistics of the one tensor of a launch, and writes what they come to and the wire's scalars.
///
/// # Safety
/// As the combine kernels ask.
#[inline(always)]
pub(super) unsafe fn combine<Q: Measured>(p: &EncodeParams, b: &Buffers) {
    // SAFETY: the kernel's contract covers the workspace, which is aligned to 16 bytes.
    unsafe {
        let first = b.workspace.add(FINAL_WORDS).cast();
        let statistic = fold::<Q>(p, &Partials { first, count: p.partials });
        write::<Q>(p, statistic, b.workspace, b.scalars);
    }
}

/// Folds the partial statistics of this block's tensor of the table.
///
/// # Safety
/// As the kernels ask that take many tensors.
#[inline(always)]
pub(super) unsafe fn combine_tensor<Q: Measured>(p: &EncodeParams, b: &Buffers) {
    let at = p.base + (p.partials + device::block()) * whole::WORDS;
    // SAFETY: the kernel's contract has a tensor in the table for each block, and what it says after the status, whose
    // partial statistics begin at multiples of 16 bytes.
    unsafe {
        let word = |index: u32| *b.workspace.add((at + index) as usize);
        let p = EncodeParams { beta: word(whole::BETA), ..*p };
        let first = b.status.add(word(whole::FIRST) as usize).cast();
        let statistic = fold::<Q>(&p, &Partials { first, count: word(whole::COUNT) });
        let to = b.status.add(word(whole::STATISTIC) as usize);
        write::<Q>(&p, statistic, to, b.scalars.add(word(whole::SCALARS) as usize));
    }
}

/// Leaves an item's partial statistic where the table's tensors look for it.
///
/// # Safety
/// As the statistics kernels ask that take many tensors: an item for each block.
#[inline(always)]
pub(super) unsafe fn partial_of_item<Q: Measured>(p: &EncodeParams, b: &Buffers) -> *mut Q::Partial {
    let index = p.partials + device::block();
    // SAFETY: after the status is room for the partial statistic of every item.
    unsafe { b.status.add(whole::PARTIALS as usize).cast::<Q::Partial>().add(index as usize) }
}

/// Where the statistic is of the tensor that this block's item is a part of.
///
/// # Safety
/// As the encode kernels ask that take many tensors: an item for each block.
#[inline(always)]
pub(super) unsafe fn statistic_of_item(p: &EncodeParams, b: &Buffers) -> *mut u32 {
    let at = item::HEADER + (p.partials + device::block()) * item::WORDS;
    // SAFETY: the table has an item for each block, which says where after the status the statistic is.
    unsafe { b.status.add(*b.workspace.add((at + item::STATISTIC) as usize) as usize) }
}

/// The statistic of a bucket that is a whole tensor, from its partial ones. Every thread gets it.
///
/// # Safety
/// All threads of the block arrive together; the partial statistics are there, at least one.
#[inline(always)]
unsafe fn fold<Q: Measured>(p: &EncodeParams, partials: &Partials<Q::Partial>) -> [u32; 2] {
    let place = Place::here();
    // SAFETY: the caller brings all threads of the block here, and the partials are there.
    let first = unsafe { fold_block(place, FIRST, fold_thread(partials, Q::first_of)) };
    let mut total = Q::Total::NONE;
    if Q::looks_again(p) {
        let context = Q::context(first);
        // SAFETY: as above; whether there is a second look is the same for all threads.
        total = unsafe {
            let of_thread = fold_thread(partials, |partial| Q::second_of(partial, context));
            fold_block(place, second::<Q>(), of_thread)
        };
    }
    Q::whole(p, first, total)
}

/// Folds `of` every partial statistic that is this thread's.
///
/// # Safety
/// They are there, and at least one.
#[inline(always)]
unsafe fn fold_thread<P: Copy + Default, S: Statistic>(partials: &Partials<P>, of: impl Fn(P) -> S) -> S {
    let Partials { first: partials, count } = *partials;
    let last = count - 1;
    let mut folded = S::NONE;
    let mut first = device::thread();
    while first <= last {
        let mut ahead = [Aligned(P::default()); AHEAD as usize];
        for k in 0..AHEAD {
            // SAFETY: no index passes the last one's.
            ahead[k as usize] = unsafe { *partials.add((first + k * THREADS).min(last) as usize) };
        }
        for k in 0..AHEAD {
            if first + k * THREADS <= last {
                folded = folded.merge(of(ahead[k as usize].0));
            }
        }
        first += AHEAD * THREADS;
    }
    folded
}

/// Folds what the threads of the block have; every thread gets it.
///
/// # Safety
/// All threads of the block arrive together. `shared` is the first of 8 statistics' words of shared memory, which
/// nothing else uses.
#[inline(always)]
unsafe fn fold_block<S: Statistic>(place: Place, shared: u32, value: S) -> S {
    // SAFETY: the caller brings all threads of the block here, and the words of shared memory are free.
    unsafe { across_warps(place, 3, shared, S::fold_lanes::<1>(place.lane, |_| value)) }
}

/// Writes the final statistic and the wire's scalars.
///
/// # Safety
/// There is room for two words at `to`, and for the codec's scalars at `scalars`.
#[inline(always)]
unsafe fn write<Q: Measured>(p: &EncodeParams, statistic: [u32; 2], to: *mut u32, scalars: *mut u32) {
    let wire = Q::wire(&Q::encoder(p, statistic));
    if device::thread() != 0 {
        return;
    }
    for (word, value) in statistic.iter().enumerate() {
        // SAFETY: the statistic's words are there, and this thread's alone.
        unsafe { *to.add(word) = *value };
    }
    for (scalar, value) in wire[..Q::SCALARS].iter().enumerate() {
        // SAFETY: the bucket's scalars are there, and this thread's alone.
        unsafe { *scalars.add(scalar) = value.to_bits() };
    }
}
