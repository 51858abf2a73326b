//! The device's memory: allocations far apart, so that no overrun of one reaches another.

use super::buffer::Buffer;
use super::shadow::Page;
use super::window;
use crate::fault::{Space, Violation};
use crate::warp::{LANES, lanes};

/// Address bits within an allocation.
const BITS: u32 = 34;

/// All allocations, each at its number shifted up; number 0, and so the null pointer, is none of them.
#[derive(Debug)]
pub(crate) struct Global {
    buffers: Vec<Option<Buffer>>,
    /// Pages of the shadows of what was freed.
    pages: Vec<Page>,
}

impl Default for Global {
    fn default() -> Self {
        Self { buffers: vec![None], pages: Vec::new() }
    }
}

impl Global {
    /// A new allocation; `None` if it is larger than any can be. A freed address is never given out again.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let base = (self.buffers.len() as u64) << BITS;
        if bytes > 1 << (BITS - 1) || base >= window::SHARED {
            return None;
        }
        self.buffers.push(Some(Buffer::with_pages(base, bytes as usize, &mut self.pages)));
        Some(base)
    }

    /// Whether it was allocated.
    pub(crate) fn free(&mut self, address: u64) -> bool {
        let whole = address.is_multiple_of(1 << BITS);
        let buffer = self.buffers.get_mut((address >> BITS) as usize).filter(|_| whole).and_then(Option::take);
        let Some(buffer) = buffer else { return false };
        self.pages.extend(buffer.into_pages());
        true
    }

    /// The allocation that the accesses of all lanes of the mask begin in, if it is one.
    #[inline]
    pub(crate) fn of_lanes(&mut self, addresses: &[u64; LANES], mask: u32) -> Option<&mut Buffer> {
        let number = addresses[mask.trailing_zeros() as usize % LANES] >> BITS;
        let apart = lanes(mask).any(|lane| addresses[lane] >> BITS != number);
        if apart { None } else { self.buffers.get_mut(usize::try_from(number).ok()?)?.as_mut() }
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
