//! The passes that select the entries of largest magnitude, on a device that runs passes.

use gradwire_kernels::arith::topk::NO_KEY;
use gradwire_kernels::params::{
    HISTOGRAM_WORDS, PIECE, SKETCH_RUN, SKETCH_STEP, SKETCH_WORDS, SelectParams, THREADS, TILE, TILES_AGAIN,
    TILES_PER_WARP, WARP_SEGMENT, segment, select_flags, state, sum_words,
};
use half::{bf16, f16};

use crate::codec::topk::Select;
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{ALIGNMENT, Bindings, Kernel, Limits, Params, Pass, STATUS_BYTES, Span};
use crate::session::Sizes;
use crate::sparse::lazy::Sent;

/// Elements by which a tile may lie before what it is bound from: as many halves are 256 bytes.
const UNIT: u64 = 128;
/// Candidates that there is room for at the most, and of those of the first filter: the three arrays are reached by 32-bit
/// numbers of words.
const MOST_CANDIDATES: u64 = 1 << 30;
const MOST_FIRST: u64 = 1 << 29;
/// Segments in a table that is reached by 32-bit numbers of words.
const MOST_SEGMENTS: u64 = 1 << 27;
/// Tiles of a block of the kernels that go over what the filter left.
const TILES_PER_BLOCK: u32 = THREADS / 32 * TILES_PER_WARP;
/// Workgroups that sample a segment (logarithm), the elements from which on there are as many, and how many standard
/// deviations a workgroup's guess lies below and above the rank that is wanted. The floor is the lowest of the guesses,
/// so that all have to be wrong for it to be: once in 10^5 times, whatever their deviation is, where guesses from different
/// places are independent; it costs two reads. The sure key may be wrong once in 10^3 times: all candidates are stored.
const SAMPLES: [(u32, u64, f64, f64); 6] = [
    (5, 1 << 26, -0.52, -0.86),
    (4, 1 << 25, 0.03, -0.38),
    (3, 1 << 24, 0.72, 0.2),
    (2, 1 << 23, 1.59, 0.93),
    (1, 1 << 22, 2.74, 1.86),
    (0, 0, 4.27, 3.09),
];

/// A segment that is more than a tile, with its share of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Large {
    start: u64,
    elements: u64,
    keep: u64,
    output: u64,
    /// The key from which on all is kept, where that is known.
    floor: Option<u32>,
}

impl Large {
    fn tiles(&self) -> u64 {
        (self.start % 32 + self.elements).div_ceil(TILE.into())
    }

    /// The element with which a tile begins.
    fn tile(&self, index: u64) -> u64 {
        self.start / 32 * 32 + index * u64::from(TILE)
    }

    /// Keys of a workgroup's sample (logarithm of a thread's), and the ranks of its guesses.
    fn guess(&self, samples: (u32, u64, f64, f64)) -> (u32, u32, u32, f64) {
        let (samples_log2, _, below, above) = samples;
        let slots_log2 = (self.elements >> (15 + samples_log2)).clamp(1, 32).ilog2();
        let keys = f64::from(THREADS << slots_log2);
        let part = self.keep as f64 / self.elements as f64;
        let rank = part * keys;
        let deviation = (rank * (1.0 - part)).sqrt();
        let low = (rank + 1.0 + below * deviation).ceil();
        let high = (rank - above * deviation).floor().max(0.0);
        let low = if low > keys { 0.0 } else { low };
        // Candidates that are expected where neighbours are alike, and the sample worth less than its size.
        let expected = if low == 0.0 { 1.0 } else { (low + 10.0 + 10.0 * deviation) / keys };
        (slots_log2, low as u32, high as u32, expected)
    }

    /// Whether so much is kept that no sample is taken: where it misled, its read and a kept entry's two would be more than
    /// four of all. Where gradient and residual have to be added anyway, the sample takes no read of its own.
    fn is_unsampled(&self, dtype: Dtype, feedback: bool) -> bool {
        let most = if dtype == Dtype::F32 { 0.33 } else { 0.11 };
        !feedback && self.floor.is_none() && self.keep as f64 > most * self.elements as f64
    }

    /// Ranks in the sketch: of a key from which on there are as many elements as are kept, or more; and of one from which on
    /// there are no more. An entry of the sketch stands for 32 elements and up to 31 more in each run. 0: there is no such
    /// rank.
    fn sketch(&self) -> [u64; 2] {
        let step = u64::from(SKETCH_STEP);
        let low = self.keep.div_ceil(step);
        // The first run and the last may be shorter.
        let low = if low < self.elements / step { low } else { 0 };
        [low, self.keep.saturating_sub(self.uncertain()) / step]
    }

    /// Elements that the sketch may have missed.
    fn uncertain(&self) -> u64 {
        self.tiles() * u64::from(TILE / SKETCH_RUN) * u64::from(SKETCH_STEP - 1)
    }

    /// Candidates that there is room for; and of those of filtering again, of which there are no more: what the sketch may
    /// have missed, and a tile's elements that have the lowest key.
    fn room(&self, expected: f64) -> [u64; 2] {
        let pieces = self.tiles() * u64::from(PIECE);
        match self.floor {
            // All, or nothing.
            Some(0 | NO_KEY) => [0, 0],
            // A threshold keeps nobody knows how many.
            Some(_) => [self.elements / 16 + pieces, 0],
            None => {
                let first = (self.elements as f64 * expected) as u64;
                let again = self.keep + u64::from(SKETCH_STEP) + self.uncertain() + u64::from(TILE);
                [first.min(self.elements / 2) + pieces, again.min(self.elements) + pieces]
            }
        }
    }
}

/// How a device selects from a gradient of one length and type.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SelectPlan {
    elements: u64,
    dtype: Dtype,
    large: Vec<Large>,
    /// Segments of a tile at most.
    small: Vec<Large>,
    /// Segments that a warp takes.
    tiny: Vec<Large>,
    /// Blocks of a tile at most: their elements, and how many of each are kept.
    blocks: Option<(u64, u64)>,
    entries: u64,
    base: SelectParams,
    table: Vec<u32>,
    workspace_words: u64,
}

/// Consecutive tiles, segments or blocks of one launch, and what is bound of the gradient.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    first: u64,
    count: u64,
    start: u64,
    end: u64,
}

impl SelectPlan {
    /// `sent`: an entry that is kept is sent as it is, and its residual becomes zero.
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
            // All of every block is all.
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
        // Halves have 15 bits to tell, and a round tells 11.
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
        let capacity_first = capacity[0].min(MOST_FIRST).next_multiple_of(64);
        // The sketch is there first.
        let sketch = if self.is_sought() { tiles * u64::from(SKETCH_WORDS) } else { 0 };
        let again = capacity[1].min(MOST_CANDIDATES - capacity_first).max(sketch).next_multiple_of(64);
        if again < capacity[1] {
            // Tiles that find no room are read as they are, so that all have to have the same candidates.
            for words in self.table.chunks_exact_mut(segment::WORDS as usize) {
                words[segment::SKETCH_LOW as usize] = 0;
                words[segment::SKETCH_HIGH as usize] = 0;
            }
        }
        let capacity = capacity_first;
        let all = capacity + again;
        let large = self.large.len() as u64;
        let aligned = |words: u64| words.next_multiple_of(ALIGNMENT / 4);
        let room = aligned(self.table.len() as u64);
        let states = room + 64;
        let sums = states + 2 * large * u64::from(state::WORDS);
        let histograms = aligned(sums + 2 * u64::from(sum_words(tiles as u32)));
        let info = histograms + 3 * large * u64::from(HISTOGRAM_WORDS);
        let counts = info + 4 * tiles;
        let values = aligned(counts + 2 * tiles);
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

    /// Whether a sample is taken of any segment.
    fn is_sampled(&self) -> bool {
        let feedback = self.base.flags & select_flags::FEEDBACK != 0;
        self.large.iter().any(|l| l.floor.is_none() && !l.is_unsampled(self.dtype, feedback))
    }

    /// Where each segment of the table begins, and its elements.
    pub(crate) fn parts(&self) -> Vec<(u64, u64)> {
        self.large.iter().chain(&self.small).chain(&self.tiny).map(|l| (l.start, l.elements)).collect()
    }

    /// The same, of a residual from which what was sent is taken off when it is next read: `pending` of each part. Blocks
    /// without a table have their zeros at once.
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

    /// What the workspace begins with: little-endian words.
    pub(crate) fn table(&self) -> &[u32] {
        &self.table
    }

    /// The most entries that are kept; but for a threshold, just as many are.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// Where, in bytes of the workspace, the word is that says how many are above the threshold.
    pub(crate) fn total_at(&self) -> u64 {
        // All of them are sure, of the one segment that there is.
        4 * u64::from(self.states(1) + state::COUNT_SURE)
    }

    /// Bytes of each buffer.
    pub(crate) fn sizes(&self) -> Sizes {
        let input = (self.elements * self.dtype.bytes() as u64).next_multiple_of(4);
        let residual = if self.base.flags & select_flags::FEEDBACK != 0 { 4 * self.elements } else { 0 };
        let entries = 4 * self.entries;
        Sizes([input, residual, 0, 0, 4 * self.workspace_words, STATUS_BYTES, 0, entries, entries])
    }

    /// The passes, in order.
    ///
    /// # Errors
    /// [`Error::Limit`] where the limits are too small for a tile, for the workspace or for the entries.
    pub(crate) fn passes(&self, limits: &Limits) -> Result<Vec<Pass>, Error> {
        for needed in [4 * self.workspace_words, 4 * self.entries, 4 * (u64::from(TILE) + UNIT)] {
            if needed > limits.binding_bytes {
                let found = limits.binding_bytes;
                return Err(Error::Limit { limit: "max_storage_buffer_binding_size", found, needed });
            }
        }
        // A tile takes two workgroups of the sketch's kernel.
        if !self.large.is_empty() && limits.groups < 2 {
            let found = limits.groups.into();
            return Err(Error::Limit { limit: "max_compute_workgroups_per_dimension", found, needed: 2 });
        }
        let (found, needed) = (MOST_SEGMENTS, self.table.len() as u64 / u64::from(segment::WORDS));
        if needed > found {
            return Err(Error::Limit { limit: "segments of a selection on a device", found, needed });
        }
        let mut passes = Vec::new();
        if !self.large.is_empty() {
            self.large_passes(limits, &mut passes);
        }
        let small_at = self.large.len() as u64;
        let tiny_at = small_at + self.small.len() as u64;
        for (at, list, by_warps) in [(small_at, &self.small, false), (tiny_at, &self.tiny, true)] {
            let range = |i: u64| {
                let s = &list[i as usize];
                (s.start, s.start + s.elements)
            };
            let segments = needed as u32;
            let base = SelectParams { segments, ..self.base };
            self.block_passes(&mut passes, base, list.len() as u64, at, by_warps, range, limits);
        }
        if let Some((block, keep)) = self.blocks {
            let base = SelectParams { block: block as u32, keep: keep as u32, segments: 0, ..self.base };
            let range = |i: u64| (i * block, ((i + 1) * block).min(self.elements));
            let by_warps = in_one(block, WARP_SEGMENT);
            self.block_passes(&mut passes, base, self.elements.div_ceil(block), 0, by_warps, range, limits);
        }
        Ok(passes)
    }

    /// Passes over segments, or blocks, that a workgroup takes whole, or each of its warps one.
    #[allow(clippy::too_many_arguments, reason = "they are one loop's, taken out because it stands twice")]
    fn block_passes(
        &self,
        passes: &mut Vec<Pass>,
        base: SelectParams,
        count: u64,
        at: u64,
        by_warps: bool,
        range: impl Fn(u64) -> (u64, u64),
        limits: &Limits,
    ) {
        let (per_group, flag) = if by_warps { (8, select_flags::WARPS) } else { (1, 0) };
        let base = SelectParams { flags: base.flags | flag, ..base };
        for chunk in chunks(count, range, limits, per_group) {
            let chunk = Chunk { first: at + chunk.first, ..chunk };
            passes.push(self.pass(Kernel::TopKBlock, base, chunk, chunk.count.div_ceil(per_group)));
        }
    }

    /// Where the states are that are left after so many rounds of narrowing down: each is worked out from the one before, so
    /// that there are two in turn. The filter's, before any, are the second.
    fn states(&self, round: u32) -> u32 {
        self.base.states + round % 2 * self.large.len() as u32 * state::WORDS
    }

    /// Where the histograms are that are counted after so many rounds. There are three in turn: one is read, one added to, and
    /// one made zero.
    fn histograms(&self, round: u32) -> u32 {
        self.base.histograms + round % 3 * self.large.len() as u32 * HISTOGRAM_WORDS
    }

    /// What a pass has that narrows down, as the one of this round.
    fn narrowing(&self, base: SelectParams, round: u32) -> SelectParams {
        SelectParams {
            round,
            states: self.states(round + 1),
            next: self.states(round),
            counted: self.histograms(round),
            histograms: self.histograms(round + 1),
            zeroed: self.histograms(round + 2),
            ..base
        }
    }

    fn large_passes(&self, limits: &Limits, passes: &mut Vec<Pass>) {
        // All but the third of the histograms: the pass before the first that counts there makes it zero.
        let behind = u64::from(self.histograms(2));
        let zeroed = Span { offset: 4 * u64::from(self.base.room), bytes: 4 * (behind - u64::from(self.base.room)) };
        let base = SelectParams { segments: self.large.len() as u32, ..self.base };
        let first = SelectParams { states: self.states(1), ..base };
        let bindings = Bindings { workspace: zeroed, ..Bindings::default() };
        passes.push(Pass { kernel: Kernel::Clear, params: Params::Select(first), bindings, groups: 1 });
        // Tiles of all segments, one after another.
        let firsts: Vec<u64> = self
            .large
            .iter()
            .scan(0, |next, l| {
                *next += l.tiles();
                Some(*next - l.tiles())
            })
            .collect();
        let tile = |i: u64| {
            let index = firsts.partition_point(|first| *first <= i) - 1;
            let l = &self.large[index];
            let begin = l.tile(i - firsts[index]);
            (begin, (begin + u64::from(TILE)).min(l.start + l.elements))
        };
        let tiles: Vec<Chunk> = chunks(self.base.all_tiles.into(), tile, limits, 1);
        for chunk in tiles.iter().filter(|_| self.is_sampled()) {
            let from = firsts.partition_point(|first| *first <= chunk.first) - 1;
            let behind = firsts.partition_point(|first| *first < chunk.first + chunk.count);
            let most = u64::from(limits.groups >> base.samples_log2).max(1);
            for (run, count) in runs((behind - from) as u64, most) {
                let part = Chunk { first: from as u64 + run, count, ..*chunk };
                passes.push(self.pass(Kernel::TopKSample, first, part, count << base.samples_log2));
            }
        }
        let over = |passes: &mut Vec<Pass>, kernel, base: SelectParams| {
            for chunk in &tiles {
                let blocks = |tiles: u32| chunk.count.div_ceil(tiles.into());
                let groups = match kernel {
                    Kernel::TopKFilter => blocks(1),
                    Kernel::TopKFilterAgain => blocks(TILES_AGAIN),
                    // First those that look through what the filter left, and then those that sketch.
                    Kernel::TopKSketch => blocks(TILES_PER_BLOCK) + blocks(TILES_AGAIN),
                    _ => blocks(TILES_PER_BLOCK),
                };
                passes.push(self.pass(kernel, base, *chunk, groups));
            }
        };
        over(passes, Kernel::TopKFilter, first);
        let mut last = 0;
        if self.is_sought() {
            // In the same rounds either the band is narrowed down, or the sketch, where the sample was wrong.
            let rounds = base.rounds;
            over(passes, Kernel::TopKSketch, self.narrowing(base, 0));
            for round in 1..rounds {
                over(passes, Kernel::TopKHistogram, self.narrowing(base, round));
            }
            let flags = base.flags | select_flags::OF_SKETCH;
            over(passes, Kernel::TopKCount, SelectParams { flags, ..self.narrowing(base, rounds) });
            // The filter counts the band, so that the first round has its histogram.
            let (states, histograms) = (self.states(rounds), self.histograms(rounds + 1));
            over(passes, Kernel::TopKFilterAgain, SelectParams { states, histograms, ..base });
            for round in rounds + 1..2 * rounds {
                over(passes, Kernel::TopKHistogram, self.narrowing(base, round));
            }
            last = 2 * rounds;
        }
        over(passes, Kernel::TopKCount, self.narrowing(base, last));
        over(passes, Kernel::TopKEmit, SelectParams { states: self.states(last), ..base });
    }

    fn pass(&self, kernel: Kernel, base: SelectParams, chunk: Chunk, groups: u64) -> Pass {
        let start = chunk.start / UNIT * UNIT;
        let bound = chunk.end - start;
        let params = SelectParams {
            first: start as u32,
            bound: bound as u32,
            first_tile: chunk.first as u32,
            tiles: chunk.count as u32,
            ..base
        };
        let size = self.dtype.bytes() as u64;
        let span = |offset: u64, bytes: u64| Span { offset, bytes };
        let mut bindings = Bindings {
            input: span(start * size, (bound * size).next_multiple_of(4)),
            workspace: span(0, 4 * self.workspace_words),
            ..Bindings::default()
        };
        if self.base.flags & select_flags::FEEDBACK != 0 {
            bindings.residual = span(4 * start, 4 * bound);
        }
        if matches!(kernel, Kernel::TopKEmit | Kernel::TopKBlock) {
            bindings.indices = span(0, 4 * self.entries);
            bindings.values = span(0, 4 * self.entries);
        }
        if bound == 0 {
            bindings.input = Span::default();
            bindings.residual = Span::default();
        }
        Pass { kernel, params: Params::Select(params), bindings, groups: groups as u32 }
    }
}

/// Whether blocks of a gradient lie in pieces of `most` elements that begin at multiples of 32.
fn in_one(block: u64, most: u32) -> bool {
    let most = u64::from(most);
    block <= most && (block.is_multiple_of(32) || block + 31 <= most)
}

/// Runs of at most `most`, of `count`: where each begins, and how long it is.
fn runs(count: u64, most: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..count).step_by(most as usize).map(move |first| (first, most.min(count - first)))
}

/// Runs of ranges of elements, each run within the limits where a workgroup takes `per_group` of them. The ranges rise, and
/// none is more than a tile.
fn chunks(count: u64, range: impl Fn(u64) -> (u64, u64), limits: &Limits, per_group: u64) -> Vec<Chunk> {
    let most = limits.binding_bytes / 4;
    let mut chunks = Vec::new();
    let mut first = 0;
    while first < count {
        let start = range(first).0;
        // The ranges rise: how many end within reach is found by halving.
        let reach = start / UNIT * UNIT + most;
        let (mut fitting, mut behind) = (1, (count - first).min(u64::from(limits.groups) * per_group) + 1);
        while behind - fitting > 1 {
            let middle = (fitting + behind) / 2;
            if range(first + middle - 1).1 <= reach { fitting = middle } else { behind = middle }
        }
        chunks.push(Chunk { first, count: fitting, start, end: range(first + fitting - 1).1 });
        first += fitting;
    }
    chunks
}

/// The lowest key of the elements whose magnitude is at least a threshold, in the order in which the kernels compare.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_of_halves_is_the_next_half() {
        for (threshold, expected) in [(1.0f32, 1.0f32), (1.0001, 1.001), (65_504.0, 65_504.0), (0.0, 0.0)] {
            let key = threshold_key(threshold, Dtype::F16, false);
            let value = f16::from_bits(key as u16).to_f32();
            assert!(value >= threshold && (value - expected).abs() <= 0.001, "{threshold}: {value}");
        }
        assert_eq!(threshold_key(1e30, Dtype::F16, false), 0x7c00, "infinity alone reaches it");
        assert_eq!(threshold_key(f32::INFINITY, Dtype::Bf16, false), 0x7f80);
        assert_eq!(threshold_key(1e30, Dtype::F16, true), 1e30f32.to_bits());
    }

    #[test]
    fn the_workspace_is_reached_by_words_of_32_bits() {
        let n = 1u64 << 31;
        for keep in [1, n / 10, n / 2, n - 1] {
            let plan = SelectPlan::new(&Select::Largest(keep), n, Dtype::F32, false, false);
            assert!(plan.workspace_words < 1 << 32, "{keep}: {} words", plan.workspace_words);
            let p = plan.base;
            let end = u64::from(p.band) + u64::from(p.capacity) + u64::from(p.capacity_again);
            assert_eq!(end, plan.workspace_words, "{keep}: an offset has wrapped");
        }
    }

    #[test]
    fn every_tile_is_in_one_chunk_and_bound_there() {
        let segments = [(5u64, 3u64), (20_000, 200), (8192, 8), (100_003, 99), (7, 0), (40_000, 40_000)];
        let segments = segments.map(|(elements, k)| crate::Segment { elements, k });
        let n = segments.iter().map(|s| s.elements).sum();
        let plan = SelectPlan::new(&Select::Segments(segments.into()), n, Dtype::F32, true, true);
        for binding_bytes in [1 << 21, u64::MAX] {
            let limits = Limits { binding_bytes, groups: 7 };
            let passes = plan.passes(&limits).expect("the limits suffice");
            let mut next = 0;
            for pass in passes.iter().filter(|p| p.kernel == Kernel::TopKEmit) {
                let Params::Select(p) = pass.params else { panic!("a selection's parameters") };
                assert_eq!(p.first_tile, next);
                assert!(p.tiles <= 7 && 4 * u64::from(p.bound) <= binding_bytes);
                next += p.tiles;
            }
            assert_eq!(next, plan.base.all_tiles);
            assert!(passes.iter().all(|p| p.groups <= 7 && p.groups > 0));
            assert!(passes.iter().all(|p| p.bindings.input.offset % 256 == 0 && p.bindings.residual.offset % 256 == 0));
        }
    }
}
