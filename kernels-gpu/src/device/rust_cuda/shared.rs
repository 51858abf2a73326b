//! A block's shared memory: words, bins, and a stage for parts of matrices.

use core::sync::atomic::{AtomicU32, Ordering};

use cuda_std::shared_array;

/// The block's words.
#[inline(always)]
fn words() -> *mut u32 {
    shared_array![u32; crate::device::sizes::SHARED_WORDS]
}

/// The block's bins.
#[inline(always)]
fn bins() -> *mut u32 {
    shared_array![u32; crate::device::sizes::BINS as usize]
}

/// The block's stage, aligned for the widest that lies in it.
#[inline(always)]
fn stage() -> *mut f64 {
    shared_array![f64; crate::device::sizes::STAGE as usize / 2]
}

/// Writes a word of the block's shared memory.
///
/// # Safety
/// `index` is below [`super::super::sizes::SHARED_WORDS`], and no other thread touches the word between two barriers.
#[inline(always)]
pub(crate) unsafe fn shared_store(index: u32, value: u32) {
    // SAFETY: the caller keeps the index in the array and to itself.
    unsafe { words().add(index as usize).write_volatile(value) }
}

/// Reads a word of the block's shared memory.
///
/// # Safety
/// `index` is below [`super::super::sizes::SHARED_WORDS`], and no thread writes the word between the same two barriers.
#[inline(always)]
pub(crate) unsafe fn shared_load(index: u32) -> u32 {
    // SAFETY: the caller keeps the index in the array. Volatile, so that it stays between its barriers.
    unsafe { words().add(index as usize).read_volatile() }
}

/// Writes four words of the block's shared memory, from word `INDEX` on.
///
/// # Safety
/// As [`shared_store`], for all four.
#[inline(always)]
pub(crate) unsafe fn shared_store_four<const INDEX: u32>(of: [u32; 4]) {
    for (word, value) in (INDEX..).zip(of) {
        // SAFETY: the caller keeps the contract of `shared_store` for all four words.
        unsafe { shared_store(word, value) }
    }
}

/// Reads four words of the block's shared memory, from word `INDEX` on.
///
/// # Safety
/// As [`shared_load`], for all four.
#[inline(always)]
pub(crate) unsafe fn shared_load_four<const INDEX: u32>() -> [u32; 4] {
    // SAFETY: the caller keeps the contract of `shared_load` for all four words.
    [0, 1, 2, 3].map(|word| unsafe { shared_load(INDEX + word) })
}

/// Writes two words of the block's shared memory, from `2 index` words after word `FIRST` on.
///
/// # Safety
/// As [`shared_store`], for both.
#[inline(always)]
pub(crate) unsafe fn shared_store_pair<const FIRST: u32>(index: u32, of: [u32; 2]) {
    for (word, value) in (FIRST + 2 * index..).zip(of) {
        // SAFETY: the caller keeps the contract of `shared_store` for both words.
        unsafe { shared_store(word, value) }
    }
}

/// Reads two words of the block's shared memory, from `2 index` words after word `FIRST` on.
///
/// # Safety
/// As [`shared_load`], for both.
#[inline(always)]
pub(crate) unsafe fn shared_load_pair<const FIRST: u32>(index: u32) -> [u32; 2] {
    // SAFETY: the caller keeps the contract of `shared_load` for both words.
    [0, 1].map(|word| unsafe { shared_load(FIRST + 2 * index + word) })
}

/// Writes four words of the block's shared memory, from `4 index` words after word `FIRST` on.
///
/// # Safety
/// As [`shared_store`], for all four.
#[inline(always)]
pub(crate) unsafe fn shared_store_row<const FIRST: u32>(index: u32, of: [u32; 4]) {
    for (word, value) in (FIRST + 4 * index..).zip(of) {
        // SAFETY: the caller keeps the contract of `shared_store` for all four words.
        unsafe { shared_store(word, value) }
    }
}

/// Reads four words of the block's shared memory, from `4 index` words after word `FIRST` on.
///
/// # Safety
/// As [`shared_load`], for all four.
#[inline(always)]
pub(crate) unsafe fn shared_load_row<const FIRST: u32>(index: u32) -> [u32; 4] {
    // SAFETY: the caller keeps the contract of `shared_load` for all four words.
    [0, 1, 2, 3].map(|word| unsafe { shared_load(FIRST + 4 * index + word) })
}

/// Writes one of the block's bins.
///
/// # Safety
/// `index` is below [`super::super::sizes::BINS`], and no other thread touches the bin between two barriers.
#[inline(always)]
pub(crate) unsafe fn bin_store(index: u32, value: u32) {
    // SAFETY: the caller keeps the index in the array and to itself.
    unsafe { bins().add(index as usize).write_volatile(value) }
}

/// Reads one of the block's bins.
///
/// # Safety
/// `index` is below [`super::super::sizes::BINS`], and no thread writes the bin between the same two barriers.
#[inline(always)]
pub(crate) unsafe fn bin_load(index: u32) -> u32 {
    // SAFETY: the caller keeps the index in the array. Volatile, so that it stays between its barriers.
    unsafe { bins().add(index as usize).read_volatile() }
}

/// Adds to one of the block's bins.
///
/// # Safety
/// `index` is below [`super::super::sizes::BINS`], and between two barriers the bin is only added to.
#[inline(always)]
pub(crate) unsafe fn bin_add(index: u32, value: u32) {
    // SAFETY: the caller keeps the index in the array; only atomic operations touch the bin meanwhile.
    unsafe { AtomicU32::from_ptr(bins().add(index as usize)).fetch_add(value, Ordering::Relaxed) };
}

/// Sets bits of one of the block's bins.
///
/// # Safety
/// `index` is below [`super::super::sizes::BINS`], and between two barriers bits of the bin are only set.
#[inline(always)]
pub(crate) unsafe fn bin_or(index: u32, value: u32) {
    // SAFETY: the caller keeps the index in the array; only atomic operations touch the bin meanwhile.
    unsafe { AtomicU32::from_ptr(bins().add(index as usize)).fetch_or(value, Ordering::Relaxed) };
}

/// Writes a word of the block's stage.
///
/// # Safety
/// `index` is below [`super::super::sizes::STAGE`], and no other thread touches the word between two barriers.
#[inline(always)]
pub(crate) unsafe fn stage_store(index: u32, value: f32) {
    // SAFETY: the caller keeps the index in the array and to itself.
    unsafe { stage().cast::<f32>().add(index as usize).write_volatile(value) }
}

/// Reads a word of the block's stage.
///
/// # Safety
/// `index` is below [`super::super::sizes::STAGE`], and no thread writes the word between the same two barriers.
#[inline(always)]
pub(crate) unsafe fn stage_load(index: u32) -> f32 {
    // SAFETY: the caller keeps the index in the array. Volatile, so that it stays between its barriers.
    unsafe { stage().cast::<f32>().add(index as usize).read_volatile() }
}

/// Reads four words of the block's stage.
///
/// # Safety
/// `index` is a multiple of 4 below [`super::super::sizes::STAGE`], and no thread writes the words between the same two
/// barriers.
#[inline(always)]
pub(crate) unsafe fn stage_load_four(index: u32) -> [f32; 4] {
    // SAFETY: as above.
    [0, 1, 2, 3].map(|word| unsafe { stage_load(index + word) })
}

/// Reads two words of the block's stage.
///
/// # Safety
/// `index` is an even number below [`super::super::sizes::STAGE`], and no thread writes the words between the same two
/// barriers.
#[inline(always)]
pub(crate) unsafe fn stage_load_pair(index: u32) -> [f32; 2] {
    // SAFETY: as above.
    [0, 1].map(|word| unsafe { stage_load(index + word) })
}

/// Writes four words of the block's stage.
///
/// # Safety
/// As [`stage_store`], for all four; `index` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn stage_store_four(index: u32, of: [f32; 4]) {
    for (word, value) in (index..).zip(of) {
        // SAFETY: the caller keeps the contract of `stage_store` for all four words.
        unsafe { stage_store(word, value) }
    }
}

/// Adds 1 to a word of the block's stage, an integer.
///
/// # Safety
/// `index` is below [`super::super::sizes::STAGE`], and between two barriers the word is only added to.
#[inline(always)]
pub(crate) unsafe fn stage_count(index: u32) {
    // SAFETY: the caller keeps the index in the array; only atomic operations touch the word meanwhile.
    unsafe { AtomicU32::from_ptr(stage().cast::<u32>().add(index as usize)).fetch_add(1, Ordering::Relaxed) };
}

/// Writes two words of the block's stage.
///
/// # Safety
/// As [`stage_store`], for both words; `index` is even.
#[inline(always)]
pub(crate) unsafe fn stage_store_wide(index: u32, value: f64) {
    // SAFETY: the caller keeps the index in the array and to itself.
    unsafe { stage().add(index as usize / 2).write_volatile(value) }
}

/// Reads two words of the block's stage.
///
/// # Safety
/// As [`stage_load`], for both words; `index` is even.
#[inline(always)]
pub(crate) unsafe fn stage_load_wide(index: u32) -> f64 {
    // SAFETY: as above.
    unsafe { stage().add(index as usize / 2).read_volatile() }
}
