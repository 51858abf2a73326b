//! The passes of PowerSGD on a device that runs passes: what lies where in its workspace, and in which order kernels
//! run. Pure.
//!
//! A phase of a step is one list of passes without the host in between. All matrices of a model are in each launch,
//! through the table and the list of tiles.

use gradwire_kernels::arith::philox::Stream;
use gradwire_kernels::params::{
    LOW_RANK_PLAIN, LOW_RANK_TILE, LOW_RANK_TOGETHER, LowRankParams, THREADS, low_rank_flags, low_rank_products,
    low_rank_shares, mark, matrix,
};

use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{ALIGNMENT, Bindings, Kernel, Limits, Params, Part, Pass, STATUS_BYTES, Side, Sizes, Span, Table};

/// Elements by which a tile may lie before what it is bound from: as many halves are 256 bytes.
const UNIT: u64 = 128;
/// Words that are reached by 32-bit numbers.
const MOST_WORDS: u64 = 1 << 32;

/// Where things are in the workspace, in words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) tiles: u64,
    pub(crate) plain_tiles: u64,
    pub(crate) marks: u64,
    /// How many steps were finished, two words.
    pub(crate) steps: u64,
    /// The factors that the last finished step ended with: left, right.
    pub(crate) kept: [u64; 2],
    /// This rank's own last factor as it was sent, by its side, padded as `kept` is; empty unless it is kept.
    pub(crate) own: [u64; 2],
    /// Those of the step under way.
    pub(crate) work: [u64; 2],
    /// Tensors that are not compressed wait here to be sent. What is from here on may hold anything between steps.
    pub(crate) plain: u64,
    /// What the tiles leave of a product, and before that, what the blocks leave that share a factor: the products of
    /// its columns over their rows.
    pub(crate) shares: u64,
    /// Where the state is on the device, the status, which a look at all elements leaves: after all that passes bind
    /// as their workspace, since a dispatch may not bind a word twice.
    pub(crate) status: u64,
    pub(crate) words: u64,
}

/// How a step begins whose state is on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    /// The step has one round.
    pub(crate) is_last: bool,
    /// Nothing is to be formed where an element is not finite.
    pub(crate) guarded: bool,
}

/// A tile of a matrix, and the elements of all of the matrix's tiles beside it.
#[derive(Clone, Copy, Debug)]
struct Tile {
    start: u64,
    end: u64,
}

/// How a device does the steps of PowerSGD for the gradients of a model.
#[derive(Clone, Debug)]
pub(crate) struct LowRankPlan {
    /// The table, and the list of tiles at its place.
    pub(crate) table: Vec<u32>,
    pub(crate) layout: Layout,
    matrices: u64,
    /// Tensors of the table: the matrices, and where the state is on the device, the others after them.
    tensors: u64,
    /// Whether the state is on the device.
    resident: bool,
    /// Whether what was sent is this rank's own last factor, and not the mean.
    pub(crate) keeps_own: bool,
    rank: u64,
    elements: u64,
    dtype: Dtype,
    feedback: bool,
    tiles: Vec<Tile>,
    /// Of tensors that are not compressed.
    plain_tiles: Vec<Tile>,
    /// Their elements.
    plain: u64,
    /// Workgroups that sum shares of left and of right factors.
    groups: [u64; 2],
    /// Workgroups that share the left and the right factors while columns are made orthonormal, where several do.
    blocks: [u64; 2],
    /// Entries of left and of right factors as they are sent.
    pub(crate) sent: [u64; 2],
}

fn tiles_of(entries: usize) -> u64 {
    (entries as u64).div_ceil(LOW_RANK_TILE.into())
}

fn aligned(words: u64) -> u64 {
    words.next_multiple_of(ALIGNMENT / 4)
}

impl LowRankPlan {
    /// `resident`: the state is on the device, that of tensors that are not compressed with it.
    pub(crate) fn new(table: &Table, dtype: Dtype, feedback: bool, resident: bool) -> Self {
        Self::make(table, dtype, feedback, [resident, false])
    }

    /// Where the state is on the device, and what a rank keeps is what it has not sent itself.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(crate) fn with_own(table: &Table, dtype: Dtype, feedback: bool) -> Self {
        Self::make(table, dtype, feedback, [true, feedback])
    }

    fn make(table: &Table, dtype: Dtype, feedback: bool, [resident, keeps_own]: [bool; 2]) -> Self {
        let rank = table.rank as u64;
        let parts: Vec<(usize, &Part)> = table.compressed().collect();
        let mut words = Vec::with_capacity(parts.len() * matrix::WORDS as usize);
        let (mut tiles, mut list) = (Vec::new(), Vec::new());
        let (mut sent, mut shares, mut groups, mut blocks) = ([0u64; 2], [0u64; 2], [0u64; 2], [0u64; 2]);
        for (index, (tensor, part)) in parts.iter().enumerate() {
            let mut entry = [0u32; matrix::WORDS as usize];
            let mut set = |word: u32, value: u64| entry[word as usize] = value as u32;
            set(matrix::FIRST, part.first as u64);
            set(matrix::ROWS, part.rows as u64);
            set(matrix::COLUMNS, part.columns as u64);
            set(matrix::TENSOR, *tensor as u64);
            for (s, side) in [Side::Left, Side::Right].into_iter().enumerate() {
                let word = s as u32;
                set(matrix::PADDED + word, part.start(side) as u64);
                set(matrix::SENT + word, sent[s]);
                set(matrix::SHARES + word, shares[s]);
                set(matrix::FIRST_GROUP + word, groups[s]);
                set(matrix::FIRST_SHARE + word, blocks[s]);
                blocks[s] += u64::from(low_rank_shares(part.dimension(side) as u32));
                sent[s] += rank * part.dimension(side) as u64;
                shares[s] += rank * part.stride(side) as u64 * tiles_of(part.dimension(side.other()));
                groups[s] += rank * (part.dimension(side) as u64).div_ceil(THREADS.into());
            }
            words.extend(entry);
            for row in (0..part.rows).step_by(LOW_RANK_TILE as usize) {
                let end = (row + LOW_RANK_TILE as usize).min(part.rows);
                for column in (0..part.columns).step_by(LOW_RANK_TILE as usize) {
                    list.extend([index as u32, row as u32, column as u32, 0]);
                    let at = |row: usize| (part.first + row * part.columns) as u64;
                    tiles.push(Tile { start: at(row), end: at(end) });
                }
            }
        }
        let (mut plain_tiles, mut plain_list, mut plain) = (Vec::new(), Vec::new(), 0);
        let mut tensors = parts.len() as u64;
        for (tensor, part) in table.parts.iter().enumerate().filter(|(_, part)| resident && !part.compressed) {
            let mut entry = [0u32; matrix::WORDS as usize];
            let elements = part.elements() as u64;
            for (word, value) in [(matrix::FIRST, part.first as u64), (matrix::ROWS, elements), (matrix::COLUMNS, 1)] {
                entry[word as usize] = value as u32;
            }
            entry[matrix::TENSOR as usize] = tensor as u32;
            words.extend(entry);
            for from in (0..elements).step_by(LOW_RANK_PLAIN as usize) {
                let count = (elements - from).min(LOW_RANK_PLAIN.into());
                let start = part.first as u64 + from;
                plain_list.extend([tensors as u32, start as u32, count as u32, (plain + from) as u32]);
                plain_tiles.push(Tile { start, end: start + count });
            }
            plain += elements;
            tensors += 1;
        }
        let mut end = aligned(words.len() as u64);
        words.resize(end as usize, 0);
        let products = blocks[0].max(blocks[1]) * u64::from(low_rank_products(rank as u32));
        let mut place = |words: u64| {
            let start = end;
            end = aligned(start + words);
            start
        };
        let layout = Layout {
            tiles: place(list.len() as u64),
            plain_tiles: place(plain_list.len() as u64),
            marks: place(u64::from(mark::WORDS) * tensors),
            steps: place(if resident { 2 } else { 0 }),
            kept: [place(table.left as u64), place(table.right as u64)],
            own: [table.left, table.right].map(|words| place(if keeps_own { words as u64 } else { 0 })),
            work: [place(table.left as u64), place(table.right as u64)],
            plain: place(plain),
            shares: place(shares[0].max(shares[1]).max(products)),
            status: place(if resident { STATUS_BYTES / 4 } else { 0 }),
            words: 0,
        };
        words.extend(list);
        if !plain_list.is_empty() {
            words.resize(layout.plain_tiles as usize, 0);
            words.extend(plain_list);
        }
        Self {
            table: words,
            layout: Layout { words: end, ..layout },
            matrices: parts.len() as u64,
            tensors,
            resident,
            keeps_own,
            rank,
            elements: table.elements as u64,
            dtype,
            feedback,
            tiles,
            plain_tiles,
            plain,
            groups,
            blocks,
            sent,
        }
    }

    /// Whether there is nothing to do: no matrix is compressed, and nothing else is the device's.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(crate) fn is_empty(&self) -> bool {
        self.tensors == 0
    }

    /// Entries that a round hands out, the last one with the tensors that are not compressed after its factors.
    fn round_len(&self, side: Side, is_last: bool) -> u64 {
        self.sent[side as usize] + if is_last { self.plain } else { 0 }
    }

    /// Bytes of each buffer.
    pub(crate) fn sizes(&self) -> Sizes {
        let input = (self.elements * self.dtype.bytes() as u64).next_multiple_of(4);
        let (workspace, values) = (4 * self.layout.words, 4 * (self.sent[0].max(self.sent[1]) + self.plain));
        Sizes([input, 4 * self.elements, 0, 0, workspace, STATUS_BYTES, 4 * self.elements, 0, values])
    }

    /// The passes that tell in the status where gradient + residual is first not finite. `known` is the side that the
    /// last step ended with.
    pub(crate) fn scan(&self, known: Side, limits: &Limits) -> Result<Vec<Pass>, Error> {
        let mut passes = self.start(limits)?;
        let status = Span { offset: 0, bytes: STATUS_BYTES };
        let bindings = Bindings { status, ..Bindings::default() };
        passes.push(Pass { kernel: Kernel::Clear, params: Params::LowRank(self.base()), bindings, groups: 1 });
        let base = self.with(self.sent_by(known), low_rank_flags::FORM | low_rank_flags::SCAN);
        self.over_tiles(&mut passes, Kernel::PowerSgdRight, base, limits)?;
        self.over_plain(&mut passes, low_rank_flags::FORM | low_rank_flags::SCAN, Side::Left, limits)?;
        Ok(passes)
    }

    /// The passes of a step's beginning: orthonormal columns of the known factor, gradient + residual, and their
    /// product.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(crate) fn begin(&self, known: Side, stream: Stream, limits: &Limits) -> Result<Vec<Pass>, Error> {
        let mut passes = self.start(limits)?;
        self.seeded(&mut passes, known, stream, 0, limits);
        self.form(&mut passes, known, 0, limits)?;
        Ok(passes)
    }

    /// The same where the state is on the device.
    pub(crate) fn begin_resident(
        &self,
        known: Side,
        stream: Stream,
        start: Start,
        limits: &Limits,
    ) -> Result<Vec<Pass>, Error> {
        let flag = |on: bool, flag: u32| if on { flag } else { 0 };
        let mut passes = self.start(limits)?;
        self.seeded(&mut passes, known, stream, low_rank_flags::START, limits);
        if start.guarded {
            passes.extend(self.scan(known, limits)?);
        }
        let guarded = flag(start.guarded, low_rank_flags::GUARDED);
        self.form(&mut passes, known, guarded | low_rank_flags::FORMED, limits)?;
        let flags = low_rank_flags::FORM | flag(start.is_last, low_rank_flags::SEND) | guarded;
        self.over_plain(&mut passes, flags, known.other(), limits)?;
        Ok(passes)
    }

    /// Makes the known factor's columns orthonormal, or draws them.
    fn seeded(&self, passes: &mut Vec<Pass>, known: Side, stream: Stream, flags: u32, limits: &Limits) {
        let seeded = LowRankParams { key: stream.key, step: stream.step, tensor: stream.tensor, ..self.base() };
        self.factors(passes, known, seeded, low_rank_flags::ORTHONORMAL | low_rank_flags::SEED | flags, limits);
    }

    /// Forms gradient + residual, and multiplies it.
    fn form(&self, passes: &mut Vec<Pass>, known: Side, flags: u32, limits: &Limits) -> Result<(), Error> {
        let form = self.with(self.sent_by(known), low_rank_flags::FORM | flags);
        if self.rank > LOW_RANK_TOGETHER.into() {
            // Else what is multiplied by the factors' later columns would be formed once more.
            self.over_tiles(passes, Kernel::PowerSgdRight, form, limits)?;
            self.multiply(passes, known, self.base(), flags, limits)
        } else {
            self.multiply(passes, known, form, flags, limits)
        }
    }

    /// The passes between two all-reduces: the known factor, taken and made orthonormal, and the product.
    pub(crate) fn advance(&self, known: Side, limits: &Limits) -> Result<Vec<Pass>, Error> {
        let mut passes = self.start(limits)?;
        let flags = low_rank_flags::TAKE | low_rank_flags::ORTHONORMAL;
        self.factors(&mut passes, known, self.base(), flags, limits);
        self.multiply(&mut passes, known, self.base(), 0, limits)?;
        Ok(passes)
    }

    /// The same where the state is on the device. `is_last`: it is the step's last round.
    pub(crate) fn advance_resident(&self, known: Side, is_last: bool, limits: &Limits) -> Result<Vec<Pass>, Error> {
        let mut passes = self.advance(known, limits)?;
        if is_last {
            self.over_plain(&mut passes, low_rank_flags::SEND, known.other(), limits)?;
        }
        Ok(passes)
    }

    /// The passes of a step's end: the last factor, taken, and L R^T. Where the state is on the device, it becomes that
    /// after the step.
    pub(crate) fn finish(&self, last: Side, limits: &Limits) -> Result<Vec<Pass>, Error> {
        let mut passes = self.start(limits)?;
        let mut flags = low_rank_flags::TAKE;
        if self.resident {
            // Before the marks say what became of a tensor.
            self.over_plain(&mut passes, low_rank_flags::COMMIT, last, limits)?;
            flags |= low_rank_flags::COMMIT;
        }
        self.factors(&mut passes, last, self.base(), flags, limits);
        let [left, right] = self.layout.work.map(|at| at as u32);
        let base = LowRankParams { left, right, ..self.base() };
        self.over_tiles(&mut passes, Kernel::PowerSgdExpand, base, limits)?;
        Ok(passes)
    }

    /// Checks that all words are reached by 32-bit numbers of them.
    pub(crate) fn check_words(&self) -> Result<(), Error> {
        if self.layout.words > MOST_WORDS {
            let (found, needed) = (MOST_WORDS, self.layout.words);
            return Err(Error::Limit { limit: "words of PowerSGD's workspace on a device", found, needed });
        }
        Ok(())
    }

    /// No passes yet, where what every one of them binds is within the limits.
    fn start(&self, limits: &Limits) -> Result<Vec<Pass>, Error> {
        let sent = self.sent.map(|sent| sent + self.plain);
        let needed = 4 * self.layout.words.max(sent[0]).max(sent[1]);
        if needed > limits.binding_bytes {
            let found = limits.binding_bytes;
            return Err(Error::Limit { limit: "max_storage_buffer_binding_size", found, needed });
        }
        self.check_words()?;
        Ok(Vec::new())
    }

    fn base(&self) -> LowRankParams {
        let [left, right] = self.layout.kept.map(|at| at as u32);
        LowRankParams {
            matrices: self.matrices as u32,
            rank: self.rank as u32,
            flags: if self.feedback { low_rank_flags::FEEDBACK } else { 0 },
            dtype: self.dtype.tag().into(),
            tiles: self.layout.tiles as u32,
            marks: self.layout.marks as u32,
            left,
            right,
            shares: self.layout.shares as u32,
            steps: self.layout.steps as u32,
            plain: self.layout.plain as u32,
            ..LowRankParams::default()
        }
    }

    /// The factors whose product is taken off the residual, of a step that ended with the side `last`.
    fn sent_by(&self, last: Side) -> LowRankParams {
        let (base, own) = (self.base(), self.layout.own[last as usize] as u32);
        match last {
            Side::Left if self.keeps_own => LowRankParams { left: own, ..base },
            Side::Right if self.keeps_own => LowRankParams { right: own, ..base },
            _ => base,
        }
    }

    fn with(&self, base: LowRankParams, flags: u32) -> LowRankParams {
        LowRankParams { flags: base.flags | flags, ..base }
    }

    /// The step's factor of a side.
    fn of(&self, side: Side, base: LowRankParams) -> LowRankParams {
        let flag = if side == Side::Right { low_rank_flags::RIGHT } else { 0 };
        LowRankParams { factor: self.layout.work[side as usize] as u32, ..self.with(base, flag) }
    }

    fn workspace(&self) -> Bindings {
        Bindings { workspace: Span { offset: 0, bytes: 4 * self.layout.status }, ..Bindings::default() }
    }

    fn values(&self, side: Side) -> Span {
        Span { offset: 0, bytes: 4 * self.sent[side as usize] }
    }

    /// Works on the step's factors of a side: a workgroup each, or as many as share them.
    fn factors(&self, passes: &mut Vec<Pass>, side: Side, base: LowRankParams, flags: u32, limits: &Limits) {
        let base = self.of(side, self.with(base, flags));
        let taken = if flags & low_rank_flags::TAKE == 0 { Span::default() } else { self.values(side) };
        let bindings = Bindings { values: taken, ..self.workspace() };
        // Tensors that are not compressed have a workgroup each where a step begins or ends.
        let plain = |of: u32| if flags & of != 0 { self.tensors - self.matrices } else { 0 };
        let (start, commit) = (low_rank_flags::START, low_rank_flags::COMMIT);
        if !limits.shares_factors {
            let groups = self.matrices + plain(start | commit);
            return self.runs(passes, Kernel::PowerSgdFactor, base, bindings, groups, limits);
        }
        let blocks = self.blocks[side as usize];
        self.runs(passes, Kernel::PowerSgdProducts, base, bindings, blocks + plain(start), limits);
        if flags & (low_rank_flags::ORTHONORMAL | commit) != 0 {
            let base = LowRankParams { flags: base.flags & !low_rank_flags::TAKE, ..base };
            self.runs(passes, Kernel::PowerSgdFactor, base, self.workspace(), blocks + plain(commit), limits);
        }
    }

    /// Works on the tensors that are not compressed, of which `side`'s factors have them after them.
    fn over_plain(&self, passes: &mut Vec<Pass>, flags: u32, side: Side, limits: &Limits) -> Result<(), Error> {
        let base = LowRankParams {
            tiles: self.layout.plain_tiles as u32,
            plain_sent: self.sent[side as usize] as u32,
            ..self.with(self.base(), flags)
        };
        let values = Span { offset: 0, bytes: 4 * self.round_len(side, true) };
        let is_sent = flags & (low_rank_flags::SEND | low_rank_flags::COMMIT) != 0;
        let bindings = Bindings { values: if is_sent { values } else { Span::default() }, ..self.workspace() };
        self.over(&self.plain_tiles, passes, Kernel::PowerSgdPlain, base, bindings, limits)
    }

    /// Multiplies by the factors of the side `known`, and sums up the other side's.
    fn multiply(
        &self,
        passes: &mut Vec<Pass>,
        known: Side,
        base: LowRankParams,
        formed: u32,
        limits: &Limits,
    ) -> Result<(), Error> {
        let kernel = match known {
            Side::Right => Kernel::PowerSgdLeft,
            Side::Left => Kernel::PowerSgdRight,
        };
        let product = self.of(known, self.with(base, low_rank_flags::PRODUCT));
        self.over_tiles(passes, kernel, product, limits)?;
        let sums = self.of(known.other(), self.with(self.base(), formed));
        let mut bindings = Bindings { values: self.values(known.other()), ..self.workspace() };
        if formed & low_rank_flags::GUARDED != 0 {
            bindings.status = Span { offset: 0, bytes: STATUS_BYTES };
        }
        let groups = self.groups[known.other() as usize];
        self.runs(passes, Kernel::PowerSgdGather, sums, bindings, groups, limits);
        Ok(())
    }

    /// Launches of as many workgroups, cut where a device takes no more at once.
    fn runs(
        &self,
        passes: &mut Vec<Pass>,
        kernel: Kernel,
        base: LowRankParams,
        bindings: Bindings,
        groups: u64,
        limits: &Limits,
    ) {
        for first in (0..groups).step_by(limits.groups.max(1) as usize) {
            let params = Params::LowRank(LowRankParams { first_tile: first as u32, ..base });
            passes.push(Pass { kernel, params, bindings, groups: (groups - first).min(limits.groups.into()) as u32 });
        }
    }

    /// A workgroup for each tile, cut where a device binds or launches no more at once.
    fn over_tiles(
        &self,
        passes: &mut Vec<Pass>,
        kernel: Kernel,
        base: LowRankParams,
        limits: &Limits,
    ) -> Result<(), Error> {
        self.over(&self.tiles, passes, kernel, base, self.workspace(), limits)
    }

    fn over(
        &self,
        tiles: &[Tile],
        passes: &mut Vec<Pass>,
        kernel: Kernel,
        base: LowRankParams,
        bindings: Bindings,
        limits: &Limits,
    ) -> Result<(), Error> {
        let most = limits.binding_bytes / 4;
        let mut first = 0;
        while let Some(Tile { start, .. }) = tiles.get(first).copied() {
            let start = start / UNIT * UNIT;
            let fits = |tile: &&Tile| tile.end - start <= most;
            let run = tiles[first..].iter().take(limits.groups as usize).take_while(fits);
            let (count, end) = run.fold((0, 0), |(count, _), tile| (count + 1, tile.end));
            if count == 0 {
                let needed = 4 * (tiles[first].end - start);
                let found = limits.binding_bytes;
                return Err(Error::Limit { limit: "max_storage_buffer_binding_size", found, needed });
            }
            let (bound, size) = (end - start, self.dtype.bytes() as u64);
            let wide = Span { offset: 4 * start, bytes: 4 * bound };
            let mut bindings = bindings;
            if kernel == Kernel::PowerSgdExpand || base.has(low_rank_flags::COMMIT) {
                bindings.output = wide;
            }
            // Without feedback, what was formed of a matrix still has to be somewhere.
            let of_plain = low_rank_flags::FORM | low_rank_flags::COMMIT;
            if kernel != Kernel::PowerSgdExpand && (kernel != Kernel::PowerSgdPlain || base.has(of_plain)) {
                bindings.residual = wide;
            }
            if base.has(low_rank_flags::FORM) {
                bindings.input = Span { offset: size * start, bytes: (size * bound).next_multiple_of(4) };
            }
            if base.has(low_rank_flags::SCAN | low_rank_flags::GUARDED) {
                bindings.status = Span { offset: 0, bytes: STATUS_BYTES };
            }
            let params = LowRankParams { first: start as u32, bound: bound as u32, first_tile: first as u32, ..base };
            passes.push(Pass { kernel, params: Params::LowRank(params), bindings, groups: count });
            first += count as usize;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
