//! The device's memory: allocations far apart, so that no overrun of one reaches another.

use super::buffer::Buffer;
use super::window;
use crate::fault::{Space, Violation};

/// Address bits within an allocation.
const BITS: u32 = 34;

/// All allocations, each at its number shifted up; number 0, and so the null pointer, is none of them.
#[derive(Debug)]
pub(crate) struct Global {
    buffers: Vec<Option<Buffer>>,
}

impl Default for Global {
    fn default() -> Self {
        Self { buffers: vec![None] }
    }
}

impl Global {
    /// A new allocation; `None` where it is larger than any can be. A freed address is never given out again.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let base = (self.buffers.len() as u64) << BITS;
        if bytes > 1 << (BITS - 1) || base >= window::SHARED {
            return None;
        }
        self.buffers.push(Some(Buffer::new(Space::Global, base, bytes as usize)));
        Some(base)
    }

    /// Whether it was allocated.
    pub(crate) fn free(&mut self, address: u64) -> bool {
        let whole = address.is_multiple_of(1 << BITS);
        self.buffers.get_mut((address >> BITS) as usize).is_some_and(|b| whole && b.take().is_some())
    }

    /// The allocation that an access lies in or begins in.
    #[inline]
    pub(crate) fn at(&mut self, address: u64, bytes: u32) -> Result<&mut Buffer, Violation> {
        let number = usize::try_from(address >> BITS).unwrap_or(usize::MAX);
        let none =
            |found: &str| Violation::OutOfBounds { space: Space::Global, address, bytes, found: found.to_owned() };
        match self.buffers.get_mut(number) {
            Some(Some(buffer)) => Ok(buffer),
            Some(None) if number > 0 => Err(none("the memory there was freed")),
            _ => Err(none("no memory is there")),
        }
    }
}
