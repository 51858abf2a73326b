//! Bytes with a memory of which were written.

use super::order::Known;
use super::shadow::{Shadow, Who};
use crate::fault::{Space, Violation};

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
        // To the shadow another launch, of which none races with one before: to make it anew for each block takes longer.
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
        if !address.is_multiple_of(bytes.into()) {
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

    #[inline]
    pub(crate) fn bytes(&self, offset: usize, bytes: usize) -> &[u8] {
        &self.data[offset..offset + bytes]
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self, offset: usize, bytes: usize) -> &mut [u8] {
        &mut self.data[offset..offset + bytes]
    }

    /// Marks bytes as written.
    pub(crate) fn mark(&mut self, offset: usize, bytes: usize) {
        for at in offset..offset + bytes {
            self.written[at / 64] |= 1 << (at % 64);
        }
    }

    /// The first of these bytes that nothing wrote.
    pub(crate) fn unwritten(&self, offset: usize, bytes: usize) -> Option<usize> {
        (offset..offset + bytes).find(|at| self.written[at / 64] >> (at % 64) & 1 == 0)
    }
}
