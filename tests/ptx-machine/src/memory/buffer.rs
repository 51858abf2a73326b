//! Bytes with a memory of which were written.

use super::order::Known;
use super::shadow::{PAGE, Page, Shadow, Who};
use crate::fault::{Space, Violation};
use crate::warp::{LANES, lanes};

/// A piece of memory.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    space: Space,
    /// The address of its first byte.
    base: u64,
    data: Vec<u8>,
    /// A bit a byte.
    written: Vec<u64>,
    shadow: Shadow,
    /// How often it was forgotten, for memory that is one block's at a time.
    forgotten: u32,
}

impl Buffer {
    pub(crate) fn new(space: Space, base: u64, bytes: usize) -> Self {
        // What was never written cannot be read, so these bytes show nowhere.
        let data = vec![0xcd; bytes];
        Self { space, base, data, written: vec![0; bytes.div_ceil(64)], shadow: Shadow::default(), forgotten: 0 }
    }

    /// Global memory, whose shadow takes its pages from those of memory that was freed.
    pub(super) fn with_pages(base: u64, bytes: usize, spare: &mut Vec<Page>) -> Self {
        let few = spare.split_off(spare.len().saturating_sub(bytes.div_ceil(PAGE)));
        Self { shadow: Shadow::with_spare(few), ..Self::new(Space::Global, base, bytes) }
    }

    /// Its shadow's pages, for other memory of the same machine.
    pub(super) fn into_pages(self) -> impl Iterator<Item = Page> {
        self.shadow.into_pages()
    }

    pub(crate) fn len(&self) -> usize {
        self.data.len()
    }

    /// How far into the buffer an address is.
    pub(crate) fn offset(&self, address: u64) -> usize {
        address.wrapping_sub(self.base) as usize
    }

    /// Forgets what was written and by whom: the memory becomes another block's.
    pub(crate) fn forget(&mut self) {
        self.written.fill(0);
        // To the shadow another launch, of which none races with one before: to make it anew for each block takes
        // longer.
        self.forgotten += 1;
    }

    /// Checks an access of a kernel, of a power of two of bytes up to 16, and notes it.
    #[inline]
    pub(crate) fn check(
        &mut self,
        address: u64,
        bytes: u32,
        reads: bool,
        writes: bool,
        now: Option<(&Who, Known<'_>)>,
    ) -> Result<usize, Violation> {
        let (space, size) = (self.space, bytes as usize);
        // A power of two: a remainder would be a division by a number that the compiler does not know.
        if address & u64::from(bytes - 1) != 0 {
            return Err(Violation::Misaligned { space, address, bytes });
        }
        let offset = self.offset(address);
        if offset.checked_add(size).is_none_or(|end| end > self.data.len()) {
            let found = format!("{} bytes begin at {:#x}", self.data.len(), self.base);
            return Err(Violation::OutOfBounds { space, address, bytes, found });
        }
        // An aligned power of two of bits lies in one word.
        let bits = ((1u64 << size) - 1) << (offset % 64);
        let written = &mut self.written[offset / 64];
        if reads && *written & bits != bits {
            return Err(Violation::Unwritten { space, address, bytes });
        }
        if writes {
            *written |= bits;
        }
        if let Some((now, known)) = now {
            let now = Who { launch: now.launch + self.forgotten, ..*now };
            if let Some(other) = self.shadow.note(offset, size, &now, known, writes) {
                return Err(Violation::Race { space, address, other });
            }
        }
        Ok(offset)
    }

    /// Checks an access of each lane of the mask as [`Buffer::check`] does, but for races, and marks what is written:
    /// the offsets, or `None`, and nothing is changed, where a lane's access is wrong.
    #[inline]
    pub(crate) fn check_lanes(
        &mut self,
        addresses: &[u64; LANES],
        mask: u32,
        bytes: u32,
        reads: bool,
        writes: bool,
    ) -> Option<[usize; LANES]> {
        let last = self.data.len().checked_sub(bytes as usize)?;
        let mut offsets = [0; LANES];
        let mut wrong = false;
        for lane in 0..LANES {
            let offset = if mask >> lane & 1 == 1 { self.offset(addresses[lane]) } else { 0 };
            wrong |= offset > last || offset & (bytes as usize - 1) != 0;
            offsets[lane] = offset;
        }
        if wrong {
            return None;
        }
        let bits = (1u64 << bytes) - 1;
        if reads {
            let unwritten = |offset: usize| !self.written[offset / 64] >> (offset % 64) & bits != 0;
            if lanes(mask).any(|lane| unwritten(offsets[lane])) {
                return None;
            }
        }
        if writes {
            lanes(mask).for_each(|lane| self.written[offsets[lane] / 64] |= bits << (offsets[lane] % 64));
        }
        Some(offsets)
    }

    /// Notes accesses that are as [`Buffer::check_lanes`] has it; the first lane that races, with what.
    pub(crate) fn note_lanes(
        &mut self,
        offsets: &[usize; LANES],
        mask: u32,
        bytes: u32,
        writes: bool,
        first_thread: u32,
        (now, known): (Who, Known<'_>),
    ) -> Result<(), (usize, Violation)> {
        let mut now = Who { launch: now.launch + self.forgotten, ..now };
        for lane in lanes(mask) {
            now.thread = (first_thread + lane as u32) as u16;
            if let Some(other) = self.shadow.note(offsets[lane], bytes as usize, &now, known, writes) {
                let address = self.base + offsets[lane] as u64;
                return Err((lane, Violation::Race { space: self.space, address, other }));
            }
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn bytes(&self, offset: usize, bytes: usize) -> &[u8] {
        &self.data[offset..offset + bytes]
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self, offset: usize, bytes: usize) -> &mut [u8] {
        &mut self.data[offset..offset + bytes]
    }

    /// All bytes.
    #[inline]
    pub(crate) fn all(&self) -> &[u8] {
        &self.data
    }

    /// All bytes, to write to those that are marked as written.
    #[inline]
    pub(crate) fn all_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }

    /// Marks bytes as written.
    pub(crate) fn mark(&mut self, offset: usize, bytes: usize) {
        for (word, bits) in words(offset, bytes) {
            self.written[word] |= bits;
        }
    }

    /// The first of these bytes that nothing wrote.
    pub(crate) fn unwritten(&self, offset: usize, bytes: usize) -> Option<usize> {
        words(offset, bytes).find_map(|(word, bits)| {
            let missing = bits & !self.written[word];
            (missing != 0).then(|| 64 * word + missing.trailing_zeros() as usize)
        })
    }
}

/// The words that hold the bits of a range of bytes, each with those bits.
fn words(offset: usize, bytes: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = offset + bytes;
    (offset / 64..end.div_ceil(64)).map(move |word| {
        let below = end.saturating_sub(64 * word).min(64);
        let from = offset.saturating_sub(64 * word);
        let up_to = |bit: usize| if bit == 64 { !0 } else { (1u64 << bit) - 1 };
        (word, up_to(below) & !up_to(from))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_marked_to_the_byte() {
        for (offset, bytes) in
            [(0, 1), (0, 64), (3, 61), (3, 62), (63, 1), (64, 1), (60, 200), (128, 64), (5, 0), (64, 0)]
        {
            let mut buffer = Buffer::new(Space::Global, 0, 320);
            buffer.mark(offset, bytes);
            for at in 0..320 {
                let written = (offset..offset + bytes).contains(&at);
                assert_eq!(buffer.unwritten(at, 1), (!written).then_some(at), "{at} of {bytes} bytes from {offset} on");
            }
            assert_eq!(buffer.unwritten(offset, bytes), None);
            assert_eq!(buffer.unwritten(offset, bytes + 7), Some(offset + bytes));
        }
    }

    #[test]
    fn lanes_are_checked_as_each_alone() {
        let all = |of: fn(u64) -> u64| std::array::from_fn(|lane| 1024 + of(lane as u64));
        for (addresses, mask, bytes, right) in [
            (all(|lane| 4 * lane), !0, 4, true),
            (all(|lane| 16 * lane), !0, 16, true),
            (all(|lane| 16 * lane + 16), !0, 16, false),
            (all(|lane| 16 * lane + 16), !0 >> 1, 16, true),
            (all(|lane| 4 * lane + 2), 1 << 9, 4, false),
            (all(|lane| 4 * lane + 2), 1 << 9, 2, true),
            (all(|lane| lane.wrapping_sub(1)), !0, 1, false),
            (all(|lane| lane.wrapping_sub(1)), !1, 1, true),
        ] {
            let alone = |buffer: &mut Buffer, reads, writes| {
                lanes(mask).all(|lane| buffer.check(addresses[lane], bytes, reads, writes, None).is_ok())
            };
            let (mut together, mut each) = [(); 2].map(|()| Buffer::new(Space::Global, 1024, 512)).into();
            assert!(together.check_lanes(&addresses, mask, bytes, true, false).is_none(), "nothing wrote it");
            assert_eq!(together.check_lanes(&addresses, mask, bytes, false, true).is_some(), right);
            assert_eq!(alone(&mut each, false, true), right);
            assert_eq!(together.check_lanes(&addresses, mask, bytes, true, false).is_some(), right);
            assert_eq!(alone(&mut each, true, false), right);
            if right {
                assert_eq!(together.written, each.written);
            }
        }
    }
}
