//! What a rank took of a step, in 32 bits: the next step compares them.

use crate::collective::{Collective, CollectiveError};

use super::frame;

/// A group whose messages are noted, as far as all ranks get the same of them.
///
/// Of payloads the checksums are noted, which reading them has compared with their bytes; of sums, all bits.
pub(super) struct Witness<'g, G: ?Sized> {
    group: &'g mut G,
    /// Nothing while nobody will ask.
    taken: Option<crc32fast::Hasher>,
}

impl<'g, G: ?Sized> Witness<'g, G> {
    pub(super) fn new(group: &'g mut G) -> Self {
        Self { group, taken: None }
    }

    /// Begins to note, where the next step's heads will say what was.
    pub(super) fn begin(&mut self, is_asked: bool) {
        self.taken = is_asked.then(crc32fast::Hasher::new);
    }

    /// Notes a message that all ranks get, one from another.
    pub(super) fn note(&mut self, message: &[u8]) {
        if let Some(taken) = &mut self.taken {
            frame::note(message, taken);
        }
    }

    /// What was taken; 0 where it is not known.
    pub(super) fn digest(self) -> u32 {
        self.taken.map_or(0, |taken| taken.finalize().max(1))
    }
}

impl<G: Collective + ?Sized> Collective for Witness<'_, G> {
    fn rank(&self) -> u32 {
        self.group.rank()
    }

    fn ranks(&self) -> u32 {
        self.group.ranks()
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.group.all_gather(mine, all)?;
        all.iter().for_each(|message| self.note(message));
        Ok(())
    }

    /// Each rank gets other parts.
    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.group.all_to_all(to, from)
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.group.all_reduce_sum(values)?;
        if let Some(taken) = &mut self.taken {
            let mut bits = [0; 1024];
            for values in values.chunks(bits.len()) {
                let bits = &mut bits[..values.len()];
                bits.iter_mut().zip(values).for_each(|(bits, value)| *bits = value.to_bits().to_le());
                taken.update(bytemuck::cast_slice(bits));
            }
        }
        Ok(())
    }

    /// A pair's own. What a tree ends with goes this way, and the tree notes it.
    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.group.exchange(peer, mine, theirs)
    }

    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.group.broadcast(root, bytes)
    }
}
