//! What one block knows of another: which of its barriers come before whatever it does next.
//!
//! PTX orders two blocks of a launch where a thread of the one fences and then writes a word strongly, and a thread of
//! the other reads that word strongly and then fences. What the first block did before its last barrier then comes
//! before what the second does after its next one. This machine holds kernels to that form, which is the one of
//! grid-wide barriers: of the two threads' own accesses since their barriers it takes nothing to be ordered, nor by
//! what an atomic operation reads, though PTX orders those too. Which write a read finds depends on the order in which
//! warps ran: a wait that may end too soon shows where it did.

use std::collections::HashMap;

/// By the number of a block, how many of its barriers come before.
type Epochs = Vec<u32>;

/// What a block knows, as an access of it is judged by it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    /// `None` in a kernel whose blocks are told nothing.
    epochs: Option<&'a [u32]>,
}

impl<'a> Known<'a> {
    /// In a kernel that does not fence.
    pub(crate) const NOTHING: Self = Self { epochs: None };

    /// Of a kernel that fences.
    pub(super) fn of(epochs: &'a [u32]) -> Self {
        Self { epochs: Some(epochs) }
    }

    /// Whether blocks may come to know of one another.
    pub(super) fn is_told(self) -> bool {
        self.epochs.is_some()
    }

    /// Whether what a block did in an epoch comes before.
    pub(super) fn has(self, block: u32, epoch: u32) -> bool {
        self.epochs.and_then(|epochs| epochs.get(block as usize)).is_some_and(|before| epoch < *before)
    }
}

/// Raises to another's.
fn join(mine: &mut Epochs, other: &[u32]) {
    if mine.len() < other.len() {
        mine.resize(other.len(), 0);
    }
    mine.iter_mut().zip(other).for_each(|(mine, other)| *mine = (*mine).max(*other));
}

/// What a thread has been told, and would tell.
#[derive(Debug, Default)]
struct Thread {
    /// By words that it has read strongly. Told by its next fence.
    seen: Epochs,
    /// By its last fence: told by words that it writes strongly.
    fenced: Epochs,
}

/// What a block knows.
#[derive(Debug, Default)]
pub(crate) struct Block {
    known: Epochs,
    /// What its threads have been told since its last barrier.
    told: Epochs,
    /// Those that have been told or would tell anything.
    threads: HashMap<u16, Thread>,
}

impl Block {
    pub(crate) fn known(&self) -> Known<'_> {
        Known::of(&self.known)
    }

    /// All threads have come to a barrier.
    pub(crate) fn barrier(&mut self) {
        join(&mut self.known, &self.told);
        self.told.clear();
    }

    /// A thread of the block, whose number this is and which has passed so many barriers, fences.
    pub(crate) fn fence(&mut self, block: u32, epoch: u32, thread: u16) {
        let of = self.threads.entry(thread).or_default();
        join(&mut self.told, &of.seen);
        of.fenced.clone_from(&self.known);
        join(&mut of.fenced, &of.seen);
        let own = block as usize;
        if of.fenced.len() <= own {
            of.fenced.resize(own + 1, 0);
        }
        of.fenced[own] = epoch;
    }
}

/// What words tell those that read them strongly.
#[derive(Debug, Default)]
pub(crate) struct Words(HashMap<u64, Epochs>);

impl Words {
    /// A thread of a block reads the word at an address, if `strong` so that it may be told by it.
    pub(crate) fn read(&self, block: &mut Block, thread: u16, address: u64, strong: bool) {
        if let (true, Some(word)) = (strong, self.0.get(&address)) {
            join(&mut block.threads.entry(thread).or_default().seen, word);
        }
    }

    /// A thread writes. An atomic operation leaves in the word what those before it tell; any other write ends it.
    pub(crate) fn write(&mut self, block: &Block, thread: u16, address: u64, strong: bool, atomic: bool) {
        if !atomic && !self.0.is_empty() {
            self.0.remove(&address);
        }
        if !(strong || atomic) {
            return;
        }
        let fenced = block.threads.get(&thread).map(|of| &of.fenced).filter(|fenced| !fenced.is_empty());
        if let Some(fenced) = fenced {
            join(self.0.entry(address).or_default(), fenced);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAG: u64 = 64;

    /// What block 1 knows of block 0 after its next barrier, if block 0 passes two barriers, and these then happen.
    fn told(fences: [bool; 2], strong: [bool; 2], between: impl FnOnce(&mut Words)) -> [bool; 3] {
        let (mut words, mut from, mut to) = (Words::default(), Block::default(), Block::default());
        if fences[0] {
            from.fence(0, 2, 0);
        }
        words.write(&from, 0, FLAG, strong[0], false);
        between(&mut words);
        words.read(&mut to, 0, FLAG, strong[1]);
        if fences[1] {
            to.fence(1, 5, 0);
        }
        assert!(!to.known().has(0, 0), "before a barrier only the thread itself would know");
        to.barrier();
        [0, 1, 2].map(|epoch| to.known().has(0, epoch))
    }

    #[test]
    fn a_block_knows_what_was_fenced_and_read_strongly_and_fenced() {
        assert_eq!(told([true; 2], [true; 2], |_| ()), [true, true, false], "what is before its last barrier");
        for (fences, strong) in [
            ([false, true], [true; 2]),
            ([true, false], [true; 2]),
            ([true; 2], [false, true]),
            ([true; 2], [true, false]),
        ] {
            assert_eq!(told(fences, strong, |_| ()), [false; 3], "{fences:?} {strong:?}");
        }
    }

    #[test]
    fn an_atomic_operation_of_another_passes_on_what_a_word_tells() {
        let atomic = |words: &mut Words| words.write(&Block::default(), 9, FLAG, false, true);
        assert_eq!(told([true; 2], [true; 2], atomic), [true, true, false]);
        let store = |words: &mut Words| words.write(&Block::default(), 9, FLAG, true, false);
        assert_eq!(told([true; 2], [true; 2], store), [false; 3]);
    }

    #[test]
    fn what_a_block_was_told_it_tells() {
        let (mut words, mut blocks) = (Words::default(), [(); 3].map(|()| Block::default()));
        blocks[0].fence(0, 1, 0);
        words.write(&blocks[0], 0, FLAG, false, true);
        words.read(&mut blocks[1], 3, FLAG, true);
        blocks[1].fence(1, 4, 3);
        blocks[1].barrier();
        // Another thread than was told: its block's barrier lies between.
        blocks[1].fence(1, 5, 0);
        words.write(&blocks[1], 0, FLAG + 4, false, true);
        words.read(&mut blocks[2], 0, FLAG + 4, true);
        blocks[2].fence(2, 0, 0);
        blocks[2].barrier();
        let known = blocks[2].known();
        assert!(known.has(0, 0) && !known.has(0, 1) && known.has(1, 4) && !known.has(1, 5));
    }
}
