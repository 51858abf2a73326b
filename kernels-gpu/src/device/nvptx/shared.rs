//! A block's shared memory: words, bins, and a stage for parts of matrices.

use core::arch::{asm, global_asm};

use crate::device::sizes::{BINS, SHARED_WORDS, STAGE};

// Rust has no shared address space, so the block's array is declared in PTX and reached by its name. PTX wants a name
// declared before it is used, and LLVM writes this text in front of every kernel.
global_asm!(".shared .align 16 .b8 gradwire_shared[{bytes}];", bytes = const 4 * SHARED_WORDS);

// A variable of its own: a kernel has the shared memory of those that it names.
global_asm!(".shared .align 4 .b8 gradwire_bins[{bytes}];", bytes = const 4 * BINS);

// Aligned, so that four words can be read at once.
global_asm!(".shared .align 16 .b8 gradwire_stage[{bytes}];", bytes = const 4 * STAGE);

/// Writes a word of the block's shared memory.
///
/// # Safety
/// `index` is below [`SHARED_WORDS`], and no other thread touches the word between two barriers.
#[inline(always)]
pub(crate) unsafe fn shared_store(index: u32, value: u32) {
    // SAFETY: the caller keeps the index in the array and to itself.
    unsafe { asm!("st.shared.u32 [{}], {};", in(reg32) shared_address(index), in(reg32) value, options(nostack)) }
}

/// Reads a word of the block's shared memory.
///
/// # Safety
/// `index` is below [`SHARED_WORDS`], and no thread writes the word between the same two barriers.
#[inline(always)]
pub(crate) unsafe fn shared_load(index: u32) -> u32 {
    let value;
    // SAFETY: the caller keeps the index in the array. Not `pure`, so that it stays between its barriers.
    unsafe { asm!("ld.shared.u32 {}, [{}];", lateout(reg32) value, in(reg32) shared_address(index), options(nostack)) }
    value
}

/// Writes four words of the block's shared memory, from word `INDEX` on.
///
/// # Safety
/// As [`shared_store`], for all four; `INDEX` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn shared_store_four<const INDEX: u32>(words: [u32; 4]) {
    // SAFETY: the caller keeps the words in the array and to itself.
    unsafe {
        asm!(
            "st.shared.v4.u32 [gradwire_shared+{at}], {{{}, {}, {}, {}}};",
            in(reg32) words[0],
            in(reg32) words[1],
            in(reg32) words[2],
            in(reg32) words[3],
            at = const 4 * INDEX,
            options(nostack)
        );
    }
}

/// Reads four words of the block's shared memory, from word `INDEX` on.
///
/// # Safety
/// As [`shared_load`], for all four; `INDEX` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn shared_load_four<const INDEX: u32>() -> [u32; 4] {
    let (a, b, c, d);
    // SAFETY: the caller keeps the words in the array. Not `pure`, so that it stays between its barriers.
    unsafe {
        asm!(
            "ld.shared.v4.u32 {{{}, {}, {}, {}}}, [gradwire_shared+{at}];",
            lateout(reg32) a,
            lateout(reg32) b,
            lateout(reg32) c,
            lateout(reg32) d,
            at = const 4 * INDEX,
            options(nostack)
        );
    }
    [a, b, c, d]
}

/// Writes two words of the block's shared memory, from `2 index` words after word `FIRST` on.
///
/// # Safety
/// As [`shared_store`], for both; `FIRST` is even.
#[inline(always)]
pub(crate) unsafe fn shared_store_pair<const FIRST: u32>(index: u32, words: [u32; 2]) {
    // SAFETY: the caller keeps the words in the array and to itself.
    unsafe {
        asm!(
            "st.shared.v2.u32 [{}+{at}], {{{}, {}}};",
            in(reg32) shared_address(2 * index),
            in(reg32) words[0],
            in(reg32) words[1],
            at = const 4 * FIRST,
            options(nostack)
        );
    }
}

/// Reads two words of the block's shared memory, from `2 index` words after word `FIRST` on.
///
/// # Safety
/// As [`shared_load`], for both; `FIRST` is even.
#[inline(always)]
pub(crate) unsafe fn shared_load_pair<const FIRST: u32>(index: u32) -> [u32; 2] {
    let (a, b);
    // SAFETY: the caller keeps the words in the array. Not `pure`, so that it stays between its barriers.
    unsafe {
        asm!(
            "ld.shared.v2.u32 {{{}, {}}}, [{}+{at}];",
            lateout(reg32) a,
            lateout(reg32) b,
            in(reg32) shared_address(2 * index),
            at = const 4 * FIRST,
            options(nostack)
        );
    }
    [a, b]
}

/// Writes four words of the block's shared memory, from `4 index` words after word `FIRST` on.
///
/// # Safety
/// As [`shared_store`], for all four; `FIRST` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn shared_store_row<const FIRST: u32>(index: u32, words: [u32; 4]) {
    // SAFETY: the caller keeps the words in the array and to itself.
    unsafe {
        asm!(
            "st.shared.v4.u32 [{}+{at}], {{{}, {}, {}, {}}};",
            in(reg32) shared_address(4 * index),
            in(reg32) words[0],
            in(reg32) words[1],
            in(reg32) words[2],
            in(reg32) words[3],
            at = const 4 * FIRST,
            options(nostack)
        );
    }
}

/// Reads four words of the block's shared memory, from `4 index` words after word `FIRST` on.
///
/// # Safety
/// As [`shared_load`], for all four; `FIRST` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn shared_load_row<const FIRST: u32>(index: u32) -> [u32; 4] {
    let (a, b, c, d);
    // SAFETY: the caller keeps the words in the array. Not `pure`, so that it stays between its barriers.
    unsafe {
        asm!(
            "ld.shared.v4.u32 {{{}, {}, {}, {}}}, [{}+{at}];",
            lateout(reg32) a,
            lateout(reg32) b,
            lateout(reg32) c,
            lateout(reg32) d,
            in(reg32) shared_address(4 * index),
            at = const 4 * FIRST,
            options(nostack)
        );
    }
    [a, b, c, d]
}

/// Writes one of the block's bins.
///
/// # Safety
/// `index` is below [`BINS`], and no other thread touches the bin between two barriers.
#[inline(always)]
pub(crate) unsafe fn bin_store(index: u32, value: u32) {
    // SAFETY: the caller keeps the index in the array and to itself.
    unsafe { asm!("st.shared.u32 [{}], {};", in(reg32) bin_address(index), in(reg32) value, options(nostack)) }
}

/// Reads one of the block's bins.
///
/// # Safety
/// `index` is below [`BINS`], and no thread writes the bin between the same two barriers.
#[inline(always)]
pub(crate) unsafe fn bin_load(index: u32) -> u32 {
    let value;
    // SAFETY: the caller keeps the index in the array. Not `pure`, so that it stays between its barriers.
    unsafe { asm!("ld.shared.u32 {}, [{}];", lateout(reg32) value, in(reg32) bin_address(index), options(nostack)) }
    value
}

/// Adds to one of the block's bins.
///
/// # Safety
/// `index` is below [`BINS`], and between two barriers the bin is only added to.
#[inline(always)]
pub(crate) unsafe fn bin_add(index: u32, value: u32) {
    // SAFETY: the caller keeps the index in the array.
    unsafe { asm!("red.shared.add.u32 [{}], {};", in(reg32) bin_address(index), in(reg32) value, options(nostack)) }
}

/// Sets bits of one of the block's bins.
///
/// # Safety
/// `index` is below [`BINS`], and between two barriers bits of the bin are only set.
#[inline(always)]
pub(crate) unsafe fn bin_or(index: u32, value: u32) {
    // SAFETY: the caller keeps the index in the array.
    unsafe { asm!("red.shared.or.b32 [{}], {};", in(reg32) bin_address(index), in(reg32) value, options(nostack)) }
}

/// Writes a word of the block's stage.
///
/// # Safety
/// `index` is below [`STAGE`], and no other thread touches the word between two barriers.
#[inline(always)]
pub(crate) unsafe fn stage_store(index: u32, value: f32) {
    // SAFETY: the caller keeps the index in the array and to itself.
    unsafe { asm!("st.shared.f32 [{}], {};", in(reg32) stage_address(index), in(reg32) value, options(nostack)) }
}

/// Reads a word of the block's stage.
///
/// # Safety
/// `index` is below [`STAGE`], and no thread writes the word between the same two barriers.
#[inline(always)]
pub(crate) unsafe fn stage_load(index: u32) -> f32 {
    let value;
    // SAFETY: the caller keeps the index in the array. Not `pure`, so that it stays between its barriers.
    unsafe { asm!("ld.shared.f32 {}, [{}];", lateout(reg32) value, in(reg32) stage_address(index), options(nostack)) }
    value
}

/// Reads four words of the block's stage.
///
/// # Safety
/// `index` is a multiple of 4 below [`STAGE`], and no thread writes the words between the same two barriers.
#[inline(always)]
pub(crate) unsafe fn stage_load_four(index: u32) -> [f32; 4] {
    let (a, b, c, d);
    // SAFETY: as above; the array is aligned.
    unsafe {
        asm!(
            "ld.shared.v4.f32 {{{a}, {b}, {c}, {d}}}, [{address}];",
            a = lateout(reg32) a,
            b = lateout(reg32) b,
            c = lateout(reg32) c,
            d = lateout(reg32) d,
            address = in(reg32) stage_address(index),
            options(nostack)
        )
    }
    [a, b, c, d]
}

/// Reads two words of the block's stage.
///
/// # Safety
/// `index` is an even number below [`STAGE`], and no thread writes the words between the same two barriers.
#[inline(always)]
pub(crate) unsafe fn stage_load_pair(index: u32) -> [f32; 2] {
    let (a, b);
    // SAFETY: as above; the array is aligned.
    unsafe {
        asm!(
            "ld.shared.v2.f32 {{{a}, {b}}}, [{address}];",
            a = lateout(reg32) a,
            b = lateout(reg32) b,
            address = in(reg32) stage_address(index),
            options(nostack)
        )
    }
    [a, b]
}

/// Writes four words of the block's stage.
///
/// # Safety
/// As [`stage_store`], for all four; `index` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn stage_store_four(index: u32, words: [f32; 4]) {
    // SAFETY: the caller keeps the words in the array and to itself.
    unsafe {
        asm!(
            "st.shared.v4.f32 [{}], {{{}, {}, {}, {}}};",
            in(reg32) stage_address(index),
            in(reg32) words[0],
            in(reg32) words[1],
            in(reg32) words[2],
            in(reg32) words[3],
            options(nostack)
        );
    }
}

/// Adds 1 to a word of the block's stage, an integer.
///
/// # Safety
/// `index` is below [`STAGE`], and between two barriers the word is only added to.
#[inline(always)]
pub(crate) unsafe fn stage_count(index: u32) {
    // SAFETY: the caller keeps the index in the array.
    unsafe { asm!("red.shared.add.u32 [{}], 1;", in(reg32) stage_address(index), options(nostack)) }
}

/// Writes two words of the block's stage.
///
/// # Safety
/// As [`stage_store`], for both words; `index` is even.
#[inline(always)]
pub(crate) unsafe fn stage_store_wide(index: u32, value: f64) {
    // SAFETY: the caller keeps the index in the array and to itself.
    unsafe { asm!("st.shared.f64 [{}], {};", in(reg32) stage_address(index), in(reg64) value, options(nostack)) }
}

/// Reads two words of the block's stage.
///
/// # Safety
/// As [`stage_load`], for both words; `index` is even.
#[inline(always)]
pub(crate) unsafe fn stage_load_wide(index: u32) -> f64 {
    let value;
    // SAFETY: as above.
    unsafe { asm!("ld.shared.f64 {}, [{}];", lateout(reg64) value, in(reg32) stage_address(index), options(nostack)) }
    value
}

/// The address of a word of the stage, in the shared window.
#[inline(always)]
fn stage_address(index: u32) -> u32 {
    let start: u32;
    // SAFETY: it reads no memory: the address of a variable is a constant.
    unsafe { asm!("mov.u32 {}, gradwire_stage;", lateout(reg32) start, options(pure, nomem, nostack)) }
    start + 4 * index
}

/// The address of a bin, in the shared window.
#[inline(always)]
fn bin_address(index: u32) -> u32 {
    let start: u32;
    // SAFETY: it reads no memory: the address of a variable is a constant.
    unsafe { asm!("mov.u32 {}, gradwire_bins;", lateout(reg32) start, options(pure, nomem, nostack)) }
    start + 4 * index
}

/// The address of a word, in the shared window.
#[inline(always)]
fn shared_address(index: u32) -> u32 {
    let start: u32;
    // SAFETY: it reads no memory: the address of a variable is a constant.
    unsafe { asm!("mov.u32 {}, gradwire_shared;", lateout(reg32) start, options(pure, nomem, nostack)) }
    start + 4 * index
}
