//! Who touched what: finds two accesses that nothing orders.
//!
//! Two accesses of one launch to one byte are ordered if one thread makes both, if a barrier of their block lies
//! between, or a barrier of their warp; of two blocks, if one has been told of the other's barrier since
//! ([`super::order`]). If they are not, and one of them writes, and not both are atomic, they race: whatever order this
//! run had, another may have the other. Every access is remembered by its last writer and by what is needed of its
//! readers, as FastTrack does it (Flanagan and Freund 2009), with barriers in place of clocks.

use super::order::Known;
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
    /// Whether this access, the earlier in this run, comes before `later` in every run, of which its block knows as
    /// much.
    fn before(&self, later: &Who, known: Known<'_>) -> bool {
        (self.block == later.block && self.thread == later.thread) || self.barrier_before(later, known)
    }

    /// Whether a barrier lies between, whichever threads of the same warp the two are by.
    fn barrier_before(&self, later: &Who, known: Known<'_>) -> bool {
        self.epoch_before(later, known) || (self.same_warp(later) && self.phase < later.phase)
    }

    /// Whether a barrier lies between, whichever threads of the same block the two are by.
    fn epoch_before(&self, later: &Who, known: Known<'_>) -> bool {
        if self.block == later.block { self.epoch < later.epoch } else { known.has(self.block, self.epoch) }
    }

    fn same_warp(&self, other: &Who) -> bool {
        self.block == other.block && self.thread / 32 == other.thread / 32
    }

    /// Whether this plain write and `later` race.
    fn races(&self, later: &Who, known: Known<'_>) -> bool {
        self.launch == later.launch && !self.before(later, known)
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

/// Accesses none of which races with another of them: plain reads, atomic reads, or atomics that write.
#[derive(Clone, Debug, Default)]
struct Several {
    last: Who,
    of: Readers,
    /// Of several blocks the last access of each, where blocks may come to know of one another.
    #[allow(clippy::box_collection, reason = "few cells have any, and there are many cells")]
    each: Option<Box<Vec<Who>>>,
}

impl Several {
    fn add(&mut self, now: &Who, known: Known<'_>) {
        let same_launch = self.last.launch == now.launch;
        let of = match self.of {
            // What is before the last barrier is before all that its threads do from now on.
            _ if !same_launch || self.are_before(now, known) => Readers::One,
            Readers::Grid => Readers::Grid,
            _ if self.last.block != now.block => Readers::Grid,
            Readers::One if self.last.thread == now.thread => Readers::One,
            Readers::One | Readers::Warp if self.last.same_warp(now) => Readers::Warp,
            _ => Readers::Block,
        };
        if of != Readers::Grid {
            self.each = None;
        } else if known.is_told() {
            // Those of one block were after its last barrier, or they would not stand for it.
            let each = self.each.get_or_insert_with(|| Box::new(vec![self.last]));
            match each.iter_mut().find(|who| who.block == now.block) {
                Some(who) => *who = *now,
                None => each.push(*now),
            }
        }
        self.of = of;
        self.last = *now;
    }

    /// Whether all of them come before whatever the threads of `now`'s block, or where they were of one warp of that
    /// one, do from now on.
    fn are_before(&self, now: &Who, known: Known<'_>) -> bool {
        match self.of {
            Readers::One | Readers::Warp => self.last.barrier_before(now, known),
            Readers::Block => self.last.epoch_before(now, known),
            Readers::Grid => self.each.as_ref().is_some_and(|each| each.iter().all(|who| who.epoch_before(now, known))),
        }
    }

    /// Whether one of them is not ordered before `now`.
    fn race(&self, now: &Who, known: Known<'_>) -> bool {
        self.last.launch == now.launch
            && match self.of {
                Readers::One => !self.last.before(now, known),
                _ => !self.are_before(now, known),
            }
    }
}

/// What is remembered of one byte, or of an aligned power of two of bytes that was only touched whole.
#[derive(Clone, Debug, Default)]
struct Cell {
    /// The last plain write.
    write: Who,
    reads: Several,
    /// Of the few that atomic operations touch: what is remembered of most cells stays small, for there are many.
    atomic: Option<Box<Atomic>>,
}

/// What is remembered of atomic operations on a cell.
#[derive(Clone, Debug, Default)]
struct Atomic {
    reads: Several,
    /// Those that write. They do not order one another, so the last does not stand for the others.
    writes: Several,
}

impl Cell {
    fn read(&mut self, now: &Who, known: Known<'_>) -> Option<Party> {
        if self.write.races(now, known) {
            return Some(self.write.party(true));
        }
        if now.atomic {
            self.atomic.get_or_insert_default().reads.add(now, known);
            return None;
        }
        if let Some(atomic) = self.atomic.as_ref().filter(|atomic| atomic.writes.race(now, known)) {
            return Some(atomic.writes.last.party(true));
        }
        self.reads.add(now, known);
        None
    }

    fn write(&mut self, now: &Who, known: Known<'_>) -> Option<Party> {
        if self.write.races(now, known) {
            return Some(self.write.party(true));
        }
        if self.reads.race(now, known) {
            return Some(self.reads.last.party(false));
        }
        if now.atomic {
            self.atomic.get_or_insert_default().writes.add(now, known);
            return None;
        }
        if let Some(atomic) = &self.atomic {
            if atomic.writes.race(now, known) {
                return Some(atomic.writes.last.party(true));
            }
            if atomic.reads.race(now, known) {
                return Some(atomic.reads.last.party(false));
            }
        }
        self.write = *now;
        None
    }
}

/// Bytes whose cells are kept together.
pub(super) const PAGE: usize = 1024;
/// The cells of a page: one for as many bytes as the narrowest access so far has had.
#[derive(Clone, Debug)]
pub(super) struct Page {
    /// At least as many as there are; those after are of an earlier use of the page.
    cells: Vec<Cell>,
    /// The base-2 logarithm of the bytes of a cell.
    each_log2: u32,
}

impl Page {
    /// A page whose cells have that many bytes. A page of another buffer's can be made one, since what it holds is of
    /// earlier launches, of which none races with a later one.
    fn new(spare: Option<Self>, each_log2: u32) -> Self {
        let mut cells = spare.map_or_else(Vec::new, |page| page.cells);
        if cells.len() < PAGE >> each_log2 {
            cells.resize_with(PAGE >> each_log2, Cell::default);
        }
        Self { cells, each_log2 }
    }

    #[cold]
    fn split(&mut self, each_log2: u32) {
        let (count, times) = (PAGE >> self.each_log2, 1 << (self.each_log2 - each_log2));
        if self.cells.len() < count * times {
            self.cells.resize_with(count * times, Cell::default);
        }
        // From the last to the first, so that none is overwritten before it is copied.
        for index in (0..count).rev() {
            let cell = std::mem::take(&mut self.cells[index]);
            self.cells[index * times..][..times].fill(cell);
        }
        self.each_log2 = each_log2;
    }
}

/// The memory of accesses to a buffer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shadow {
    pages: Vec<Option<Page>>,
    /// Pages of buffers that were freed, to be used before new ones are made: to make one takes longer than to fill it.
    spare: Vec<Page>,
}

impl Shadow {
    /// One that uses these pages first. They must be of the same machine, so that no launch of theirs comes again.
    pub(super) fn with_spare(spare: Vec<Page>) -> Self {
        Self { pages: Vec::new(), spare }
    }

    /// All its pages, for another buffer of the same machine.
    pub(super) fn into_pages(self) -> impl Iterator<Item = Page> {
        self.pages.into_iter().flatten().chain(self.spare)
    }

    /// Notes an access of `bytes` (a power of two, at most 16) at `at`, a multiple of it; the other party of a race, if
    /// there is one.
    #[inline]
    pub(crate) fn note(&mut self, at: usize, bytes: usize, now: &Who, known: Known<'_>, writes: bool) -> Option<Party> {
        let (number, within) = (at / PAGE, at % PAGE);
        let bytes_log2 = bytes.trailing_zeros();
        let page = match self.pages.get_mut(number) {
            Some(Some(page)) => page,
            _ => Self::page(&mut self.pages, &mut self.spare, number, bytes_log2),
        };
        if bytes_log2 < page.each_log2 {
            page.split(bytes_log2);
        }
        let first = within >> page.each_log2;
        let cells = &mut page.cells[first..first + (bytes >> page.each_log2)];
        for cell in cells {
            let other = if writes { cell.write(now, known) } else { cell.read(now, known) };
            if other.is_some() {
                return other;
            }
        }
        None
    }

    #[cold]
    fn page<'a>(
        pages: &'a mut Vec<Option<Page>>,
        spare: &mut Vec<Page>,
        number: usize,
        each_log2: u32,
    ) -> &'a mut Page {
        if number >= pages.len() {
            pages.resize_with(number + 1, || None);
        }
        pages[number].get_or_insert_with(|| Page::new(spare.pop(), each_log2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Who = Who { launch: 1, block: 0, epoch: 0, phase: 0, line: 1, thread: 0, atomic: false };

    const NOTHING: Known<'static> = Known::NOTHING;

    fn race(first: Who, writes: bool, second: Who, also_writes: bool) -> bool {
        let mut shadow = Shadow::default();
        assert_eq!(shadow.note(64, 4, &first, NOTHING, writes), None);
        shadow.note(64, 4, &second, NOTHING, also_writes).is_some()
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
            assert_eq!(shadow.note(0, 4, &Who { thread, ..BASE }, NOTHING, false), None);
        }
        // The last reader may write what only it had read; here, others had.
        assert!(shadow.note(0, 4, &Who { thread: 2, ..BASE }, NOTHING, true).is_some());
        assert!(
            shadow.note(0, 4, &Who { thread: 40, phase: 1, ..BASE }, NOTHING, true).is_some(),
            "a barrier of another warp"
        );
        let mut fork = shadow.clone();
        assert_eq!(fork.note(0, 4, &Who { thread: 2, phase: 1, ..BASE }, NOTHING, true), None);
        assert_eq!(shadow.note(0, 4, &Who { thread: 40, epoch: 1, ..BASE }, NOTHING, true), None);
    }

    #[test]
    fn neighbours_in_a_word_do_not_race() {
        let mut shadow = Shadow::default();
        for thread in 0..4 {
            assert_eq!(shadow.note(usize::from(thread), 1, &Who { thread, ..BASE }, NOTHING, true), None);
        }
        assert!(shadow.note(0, 4, &BASE, NOTHING, true).is_some(), "the whole word does");
        assert_eq!(shadow.note(2048, 16, &BASE, NOTHING, true), None);
        assert!(
            shadow.note(2060, 2, &Who { thread: 7, ..BASE }, NOTHING, false).is_some(),
            "a half in the last of four words"
        );
    }

    /// Against every earlier access, one by one: no race is missed, and none is invented.
    #[test]
    fn what_is_remembered_is_enough() {
        let mut state = 12_345u64;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % below
        };
        let (mut races, mut quiet) = (0, 0);
        for turn in 0..100_000 {
            // In every other turn blocks are told of one another.
            let is_told = turn % 2 == 1;
            let mut shadow = Shadow::default();
            let mut log: Vec<(usize, usize, Who, bool)> = Vec::new();
            let (mut epoch, mut phase) = ([0u32; 3], [[0u32; 2]; 3]);
            let mut knows = [[0u32; 3]; 3];
            let (length, rare) = (3 + random(10), 4 + random(3));
            let mut raced = false;
            while !raced && (log.len() as u64) < length {
                let block = [0, 0, 0, 1, 1, 2][random(6) as usize];
                let warp = random(2) as usize;
                match random(rare) {
                    0 => {
                        epoch[block] += 1;
                        let of = random(3) as usize;
                        if is_told && of != block {
                            let told = knows[of];
                            knows[block].iter_mut().zip(told).for_each(|(mine, other)| *mine = other.max(*mine));
                            knows[block][of] = epoch[of];
                        }
                    }
                    1 => phase[block][warp] += 1,
                    _ => {
                        let size = [1usize, 2, 4, 4, 8, 16][random(6) as usize];
                        let at = random(16 / size as u64) as usize * size;
                        let (atomic, writes) = (random(2) == 0, random(2) == 0);
                        let thread = (warp as u64 * 32 + random(2)) as u16;
                        let (epoch, phase) = (epoch[block], phase[block][warp]);
                        let now = Who { block: block as u32, epoch, phase, thread, atomic, ..BASE };
                        let races = |(other_at, other_size, other, wrote): &(usize, usize, Who, bool)| {
                            let overlap = *other_at < at + size && at < other_at + other_size;
                            let ordered = if other.block == now.block {
                                other.thread == now.thread
                                    || other.epoch < now.epoch
                                    || (other.thread / 32 == now.thread / 32 && other.phase < now.phase)
                            } else {
                                other.epoch < knows[block][other.block as usize]
                            };
                            overlap && (*wrote || writes) && !(other.atomic && atomic) && !ordered
                        };
                        raced = log.iter().any(races);
                        let known = if is_told { Known::of(&knows[block]) } else { Known::NOTHING };
                        let found = shadow.note(at, size, &now, known, writes).is_some();
                        assert_eq!(found, raced, "{now:?} of {knows:?} after {log:?}");
                        log.push((at, size, now, writes));
                    }
                }
            }
            races += u32::from(raced);
            quiet += u32::from(!raced);
        }
        assert!(races > 20_000 && quiet > 4_000, "{races} with a race, {quiet} without");
    }
}
