//! The passes that select the entries of largest magnitude, on a device that runs passes.

mod large;
mod passes;
mod sent;
#[cfg(test)]
mod tests;

use gradwire_kernels::arith::topk::NO_KEY;
use gradwire_kernels::params::{
    HISTOGRAM_WORDS, SKETCH_WORDS, SelectParams, TILE, WARP_SEGMENT, room, segment, select_flags, state, sum_words,
};
use half::{bf16, f16};

use self::large::{Large, SAMPLES};
pub(crate) use self::sent::Sent;
use crate::codec::topk::Select;
use crate::gradient::Dtype;
use crate::plan::{ALIGNMENT, STATUS_BYTES, Sizes};

/// The most room for candidates of both filters: 32-bit word offsets reach three arrays of this length.
const MOST_CANDIDATES: u64 = 1 << 30;
/// The most room for candidates of the first filter.
const MOST_FIRST: u64 = 1 << 29;
/// The most words of a workspace: 32-bit word offsets reach them.
const MOST_WORDS: u64 = 1 << 32;

/// How a device selects from a gradient of one length and type.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SelectPlan {
    elements: u64,
    dtype: Dtype,
    /// Segments of more than one tile, and the one segment of a threshold.
    large: Vec<Large>,
    /// Segments that lie within a tile, which a workgroup selects from in registers.
    small: Vec<Large>,
    /// Segments that a warp selects from in registers.
    tiny: Vec<Large>,
    /// Blocks that lie within a tile: elements of a block, and how many of them are kept.
    blocks: Option<(u64, u64)>,
    /// How many entries are kept at most.
    entries: u64,
    /// Parameters that all passes share.
    base: SelectParams,
    /// The words with which the workspace begins: the large, small and tiny segments, in this order.
    table: Vec<u32>,
    workspace_words: u64,
}

impl SelectPlan {
    /// `sent`: kept entries are sent exactly, so their residual becomes zero.
    pub(crate) fn new(select: &Select, elements: u64, dtype: Dtype, feedback: bool, sent: bool) -> Self {
        let mut parts = Vec::new();
        let mut blocks = None;
        let mut output = 0;
        let mut part = |start: u64, elements: u64, keep: u64, floor: Option<u32>| {
            parts.push(Large { start, elements, keep, output, floor });
            output += keep;
        };
        match select {
            Select::Largest(keep) => part(0, elements, *keep, None),
            Select::Above(threshold) => part(0, elements, elements, Some(threshold_key(*threshold, dtype, feedback))),
            Select::Segments(segments) => {
                let mut start = 0;
                for s in segments.iter() {
                    part(start, s.elements, s.k, None);
                    start += s.elements;
                }
            }
            // Blocks that are kept whole are the whole gradient.
            Select::Blocks { elements: block, k } if k >= block => part(0, elements, elements, None),
            Select::Blocks { elements: block, k } => {
                if in_one(*block, TILE) {
                    blocks = Some((*block, *k));
                    // Every block but the last keeps `k`.
                    let full = elements / block;
                    output = full * k + (elements % block).min(*k);
                } else {
                    let mut start = 0;
                    while start < elements {
                        let len = (*block).min(elements - start);
                        part(start, len, (*k).min(len), None);
                        start += len;
                    }
                }
            }
        }
        let nothing = |p: &Large| p.elements == 0 || (p.keep == 0 && !feedback);
        parts.retain(|p| !nothing(p));
        let fits = |p: &Large, most: u32| p.floor.is_none() && p.start % 32 + p.elements <= most.into();
        let (tiny, parts): (Vec<Large>, Vec<Large>) = parts.into_iter().partition(|p| fits(p, WARP_SEGMENT));
        let (small, mut large): (Vec<Large>, Vec<Large>) = parts.into_iter().partition(|p| fits(p, TILE));
        for p in &mut large {
            p.floor = p.floor.or(match p.keep {
                0 => Some(NO_KEY),
                keep if keep == p.elements => Some(0),
                _ => None,
            });
        }
        if elements == 0 || output == 0 && !feedback {
            blocks = None;
        }
        let flag = |on: bool, flag: u32| if on { flag } else { 0 };
        let flags = flag(feedback, select_flags::FEEDBACK) | flag(sent && feedback, select_flags::SENT);
        let mut plan = Self {
            elements,
            dtype,
            large,
            small,
            tiny,
            blocks,
            entries: output,
            base: SelectParams { flags, ..SelectParams::default() },
            table: Vec::new(),
            workspace_words: 0,
        };
        plan.lay_out();
        plan
    }

    /// Writes the table, and shares out the workspace.
    fn lay_out(&mut self) {
        let longest = self.large.iter().map(|l| l.elements).max().unwrap_or(0);
        let samples = SAMPLES.into_iter().find(|s| longest >= s.1).unwrap_or(SAMPLES[5]);
        let feedback = self.base.flags & select_flags::FEEDBACK != 0;
        // A half's key has 15 bits, and a round tells 11.
        let rounds = if self.dtype == Dtype::F32 || feedback { 3 } else { 2 };
        let (mut tiles, mut capacity) = (0u64, [0u64; 2]);
        for l in self.large.iter().chain(&self.small).chain(&self.tiny) {
            let mut words = [0u32; segment::WORDS as usize];
            let mut set = |word: u32, value: u64| words[word as usize] = value as u32;
            set(segment::START, l.start);
            set(segment::ELEMENTS, l.elements);
            set(segment::KEEP, l.keep);
            set(segment::OUTPUT, l.output);
            set(segment::FIRST_TILE, tiles);
            set(segment::FIXED, l.floor.is_some().into());
            set(segment::FLOOR, l.floor.unwrap_or(0).into());
            let (slots_log2, low, high, expected) = l.guess(samples);
            set(segment::SLOTS_LOG2, slots_log2.into());
            set(segment::RANK_LOW, low.into());
            set(segment::RANK_HIGH, high.into());
            let unsampled = l.is_unsampled(self.dtype, feedback);
            set(segment::UNSAMPLED, unsampled.into());
            let [low, high] = l.sketch();
            set(segment::SKETCH_LOW, low);
            set(segment::SKETCH_HIGH, high);
            self.table.extend(words);
            if self.table.len() <= self.large.len() * segment::WORDS as usize {
                tiles += l.tiles();
                let [first, again] = l.room(expected);
                capacity[0] += if unsampled { 0 } else { first };
                capacity[1] += again;
            }
        }
        let large = self.large.len() as u64;
        let aligned = |words: u64| words.next_multiple_of(ALIGNMENT / 4);
        let room = aligned(self.table.len() as u64 + (large << (samples.0 + 1)));
        let states = room + u64::from(room::WORDS);
        let sums = states + 3 * large * u64::from(state::WORDS);
        let histograms = aligned(sums + 2 * u64::from(sum_words(tiles as u32)));
        let info = histograms + 3 * large * u64::from(HISTOGRAM_WORDS);
        let counts = info + 4 * tiles;
        let values = aligned(counts + 2 * tiles);
        // The words after `values` that 32-bit offsets reach, shared by three arrays of candidates.
        let most = MOST_CANDIDATES.min((MOST_WORDS - values) / 3 / 64 * 64);
        let capacity_first = capacity[0].min(MOST_FIRST).min(most / 128 * 64).next_multiple_of(64);
        // The sketch lies there until the second filter needs the room.
        let sketch = if self.is_sought() { tiles * u64::from(SKETCH_WORDS) } else { 0 };
        let again = capacity[1].min(most - capacity_first).max(sketch).next_multiple_of(64);
        if again < capacity[1] {
            // Tiles that find no room are read as they are, so every element of every tile has to be a candidate.
            for words in self.table.chunks_exact_mut(segment::WORDS as usize) {
                words[segment::SKETCH_LOW as usize] = 0;
                words[segment::SKETCH_HIGH as usize] = 0;
            }
        }
        let capacity = capacity_first;
        let all = capacity + again;
        let (places, band) = (values + all, values + 2 * all);
        self.workspace_words = if large > 0 { band + all } else { self.table.len() as u64 };
        self.base = SelectParams {
            elements: self.elements as u32,
            dtype: self.dtype.tag().into(),
            samples_log2: samples.0,
            rounds,
            capacity: capacity as u32,
            capacity_again: again as u32,
            all_tiles: tiles as u32,
            room: room as u32,
            states: states as u32,
            histograms: histograms as u32,
            sums: sums as u32,
            info: info as u32,
            counts: counts as u32,
            values: values as u32,
            places: places as u32,
            band: band as u32,
            ..self.base
        };
    }

    /// Whether a segment's last kept key is looked for.
    fn is_sought(&self) -> bool {
        self.large.iter().any(|l| l.floor.is_none())
    }

    /// Of each segment of the table, the first element and the number of elements.
    pub(crate) fn parts(&self) -> Vec<(u64, u64)> {
        self.large.iter().chain(&self.small).chain(&self.tiny).map(|l| (l.start, l.elements)).collect()
    }

    /// This plan for a residual that still holds the entries of the last selection: `pending` names them for each of
    /// [`parts`](Self::parts). They count as zero when the residual is read. Its own entries stay in the residual
    /// likewise, but those of blocks without a table become zero at once.
    pub(crate) fn lazily(mut self, pending: &[Option<Sent>]) -> Self {
        if self.blocks.is_none() {
            self.base.flags &= !select_flags::SENT;
        }
        if pending.iter().any(Option::is_some) {
            self.base.flags |= select_flags::LAZY;
        }
        for (words, sent) in self.table.chunks_exact_mut(segment::WORDS as usize).zip(pending) {
            let (key, index) = sent.map_or((NO_KEY, 0), |sent| (sent.key, sent.index));
            words[segment::SENT_KEY as usize] = key;
            words[segment::SENT_INDEX as usize] = index;
        }
        self
    }

    /// This plan for a residual that still holds the entries of the last selection, which the table on the device
    /// names. A selection reads those names, and leaves its own there. Entries of segments and blocks that lie within a
    /// tile become zero at once.
    pub(crate) fn late(mut self) -> Self {
        if self.is_late_at_all() {
            self.base.flags |= select_flags::LAZY | select_flags::LEAVES_SENT;
        }
        for words in self.table.chunks_exact_mut(segment::WORDS as usize) {
            words[segment::SENT_KEY as usize] = NO_KEY;
            words[segment::SENT_INDEX as usize] = 0;
        }
        self
    }

    /// Whether there are segments whose sent entries may still be in the residual.
    pub(crate) fn is_late_at_all(&self) -> bool {
        !self.large.is_empty()
    }

    /// The words with which the workspace begins; little-endian in memory.
    pub(crate) fn table(&self) -> &[u32] {
        &self.table
    }

    /// The type of the gradient.
    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The number of entries that are kept; with a threshold, the most that may be.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// The byte of the workspace at which a word says how many elements reach the threshold.
    pub(crate) fn total_at(&self) -> u64 {
        // All of them are sure, and there is one segment.
        4 * u64::from(self.states(1) + state::COUNT_SURE)
    }

    /// The byte of the workspace at which a word is not zero if workgroups waited for one another in vain.
    pub(crate) fn stuck_at(&self) -> u64 {
        4 * u64::from(self.base.room + room::STUCK)
    }

    /// Bytes of each buffer.
    pub(crate) fn sizes(&self) -> Sizes {
        let input = (self.elements * self.dtype.bytes() as u64).next_multiple_of(4);
        let residual = if self.base.flags & select_flags::FEEDBACK != 0 { 4 * self.elements } else { 0 };
        let entries = 4 * self.entries;
        Sizes([input, residual, 0, 0, 4 * self.workspace_words, STATUS_BYTES, 0, entries, entries])
    }
}

/// Whether every block of a gradient lies within `most` elements that begin at a multiple of 32.
fn in_one(block: u64, most: u32) -> bool {
    let most = u64::from(most);
    block <= most && (block.is_multiple_of(32) || block + 31 <= most)
}

/// The lowest key of elements whose magnitude is at least a threshold: a half's key for halves, else that of an f32.
fn threshold_key(threshold: f32, dtype: Dtype, feedback: bool) -> u32 {
    // Minus zero is no less than zero.
    let threshold = threshold.abs();
    let half = |bits: u16, value: f32| u32::from(bits) + u32::from(value < threshold);
    match dtype {
        Dtype::F16 | Dtype::Bf16 if feedback => threshold.to_bits(),
        Dtype::F32 => threshold.to_bits(),
        Dtype::F16 => half(f16::from_f32(threshold).to_bits(), f16::from_f32(threshold).to_f32()),
        Dtype::Bf16 => half(bf16::from_f32(threshold).to_bits(), bf16::from_f32(threshold).to_f32()),
    }
}
