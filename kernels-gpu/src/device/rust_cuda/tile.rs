//! The block's tile: elements in shared memory, a list of places in it, and which of a lane's elements reach a key.

use cuda_std::shared_array;

use crate::device::sizes::{OWN_WORDS, PADDED};

/// The block's tile.
#[inline(always)]
fn tile() -> *mut u8 {
    shared_array![u32; crate::device::sizes::TILE_BYTES as usize / 4].cast()
}

/// The block's list.
#[inline(always)]
fn list() -> *mut u16 {
    shared_array![u16; (crate::device::sizes::LISTED * crate::device::sizes::TILE_WARPS) as usize]
}

/// What stands for a byte of the tile.
#[inline(always)]
pub(crate) fn tile_address(byte: u32) -> u32 {
    byte
}

/// What stands for an entry of the list.
#[inline(always)]
pub(crate) fn list_address(entry: u32) -> u32 {
    2 * entry
}

/// Writes 16 bytes to each of four rows of 512, the first at `at`.
///
/// # Safety
/// The bytes are in the tile, `at` is a multiple of 16, and no other thread touches them between two barriers.
#[inline(always)]
pub(crate) unsafe fn tile_store_chunks(at: u32, chunks: [[u32; 4]; 4]) {
    for (row, chunk) in chunks.into_iter().enumerate() {
        for (k, word) in chunk.into_iter().enumerate() {
            let byte = at as usize + row * 4 * PADDED as usize + 4 * k;
            // SAFETY: the caller keeps the bytes in the array and to itself.
            unsafe { tile().add(byte).cast::<u32>().write_volatile(word) }
        }
    }
}

/// Writes a word to each of eight rows of 128 bytes, the first at `at`.
///
/// # Safety
/// As [`tile_store_chunks`]; `at` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn tile_store_words(at: u32, rows: [u32; 8]) {
    for (row, word) in rows.into_iter().enumerate() {
        // SAFETY: the caller keeps the words in the array and to itself.
        unsafe { tile().add(at as usize + row * PADDED as usize).cast::<u32>().write_volatile(word) }
    }
}

/// Writes half a word to each of eight rows of 64 bytes, the first at `at`.
///
/// # Safety
/// As [`tile_store_chunks`]; `at` is a multiple of 2.
#[inline(always)]
pub(crate) unsafe fn tile_store_halves(at: u32, rows: [u32; 8]) {
    for (row, half) in rows.into_iter().enumerate() {
        let byte = at as usize + row / 2 * PADDED as usize + row % 2 * 64;
        // SAFETY: the caller keeps the halves in the array and to itself.
        unsafe { tile().add(byte).cast::<u16>().write_volatile(half as u16) }
    }
}

/// Reads 64 bytes beside each other.
///
/// # Safety
/// They are in the tile, `at` is a multiple of 16, and no thread writes them between the same two barriers.
#[inline(always)]
pub(crate) unsafe fn tile_load_own(at: u32) -> [u32; OWN_WORDS] {
    // SAFETY: the caller ensures that the words are in the tile, and that no thread writes them meanwhile.
    core::array::from_fn(|word| unsafe { tile_load_word(at + 4 * word as u32) })
}

/// Reads a word.
///
/// # Safety
/// It is in the tile, `at` is a multiple of 4, and no other thread writes it between the same two barriers.
#[inline(always)]
pub(crate) unsafe fn tile_load_word(at: u32) -> u32 {
    // SAFETY: the caller keeps the address in the array. Volatile, so that it stays between its barriers. So below.
    unsafe { tile().add(at as usize).cast::<u32>().read_volatile() }
}

/// Reads half a word.
///
/// # Safety
/// As [`tile_load_word`]; `at` is a multiple of 2.
#[inline(always)]
pub(crate) unsafe fn tile_load_half(at: u32) -> u32 {
    // SAFETY: as above.
    u32::from(unsafe { tile().add(at as usize).cast::<u16>().read_volatile() })
}

/// Writes an entry of the list: the lower half of a word.
///
/// # Safety
/// `at` is an entry's address, and no other thread touches it between two barriers.
#[inline(always)]
pub(crate) unsafe fn list_store(at: u32, place: u32) {
    // SAFETY: the caller keeps the address in the array and to itself.
    unsafe { list().add(at as usize / 2).write_volatile(place as u16) }
}

/// Reads an entry of the list.
///
/// # Safety
/// `at` is an entry's address, and no thread writes it between the same two barriers.
#[inline(always)]
pub(crate) unsafe fn list_load(at: u32) -> u32 {
    // SAFETY: the caller keeps the address in the array.
    u32::from(unsafe { list().add(at as usize / 2).read_volatile() })
}

/// `before`, and after it a bit a word, the first one highest: whether twice the word, without its highest bit,
/// carries when `less` is added.
#[inline(always)]
pub(crate) fn carries(before: u32, words: [u32; OWN_WORDS], less: u32) -> u32 {
    words.into_iter().fold(before, |bits, word| bits << 1 | u32::from((word << 1).checked_add(less).is_none()))
}

/// As [`carries`], a bit a half, the lower half of a word first, in the upper half of the sum.
#[inline(always)]
pub(crate) fn carries_of_halves(words: [u32; OWN_WORDS], less: u32) -> u32 {
    words.into_iter().fold(0, |bits, word| {
        [17, 1].into_iter().fold(bits, |bits, by| bits << 1 | u32::from((word << by).checked_add(less).is_none()))
    })
}
