//! Who touched what: finds two accesses that nothing orders.
//!
//! Two accesses of one launch to one byte are ordered if one thread makes both, if a barrier of their block lies
//! between, or a barrier of their warp. If they are not, and one of them writes, and not both are atomic, they race:
//! whatever order this run had, another may have the other. Every access is remembered by its last writer and by what
//! is needed of its readers, as FastTrack does it (Flanagan and Freund 2009), with barriers in the place of clocks.

use crate::fault::Party;

/// An access: by whom, when, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Who {
    /// The launch, from 1. Nothing of an earlier launch can race.
    pub(crate) launch: u32,
    pub(crate) block: u32,
    /// How many barriers of its block the thread has passed.
    pub(crate) epoch: u32,
    /// How many barriers of its warp the thread has passed.
    pub(crate) phase: u32,
    /// The instruction's line.
    pub(crate) line: u32,
    pub(crate) thread: u16,
    pub(crate) atomic: bool,
}

impl Who {
    /// Whether this access, the earlier in this run, comes before `later` in every run.
    fn before(&self, later: &Who) -> bool {
        (self.block == later.block && self.thread == later.thread) || self.barrier_before(later)
    }

    /// Whether a barrier lies between, whichever threads of the same warp the two are by.
    fn barrier_before(&self, later: &Who) -> bool {
        self.block == later.block && (self.epoch < later.epoch || (self.same_warp(later) && self.phase < later.phase))
    }

    fn same_warp(&self, other: &Who) -> bool {
        self.block == other.block && self.thread / 32 == other.thread / 32
    }

    fn races(&self, later: &Who) -> bool {
        self.launch == later.launch && !(self.atomic && later.atomic) && !self.before(later)
    }

    fn party(&self, wrote: bool) -> Party {
        Party { block: self.block, thread: self.thread.into(), line: self.line, wrote }
    }
}

/// Whose reads the remembered one stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Readers {
    /// Its own.
    #[default]
    One,
    /// Those of several threads of its warp, none of them before its last barrier.
    Warp,
    /// Those of several warps of its block, none of them before its epoch.
    Block,
    /// Those of several blocks.
    Grid,
}

/// What is remembered of one byte, or of an aligned word that was only touched whole.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    write: Who,
    read: Who,
    readers: Readers,
}

impl Cell {
    fn read(&mut self, now: &Who) -> Option<Party> {
        if self.write.races(now) {
            return Some(self.write.party(true));
        }
        let same_launch = self.read.launch == now.launch;
        let ordered = same_launch
            && match self.readers {
                Readers::One | Readers::Warp => self.read.barrier_before(now),
                Readers::Block => self.read.block == now.block && self.read.epoch < now.epoch,
                Readers::Grid => false,
            };
        self.readers = match self.readers {
            // What is before the last barrier is before all that its threads do from now on.
            _ if !same_launch || ordered => Readers::One,
            Readers::Grid => Readers::Grid,
            _ if self.read.block != now.block => Readers::Grid,
            Readers::One if self.read.thread == now.thread => Readers::One,
            Readers::One | Readers::Warp if self.read.same_warp(now) => Readers::Warp,
            _ => Readers::Block,
        };
        // Two reads count as atomic together only if both were.
        let atomic = now.atomic && (!same_launch || ordered || self.read.atomic);
        self.read = Who { atomic, ..*now };
        None
    }

    fn write(&mut self, now: &Who) -> Option<Party> {
        if self.write.races(now) {
            return Some(self.write.party(true));
        }
        let other_reads = match self.readers {
            _ if self.read.launch != now.launch || (self.read.atomic && now.atomic) => false,
            Readers::One => self.read.races(now),
            Readers::Warp => !self.read.barrier_before(now),
            Readers::Block => self.read.block != now.block || self.read.epoch >= now.epoch,
            Readers::Grid => true,
        };
        if other_reads {
            return Some(self.read.party(false));
        }
        self.write = *now;
        None
    }
}

/// Bytes whose cells are kept together.
const PAGE: usize = 1024;

/// The cells of a page: one a word until a part of a word is touched, then one a byte.
#[derive(Clone, Debug)]
enum Page {
    Words(Box<[Cell; PAGE / 4]>),
    Bytes(Box<[Cell; PAGE]>),
}

impl Page {
    fn split(&mut self) {
        if let Self::Words(words) = self {
            let mut bytes = vec![Cell::default(); PAGE];
            for (word, bytes) in words.iter().zip(bytes.chunks_exact_mut(4)) {
                bytes.fill(*word);
            }
            if let Ok(bytes) = bytes.into_boxed_slice().try_into() {
                *self = Self::Bytes(bytes);
            }
        }
    }

    fn cells(&mut self, at: usize, bytes: usize) -> &mut [Cell] {
        if bytes < 4 {
            self.split();
        }
        match self {
            Self::Words(words) => &mut words[at / 4..(at + bytes) / 4],
            Self::Bytes(cells) => &mut cells[at..at + bytes],
        }
    }
}

/// The memory of accesses to a buffer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shadow {
    pages: Vec<Option<Page>>,
}

impl Shadow {
    /// Notes an access of `bytes` (a power of two, at most 16) at `at`, a multiple of it; the other party of a race, if
    /// there is one.
    pub(crate) fn note(&mut self, at: usize, bytes: usize, now: &Who, writes: bool) -> Option<Party> {
        let (page, within) = (at / PAGE, at % PAGE);
        if page >= self.pages.len() {
            self.pages.resize(page + 1, None);
        }
        let page = self.pages[page].get_or_insert_with(|| Page::Words(Box::new([Cell::default(); PAGE / 4])));
        let cells = page.cells(within, bytes).iter_mut();
        cells.filter_map(|cell| if writes { cell.write(now) } else { cell.read(now) }).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Who = Who { launch: 1, block: 0, epoch: 0, phase: 0, line: 1, thread: 0, atomic: false };

    fn race(first: Who, writes: bool, second: Who, also_writes: bool) -> bool {
        let mut shadow = Shadow::default();
        assert_eq!(shadow.note(64, 4, &first, writes), None);
        shadow.note(64, 4, &second, also_writes).is_some()
    }

    #[test]
    fn what_orders_two_accesses() {
        let other = Who { thread: 1, ..BASE };
        assert!(race(BASE, true, other, false) && race(BASE, false, other, true) && race(BASE, true, other, true));
        assert!(!race(BASE, false, other, false), "two reads");
        assert!(!race(BASE, true, BASE, true), "one thread");
        let barrier = Who { epoch: 1, ..other };
        assert!(!race(BASE, true, barrier, false) && !race(BASE, false, barrier, true));
        let warp_barrier = Who { phase: 1, ..other };
        assert!(!race(BASE, true, warp_barrier, false));
        assert!(race(BASE, true, Who { phase: 1, thread: 32, ..BASE }, false), "a barrier of another warp");
        let block = Who { block: 1, epoch: 9, ..BASE };
        assert!(race(BASE, true, block, false) && race(BASE, false, block, true));
        assert!(!race(BASE, true, Who { launch: 2, ..block }, true), "another launch");
        let (atomic, also) = (Who { atomic: true, ..BASE }, Who { atomic: true, ..block });
        assert!(!race(atomic, true, also, true) && race(atomic, true, block, false) && race(BASE, false, also, true));
    }

    #[test]
    fn all_readers_count() {
        let mut shadow = Shadow::default();
        for thread in 0..3 {
            assert_eq!(shadow.note(0, 4, &Who { thread, ..BASE }, false), None);
        }
        // The last reader may write what only it had read; here, others had.
        assert!(shadow.note(0, 4, &Who { thread: 2, ..BASE }, true).is_some());
        assert!(shadow.note(0, 4, &Who { thread: 40, phase: 1, ..BASE }, true).is_some(), "a barrier of another warp");
        let mut fork = shadow.clone();
        assert_eq!(fork.note(0, 4, &Who { thread: 2, phase: 1, ..BASE }, true), None);
        assert_eq!(shadow.note(0, 4, &Who { thread: 40, epoch: 1, ..BASE }, true), None);
    }

    #[test]
    fn neighbours_in_a_word_do_not_race() {
        let mut shadow = Shadow::default();
        for thread in 0..4 {
            assert_eq!(shadow.note(usize::from(thread), 1, &Who { thread, ..BASE }, true), None);
        }
        assert!(shadow.note(0, 4, &BASE, true).is_some(), "the whole word does");
        assert_eq!(shadow.note(2048, 16, &BASE, true), None);
        assert!(shadow.note(2060, 2, &Who { thread: 7, ..BASE }, false).is_some(), "a half in the last of four words");
    }
}
