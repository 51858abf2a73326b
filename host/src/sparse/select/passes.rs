//! The launches of a selection, within a device's limits.

use gradwire_kernels::params::{
    HISTOGRAM_WORDS, SelectParams, THREADS, TILE, TILES_AGAIN, WARP_SEGMENT, ZEROED_WORDS, segment, select_flags,
    state, tiles_per_warp, tiles_to_emit,
};

use super::large::Large;
use super::{SelectPlan, in_one};
use crate::error::Error;
use crate::plan::{Bindings, Kernel, Limits, Params, Pass, Span};

/// A binding of the gradient begins at a multiple of this many elements: as many halves are 256 bytes, to which
/// bindings are aligned.
const UNIT: u64 = 128;
/// The most segments of a table: 32-bit word offsets reach them.
const MOST_SEGMENTS: u64 = 1 << 27;
/// Warps of a block.
const WARPS: u32 = THREADS / 32;

/// The most workgroups that the rest kernel gets for the second filter alone: about two per multiprocessor of a large
/// GPU.
///
/// If the sample was right, some of them have nothing to do.
const WAITING: u64 = 264;

/// Consecutive tiles, segments or blocks of one launch, and the elements of the gradient that it binds.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    /// The first tile, segment or block.
    first: u64,
    /// How many tiles, segments or blocks there are.
    count: u64,
    /// The first element that they hold.
    start: u64,
    /// The first element after those that they hold.
    end: u64,
}

impl SelectPlan {
    /// The passes, in order.
    ///
    /// # Errors
    /// [`Error::Limit`] if the limits are too small for a tile, for the workspace or for the entries.
    pub(crate) fn passes(&self, limits: &Limits) -> Result<Vec<Pass>, Error> {
        for needed in [4 * self.workspace_words, 4 * self.entries, 4 * (u64::from(TILE) + UNIT)] {
            if needed > limits.binding_bytes {
                let found = limits.binding_bytes;
                return Err(Error::Limit { limit: "max_storage_buffer_binding_size", found, needed });
            }
        }
        // A tile takes two workgroups of the sketch's kernel, and a segment as many as sample it.
        let needed = 2.max(1 << self.base.samples_log2);
        if !self.large.is_empty() && limits.groups < needed {
            let (found, needed) = (limits.groups.into(), needed.into());
            return Err(Error::Limit { limit: "max_compute_workgroups_per_dimension", found, needed });
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

    /// The passes of a threshold without those that write entries: what they leave is how many reach it, and the sums.
    ///
    /// # Errors
    /// As [`SelectPlan::passes`].
    pub(crate) fn counting_passes(&self, limits: &Limits) -> Result<Vec<Pass>, Error> {
        let mut passes = self.passes(limits)?;
        Self::keep_counting(&mut passes);
        Ok(passes)
    }

    /// Leaves of a threshold's passes what [`SelectPlan::counting_passes`] gives.
    pub(crate) fn keep_counting(passes: &mut Vec<Pass>) {
        passes.retain(|pass| pass.kernel != Kernel::TopKEmit);
        debug_assert!(passes.iter().all(|pass| pass.kernel != Kernel::TopKBlock), "a threshold has one large segment");
    }

    /// The passes that zero the sent entries that a [`late`](Self::late) selection left in the residual, and mark in
    /// the table that there are none any more. No passes where no entry can be late.
    ///
    /// # Errors
    /// [`Error::Limit`] if the limits are too small for a tile or for the table.
    pub(crate) fn settle_passes(&self, limits: &Limits) -> Result<Vec<Pass>, Error> {
        let table_bytes = 4 * self.table.len() as u64;
        if self.base.flags & select_flags::LEAVES_SENT == 0 {
            return Ok(Vec::new());
        }
        let needed = table_bytes.max(4 * (u64::from(TILE) + UNIT));
        if needed > limits.binding_bytes {
            return Err(Error::Limit { limit: "max_storage_buffer_binding_size", found: limits.binding_bytes, needed });
        }
        let segments = self.large.len() as u32;
        let base = SelectParams { segments, ..SelectParams::default() };
        let workspace = Span { offset: 0, bytes: table_bytes };
        let mut passes = Vec::new();
        for chunk in self.tiles().chunks(limits) {
            let pass = self.pass(Kernel::TopKSettle, base, chunk, chunk.count);
            let bindings = Bindings { residual: pass.bindings.residual, workspace, ..Bindings::default() };
            passes.push(Pass { bindings, ..pass });
        }
        let base = SelectParams { flags: select_flags::FORGETS, ..base };
        let blocks = u64::from(segments.div_ceil(THREADS));
        for (first, groups) in runs(blocks, limits.groups.max(1).into()) {
            let params = SelectParams { first_tile: first as u32 * THREADS, ..base };
            let bindings = Bindings { workspace, ..Bindings::default() };
            let params = Params::Select(params);
            passes.push(Pass { kernel: Kernel::TopKSettle, params, bindings, groups: groups as u32 });
        }
        Ok(passes)
    }

    /// The tiles of all large segments.
    fn tiles(&self) -> Tiles<'_> {
        let firsts = self.large.iter().scan(0, |next, l| {
            *next += l.tiles();
            Some(*next - l.tiles())
        });
        Tiles { large: &self.large, firsts: firsts.collect() }
    }

    /// Passes of the block kernel: a workgroup takes a segment or block, or with `by_warps` each of its warps does.
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
        // The kernel has just written the sums of these segments, so it writes the zeros too, and nothing is late.
        let is_late = base.flags & select_flags::LEAVES_SENT != 0;
        let late = if is_late { select_flags::LAZY | select_flags::LEAVES_SENT } else { 0 };
        let base = SelectParams { flags: base.flags & !late | flag, ..base };
        for chunk in chunks(count, range, limits, per_group) {
            let chunk = Chunk { first: at + chunk.first, ..chunk };
            passes.push(self.pass(Kernel::TopKBlock, base, chunk, chunk.count.div_ceil(per_group)));
        }
    }

    /// Where the segments' states are after `round` rounds of narrowing down. Each is worked out from the one before,
    /// so two take turns. The second is the one that the filter adds to.
    pub(crate) fn states(&self, round: u32) -> u32 {
        self.base.states + round % 2 * self.large.len() as u32 * state::WORDS
    }

    /// Where the rest kernel, which narrows down in one launch, leaves the segments' states.
    fn last_states(&self) -> u32 {
        self.base.states + 2 * self.large.len() as u32 * state::WORDS
    }

    /// Where the histograms are that are counted after `round` rounds. Three take turns: one is read, one added to, and
    /// one cleared.
    fn histograms(&self, round: u32) -> u32 {
        self.base.histograms + round % 3 * self.large.len() as u32 * HISTOGRAM_WORDS
    }

    /// The parameters of a pass that narrows down, in this round.
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
        let base = SelectParams { segments: self.large.len() as u32, ..self.base };
        // All but the third histogram is cleared. The third is cleared by the pass before the first that counts there.
        let zeroed = self.histograms(2) - base.room;
        let first = SelectParams { states: self.states(1), next: zeroed, ..base };
        let all = self.tiles();
        let (firsts, tiles) = (&all.firsts, all.chunks(limits));
        let (mut next, zeroed) = (0, zeroed.div_ceil(ZEROED_WORDS));
        let mut sample = |part: Chunk, samples: u64| {
            // Workgroups that clear words go into the same launch, as far as its limit allows.
            let zeroing = (u64::from(limits.groups).saturating_sub(samples) as u32).min(zeroed - next);
            let base = SelectParams { counted: next, ..first };
            passes.push(self.pass(Kernel::TopKSample, base, part, samples + u64::from(zeroing)));
            next += zeroing;
            next < zeroed
        };
        let mut is_left = true;
        for chunk in &tiles {
            let from = firsts.partition_point(|first| *first <= chunk.first) - 1;
            let behind = firsts.partition_point(|first| *first < chunk.first + chunk.count);
            let most = u64::from(limits.groups >> base.samples_log2).max(1);
            for (run, count) in runs((behind - from) as u64, most) {
                let part = Chunk { first: from as u64 + run, count, ..*chunk };
                is_left = sample(part, count << base.samples_log2);
            }
        }
        while is_left {
            is_left = sample(Chunk { first: 0, count: 0, start: 0, end: 0 }, 0);
        }
        let over = |passes: &mut Vec<Pass>, kernel, base: SelectParams| {
            for chunk in &tiles {
                // A gradient has fewer than 2^32 elements.
                let tiles = chunk.count as u32;
                let blocks = |each: u32| u64::from(tiles.div_ceil(each));
                let groups = match kernel {
                    Kernel::TopKFilter => blocks(1),
                    Kernel::TopKFilterAgain => blocks(TILES_AGAIN),
                    // First the workgroups that count the band's keys, and then those that sketch.
                    Kernel::TopKSketch => blocks(WARPS * tiles_per_warp(tiles)) + blocks(TILES_AGAIN),
                    Kernel::TopKEmit => blocks(WARPS * tiles_to_emit(tiles)),
                    _ => blocks(WARPS * tiles_per_warp(tiles)),
                };
                passes.push(self.pass(kernel, base, *chunk, groups));
            }
        };
        over(passes, Kernel::TopKFilter, first);
        let (mut last, mut states) = (0, self.states(0));
        let in_one = limits.forward_progress && self.is_sought() && tiles.len() == 1;
        if in_one {
            let chunk = tiles[0];
            // As many workgroups as have something to do at once if the sample was right, and some more for a wrong
            // one.
            let pieces = |tiles: u32| chunk.count.div_ceil(tiles.into());
            let groups = pieces(WARPS * tiles_per_warp(chunk.count as u32)).max(pieces(TILES_AGAIN).min(WAITING));
            states = self.last_states();
            passes.push(self.pass(Kernel::TopKRest, SelectParams { next: states, ..base }, chunk, groups));
        } else if self.is_sought() {
            // The same rounds narrow down the band, or the sketch if the sample was wrong.
            let rounds = base.rounds;
            over(passes, Kernel::TopKSketch, self.narrowing(base, 0));
            for round in 1..rounds {
                over(passes, Kernel::TopKHistogram, self.narrowing(base, round));
            }
            let flags = base.flags | select_flags::OF_SKETCH;
            over(passes, Kernel::TopKCount, SelectParams { flags, ..self.narrowing(base, rounds) });
            // The second filter counts the band, so the next round has its histogram.
            let (states, histograms) = (self.states(rounds), self.histograms(rounds + 1));
            over(passes, Kernel::TopKFilterAgain, SelectParams { states, histograms, ..base });
            for round in rounds + 1..2 * rounds {
                over(passes, Kernel::TopKHistogram, self.narrowing(base, round));
            }
            last = 2 * rounds;
        }
        if !in_one {
            over(passes, Kernel::TopKCount, self.narrowing(base, last));
            states = self.states(last);
        }
        // Where the table names the sent entries, no zero is written.
        let late = if base.flags & select_flags::LEAVES_SENT != 0 { select_flags::SENT } else { 0 };
        let base = SelectParams { flags: base.flags & !late, ..base };
        over(passes, Kernel::TopKEmit, SelectParams { states, ..base });
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

/// The tiles of segments, one after another.
struct Tiles<'a> {
    large: &'a [Large],
    /// The first tile of each segment.
    firsts: Vec<u64>,
}

impl Tiles<'_> {
    /// The first element of a tile, and the first after it.
    fn range(&self, tile: u64) -> (u64, u64) {
        let index = self.firsts.partition_point(|first| *first <= tile) - 1;
        let l = &self.large[index];
        let begin = l.tile(tile - self.firsts[index]);
        (begin, (begin + u64::from(TILE)).min(l.start + l.elements))
    }

    fn chunks(&self, limits: &Limits) -> Vec<Chunk> {
        let count = self.large.iter().map(Large::tiles).sum();
        chunks(count, |tile| self.range(tile), limits, 1)
    }
}

/// Cuts `count` into runs of at most `most`: where each begins, and how long it is.
fn runs(count: u64, most: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..count).step_by(most as usize).map(move |first| (first, most.min(count - first)))
}

/// Cuts `count` ranges of elements into launches within the limits, where a workgroup takes `per_group` ranges. The
/// ranges rise, and each lies within a tile.
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
