//! A group of two ranks, of which the other one is whatever hands over bytes.

use gradwire::{Collective, CollectiveError};

/// What the other rank hands over in a call.
#[derive(Clone, Debug)]
pub struct Theirs {
    /// Its bytes; numbers of a sum are little-endian.
    pub bytes: Vec<u8>,
    /// How often a gather has them.
    pub times: usize,
}

impl From<Vec<u8>> for Theirs {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, times: 1 }
    }
}

/// A rank of two. Each call hands this rank's bytes to `swap`, and takes those of the other rank from it.
pub struct Pair<F> {
    /// This rank.
    pub rank: u32,
    /// Who is beside it.
    pub swap: F,
}

impl<F: FnMut(&[u8]) -> Result<Theirs, CollectiveError>> Pair<F> {
    fn both(&mut self, mine: &[u8], to_the_other: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        let theirs = (self.swap)(to_the_other)?;
        *all = vec![theirs.bytes; theirs.times];
        all.insert((self.rank as usize).min(theirs.times), mine.to_vec());
        Ok(())
    }
}

impl<F: FnMut(&[u8]) -> Result<Theirs, CollectiveError>> Collective for Pair<F> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        2
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.both(mine, mine, all)
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        let [first, second] = to else { return Err(CollectiveError::Parts { got: to.len(), ranks: 2 }) };
        let (mine, theirs) = if self.rank == 0 { (first, second) } else { (second, first) };
        self.both(mine, theirs, from)
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let mine: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let theirs = (self.swap)(&mine)?;
        for (sum, value) in values.iter_mut().zip(theirs.bytes.as_chunks::<4>().0) {
            *sum += f32::from_le_bytes(*value);
        }
        Ok(())
    }

    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        if peer != 1 - self.rank {
            return Err(CollectiveError::Rank { got: peer, ranks: 2 });
        }
        *theirs = (self.swap)(mine)?.bytes;
        Ok(())
    }

    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        let theirs = (self.swap)(bytes)?;
        if root != self.rank {
            *bytes = theirs.bytes;
        }
        Ok(())
    }
}
