//! The block's tile: elements in shared memory, a list of places in it, and which of a lane's elements reach a key.

use core::arch::{asm, global_asm};

use crate::device::sizes::{LISTED, OWN_WORDS, TILE_BYTES, TILE_WARPS};

// Aligned, so that four words can be read at once.
global_asm!(".shared .align 16 .b8 gradwire_tile[{bytes}];", bytes = const TILE_BYTES);

global_asm!(".shared .align 4 .b8 gradwire_list[{bytes}];", bytes = const 2 * LISTED * TILE_WARPS);

/// The address of a byte of the tile.
#[inline(always)]
pub(crate) fn tile_address(byte: u32) -> u32 {
    let start: u32;
    // SAFETY: it reads no memory: the address of a variable is a constant.
    unsafe { asm!("mov.u32 {}, gradwire_tile;", lateout(reg32) start, options(pure, nomem, nostack)) }
    start + byte
}

/// The address of an entry of the list.
#[inline(always)]
pub(crate) fn list_address(entry: u32) -> u32 {
    let start: u32;
    // SAFETY: it reads no memory: the address of a variable is a constant.
    unsafe { asm!("mov.u32 {}, gradwire_list;", lateout(reg32) start, options(pure, nomem, nostack)) }
    start + 2 * entry
}

/// Writes 16 bytes to each of four rows of 512, the first at `at`.
///
/// # Safety
/// The bytes are in the tile, `at` is a multiple of 16, and no other thread touches them between two barriers.
#[inline(always)]
pub(crate) unsafe fn tile_store_chunks(at: u32, chunks: [[u32; 4]; 4]) {
    let [a, b, c, d] = chunks;
    // One statement, so that a row is a constant in the address and takes no instruction. So below.
    // SAFETY: the caller keeps the bytes in the array and to itself.
    unsafe {
        asm!(
            "st.shared.v4.u32 [{at}], {{{a0}, {a1}, {a2}, {a3}}};",
            "st.shared.v4.u32 [{at}+576], {{{b0}, {b1}, {b2}, {b3}}};",
            "st.shared.v4.u32 [{at}+1152], {{{c0}, {c1}, {c2}, {c3}}};",
            "st.shared.v4.u32 [{at}+1728], {{{d0}, {d1}, {d2}, {d3}}};",
            at = in(reg32) at,
            a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
            b0 = in(reg32) b[0], b1 = in(reg32) b[1], b2 = in(reg32) b[2], b3 = in(reg32) b[3],
            c0 = in(reg32) c[0], c1 = in(reg32) c[1], c2 = in(reg32) c[2], c3 = in(reg32) c[3],
            d0 = in(reg32) d[0], d1 = in(reg32) d[1], d2 = in(reg32) d[2], d3 = in(reg32) d[3],
            options(nostack)
        );
    }
}

/// Writes a word to each of eight rows of 128 bytes, the first at `at`.
///
/// # Safety
/// As [`tile_store_chunks`]; `at` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn tile_store_words(at: u32, rows: [u32; 8]) {
    // SAFETY: the caller keeps the words in the array and to itself.
    unsafe {
        asm!(
            "st.shared.u32 [{at}], {};",
            "st.shared.u32 [{at}+144], {};",
            "st.shared.u32 [{at}+288], {};",
            "st.shared.u32 [{at}+432], {};",
            "st.shared.u32 [{at}+576], {};",
            "st.shared.u32 [{at}+720], {};",
            "st.shared.u32 [{at}+864], {};",
            "st.shared.u32 [{at}+1008], {};",
            in(reg32) rows[0],
            in(reg32) rows[1],
            in(reg32) rows[2],
            in(reg32) rows[3],
            in(reg32) rows[4],
            in(reg32) rows[5],
            in(reg32) rows[6],
            in(reg32) rows[7],
            at = in(reg32) at,
            options(nostack)
        );
    }
}

/// Writes half a word to each of eight rows of 64 bytes, the first at `at`.
///
/// # Safety
/// As [`tile_store_chunks`]; `at` is a multiple of 2.
#[inline(always)]
pub(crate) unsafe fn tile_store_halves(at: u32, rows: [u32; 8]) {
    // SAFETY: the caller keeps the halves in the array and to itself.
    unsafe {
        asm!(
            "st.shared.u16 [{at}], {};",
            "st.shared.u16 [{at}+64], {};",
            "st.shared.u16 [{at}+144], {};",
            "st.shared.u16 [{at}+208], {};",
            "st.shared.u16 [{at}+288], {};",
            "st.shared.u16 [{at}+352], {};",
            "st.shared.u16 [{at}+432], {};",
            "st.shared.u16 [{at}+496], {};",
            in(reg32) rows[0],
            in(reg32) rows[1],
            in(reg32) rows[2],
            in(reg32) rows[3],
            in(reg32) rows[4],
            in(reg32) rows[5],
            in(reg32) rows[6],
            in(reg32) rows[7],
            at = in(reg32) at,
            options(nostack)
        );
    }
}

/// Reads 64 bytes beside each other.
///
/// # Safety
/// They are in the tile, `at` is a multiple of 16, and no thread writes them between the same two barriers.
#[inline(always)]
pub(crate) unsafe fn tile_load_own(at: u32) -> [u32; OWN_WORDS] {
    let mut words = [0; OWN_WORDS];
    let [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3] = &mut words;
    // SAFETY: the caller keeps the bytes in the array. Not `pure`, so that it stays between its barriers. The address
    // is read by all four, and so shares no register with what the first one writes.
    unsafe {
        asm!(
            "ld.shared.v4.u32 {{{a0}, {a1}, {a2}, {a3}}}, [{at}];",
            "ld.shared.v4.u32 {{{b0}, {b1}, {b2}, {b3}}}, [{at}+16];",
            "ld.shared.v4.u32 {{{c0}, {c1}, {c2}, {c3}}}, [{at}+32];",
            "ld.shared.v4.u32 {{{d0}, {d1}, {d2}, {d3}}}, [{at}+48];",
            at = in(reg32) at,
            a0 = out(reg32) *a0, a1 = out(reg32) *a1, a2 = out(reg32) *a2, a3 = out(reg32) *a3,
            b0 = out(reg32) *b0, b1 = out(reg32) *b1, b2 = out(reg32) *b2, b3 = out(reg32) *b3,
            c0 = out(reg32) *c0, c1 = out(reg32) *c1, c2 = out(reg32) *c2, c3 = out(reg32) *c3,
            d0 = out(reg32) *d0, d1 = out(reg32) *d1, d2 = out(reg32) *d2, d3 = out(reg32) *d3,
            options(nostack)
        );
    }
    words
}

/// Reads a word.
///
/// # Safety
/// It is in the tile, `at` is a multiple of 4, and no other thread writes it between the same two barriers.
#[inline(always)]
pub(crate) unsafe fn tile_load_word(at: u32) -> u32 {
    let value;
    // SAFETY: the caller keeps the address in the array. Not `pure`, so that it stays between its barriers.
    unsafe { asm!("ld.shared.u32 {}, [{}];", lateout(reg32) value, in(reg32) at, options(nostack)) }
    value
}

/// Reads half a word.
///
/// # Safety
/// As [`tile_load_word`]; `at` is a multiple of 2.
#[inline(always)]
pub(crate) unsafe fn tile_load_half(at: u32) -> u32 {
    let value;
    // SAFETY: as above.
    unsafe { asm!("ld.shared.u16 {}, [{}];", lateout(reg32) value, in(reg32) at, options(nostack)) }
    value
}

/// Writes an entry of the list: the lower half of a word.
///
/// # Safety
/// `at` is an entry's address, and no other thread touches it between two barriers.
#[inline(always)]
pub(crate) unsafe fn list_store(at: u32, place: u32) {
    // SAFETY: the caller keeps the address in the array and to itself.
    unsafe { asm!("st.shared.u16 [{}], {};", in(reg32) at, in(reg32) place, options(nostack)) }
}

/// Reads an entry of the list.
///
/// # Safety
/// `at` is an entry's address, and no thread writes it between the same two barriers.
#[inline(always)]
pub(crate) unsafe fn list_load(at: u32) -> u32 {
    let value;
    // SAFETY: the caller keeps the address in the array. Not `pure`, so that it stays between its barriers.
    unsafe { asm!("ld.shared.u16 {}, [{}];", lateout(reg32) value, in(reg32) at, options(nostack)) }
    value
}

/// `before`, and after it a bit a word, the first one highest: whether twice the word, without its highest bit,
/// carries when `less` is added.
#[inline(always)]
pub(crate) fn carries(before: u32, words: [u32; OWN_WORDS], less: u32) -> u32 {
    let mut bits = before;
    for four in 0..OWN_WORDS / 4 {
        let [a, b, c, d] = [words[4 * four], words[4 * four + 1], words[4 * four + 2], words[4 * four + 3]];
        // Two instructions a word, on two of a multiprocessor's pipes: no comparison takes fewer.
        // SAFETY: instructions on registers; the flag is written before it is read.
        unsafe {
            asm!(
                "mad.lo.cc.u32 {sum}, {a}, 2, {less};",
                "addc.u32 {bits}, {bits}, {bits};",
                "mad.lo.cc.u32 {sum}, {b}, 2, {less};",
                "addc.u32 {bits}, {bits}, {bits};",
                "mad.lo.cc.u32 {sum}, {c}, 2, {less};",
                "addc.u32 {bits}, {bits}, {bits};",
                "mad.lo.cc.u32 {sum}, {d}, 2, {less};",
                "addc.u32 {bits}, {bits}, {bits};",
                a = in(reg32) a,
                b = in(reg32) b,
                c = in(reg32) c,
                d = in(reg32) d,
                less = in(reg32) less,
                bits = inout(reg32) bits,
                sum = out(reg32) _,
                options(pure, nomem, nostack)
            );
        }
    }
    bits
}

/// As [`carries`], a bit a half, the lower half of a word first, in the upper half of the sum.
#[inline(always)]
pub(crate) fn carries_of_halves(words: [u32; OWN_WORDS], less: u32) -> u32 {
    let mut bits = 0;
    for four in 0..OWN_WORDS / 4 {
        let [a, b, c, d] = [words[4 * four], words[4 * four + 1], words[4 * four + 2], words[4 * four + 3]];
        // The upper half with the lower's highest bit below it, which decides nothing; and the lower half shifted up.
        // SAFETY: as above.
        unsafe {
            asm!(
                "mad.lo.cc.u32 {sum}, {a}, 131072, {less};", "addc.u32 {bits}, {bits}, {bits};",
                "mad.lo.cc.u32 {sum}, {a}, 2, {less};", "addc.u32 {bits}, {bits}, {bits};",
                "mad.lo.cc.u32 {sum}, {b}, 131072, {less};", "addc.u32 {bits}, {bits}, {bits};",
                "mad.lo.cc.u32 {sum}, {b}, 2, {less};", "addc.u32 {bits}, {bits}, {bits};",
                "mad.lo.cc.u32 {sum}, {c}, 131072, {less};", "addc.u32 {bits}, {bits}, {bits};",
                "mad.lo.cc.u32 {sum}, {c}, 2, {less};", "addc.u32 {bits}, {bits}, {bits};",
                "mad.lo.cc.u32 {sum}, {d}, 131072, {less};", "addc.u32 {bits}, {bits}, {bits};",
                "mad.lo.cc.u32 {sum}, {d}, 2, {less};", "addc.u32 {bits}, {bits}, {bits};",
                a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, d = in(reg32) d,
                less = in(reg32) less, bits = inout(reg32) bits, sum = out(reg32) _,
                options(pure, nomem, nostack)
            );
        }
    }
    bits
}
