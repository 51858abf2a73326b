//! One struct a kernel family: the PTX parameter, the WGSL uniform and the CPU's argument are the same bytes.

use bytemuck::{Pod, Zeroable};

use crate::arith::stream::Stream;

/// `bucket_log2` of a tensor that is one bucket: every index shifted by it is 0.
pub const WHOLE: u32 = 31;

/// Elements that one workgroup encodes, and that one partial statistic of a whole-tensor bucket covers.
pub const SPAN: u32 = 8192;

/// Threads of a workgroup, of every kernel.
pub const THREADS: u32 = 256;

/// Elements that one workgroup decodes.
pub const DECODE_SPAN: u32 = 2048;

/// `flags` of [`EncodeParams`].
pub mod encode_flags {
    /// The bucket's scale is its L2 norm; without it, its largest magnitude (QSGD).
    pub const L2: u32 = 1;
    /// Round to nearest; without it, stochastically.
    pub const NEAREST: u32 = 2;
    /// Encode gradient + residual, and leave the new residual.
    pub const FEEDBACK: u32 = 4;
    /// Draw 32 bits per element; without it, 16.
    pub const WIDE: u32 = 8;
    /// Do nothing where the status word says that an element was not finite.
    pub const GUARDED: u32 = 16;
}

/// `flags` of [`DecodeParams`].
pub mod decode_flags {
    /// Add to what the output holds; without it, overwrite.
    pub const ACCUMULATE: u32 = 1;
    /// Multiply by the weight; without it, write decoded values as they are.
    pub const WEIGHTED: u32 = 2;
}

/// The element type of a gradient.
pub mod dtype {
    /// IEEE 754 binary32.
    pub const F32: u32 = 0;
    /// IEEE 754 binary16.
    pub const F16: u32 = 1;
    /// bfloat16.
    pub const BF16: u32 = 2;
}

/// Argument of the finite scan and of the statistics, combine and encode kernels of the bucketed quantizers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct EncodeParams {
    /// Elements of this launch.
    pub n: u32,
    /// Index, in the tensor, of the launch's first unit of 256 elements.
    pub first_unit: u32,
    /// Base-2 logarithm of the bucket, or [`WHOLE`].
    pub bucket_log2: u32,
    /// Bits of a code.
    pub bits: u32,
    /// Levels: the largest magnitude (QSGD) or the largest code (uniform).
    pub levels: u32,
    /// Fractional bits of the fixed-point scaled value.
    pub fraction: u32,
    /// [`encode_flags`].
    pub flags: u32,
    /// [`dtype`].
    pub dtype: u32,
    /// Bits of the factor that scales the wire's scalars: 1, or 1/(1 + omega).
    pub beta: u32,
    /// Seed of the run.
    pub key: [u32; 2],
    /// Which tensor.
    pub tensor: u32,
    /// Which step, low word first.
    pub step: [u32; 2],
    /// Partial statistics that the combine kernel folds; of a segments kernel, the first item of the launch.
    pub partials: u32,
    /// Of a segments kernel, the element of the flat buffer that the launch's buffers begin at; of one that folds partial
    /// statistics, the word of the table at which its tensors begin, the first of which `partials` names.
    pub base: u32,
}

impl EncodeParams {
    /// Whether a flag is set.
    #[inline(always)]
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Where the draws come from.
    #[inline(always)]
    pub fn stream(&self) -> Stream {
        Stream { key: self.key, tensor: self.tensor, step: self.step }
    }

    /// The factor that scales the wire's scalars.
    #[inline(always)]
    pub fn beta(&self) -> f32 {
        f32::from_bits(self.beta)
    }
}

/// Argument of the decode kernels of the bucketed quantizers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct DecodeParams {
    /// Elements of this launch.
    pub n: u32,
    /// Base-2 logarithm of the bucket, or [`WHOLE`].
    pub bucket_log2: u32,
    /// Bits of a code.
    pub bits: u32,
    /// Levels: the largest magnitude (QSGD) or the largest code (uniform).
    pub levels: u32,
    /// [`decode_flags`].
    pub flags: u32,
    /// Bits of the weight.
    pub weight: u32,
    /// Payloads that are summed.
    pub payloads: u32,
    /// Words from one payload's scalars to the next one's.
    pub scalar_stride: u32,
    /// Words from one payload's codes to the next one's.
    pub code_stride: u32,
    /// Of a segments kernel, the first item of the launch.
    pub first_item: u32,
    /// Zero.
    pub reserved: [u32; 2],
}

impl DecodeParams {
    /// Whether a flag is set.
    #[inline(always)]
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// The weight.
    #[inline(always)]
    pub fn weight(&self) -> f32 {
        f32::from_bits(self.weight)
    }
}

/// Words of the table that the segments kernels take: 64 words in front, then an item a span.
///
/// A segments kernel encodes or decodes many tensors at once. They lie in one flat buffer; each is cut into spans of
/// [`SPAN`] elements, counted from its own first element, and an item says where a span is and where what becomes of it
/// goes. Positions count from where the launch's buffers begin.
pub mod item {
    /// Low word of what is added to the step of the parameters; the high word follows.
    pub const STEP: u32 = 0;
    /// Words in front of the items.
    pub const HEADER: u32 = 64;
    /// Words of an item.
    pub const WORDS: u32 = 8;
    /// First element.
    pub const START: u32 = 0;
    /// Elements, 1 to [`SPAN`](super::SPAN).
    pub const ELEMENTS: u32 = 1;
    /// Index, in its tensor, of its first unit of 256 elements.
    pub const FIRST_UNIT: u32 = 2;
    /// What is added to the tensor of the parameters.
    pub const TENSOR: u32 = 3;
    /// First word of its scalars.
    pub const SCALARS: u32 = 4;
    /// First word of its codes.
    pub const CODES: u32 = 5;
    /// Bits of the factor that scales its scalars.
    pub const BETA: u32 = 6;
    /// Where every tensor is one bucket: its tensor's statistic, as a word offset from the start of the status buffer.
    pub const STATISTIC: u32 = 7;
}

/// Words that follow the items where every tensor is one bucket: a tensor that has elements each, for the kernel that
/// folds its partial statistics.
///
/// The statistics lie behind the status: from word [`PARTIALS`](whole::PARTIALS) on those of the items, of as many words
/// each as the codec's are, and then two words per tensor.
pub mod whole {
    /// Words of a tensor.
    pub const WORDS: u32 = 8;
    /// The first of its partial statistics, as a word offset from the start of the status buffer.
    pub const FIRST: u32 = 0;
    /// How many there are.
    pub const COUNT: u32 = 1;
    /// First word of its scalars.
    pub const SCALARS: u32 = 2;
    /// Bits of the factor that scales its scalars.
    pub const BETA: u32 = 3;
    /// Its statistic, as a word offset from the start of the status buffer.
    pub const STATISTIC: u32 = 4;
    /// Words in front of the partial statistics: the status has them.
    pub const PARTIALS: u32 = 64;
}

/// Elements of a tile: what one workgroup of the top-k filter reads.
pub const TILE: u32 = 8192;

/// Tiles that one warp takes of so many, of the kernels that look through what the filter left: one after another, so the fewer
/// the sooner they are done, as long as all blocks of a large GPU have some.
#[inline(always)]
pub const fn tiles_per_warp(tiles: u32) -> u32 {
    share(tiles, 2048)
}

/// Tiles that one warp writes the entries of.
#[inline(always)]
pub const fn tiles_to_emit(tiles: u32) -> u32 {
    share(tiles, 8192)
}

/// Tiles of one of so many warps: 1, 2, 4 or 8, so that dividing by them is a shift.
#[inline(always)]
const fn share(tiles: u32, warps: u32) -> u32 {
    1 << ((tiles > warps) as u32 + (tiles > 2 * warps) as u32 + (tiles > 4 * warps) as u32)
}

/// Bins of a histogram of keys,
pub const HISTOGRAM_BINS: u32 = 2048;
/// behind which the sums of each 32 of them are.
pub const HISTOGRAM_WORDS: u32 = HISTOGRAM_BINS + HISTOGRAM_BINS / 32 * SUM_WORDS;

/// Words from one sum to the next: a sector, since all tiles add to the sums. In PTX they are not kept for one large segment alone.
pub const SUM_WORDS: u32 = 8;

/// Words that a block of the sample's kernel makes zero.
pub const ZEROED_WORDS: u32 = 4096;

/// Tiles whose counts are summed up together, and such sums again (logarithm).
pub const SUMMED_LOG2: u32 = 6;

/// Tiles that one workgroup filters again; the first time it is one.
pub const TILES_AGAIN: u32 = 8;

/// Elements of a run of the sketch, a warp's of a tile,
pub const SKETCH_RUN: u32 = 1024;
/// of whose keys, in falling order, each 32nd is in the sketch.
pub const SKETCH_STEP: u32 = 32;
/// Words of a tile's sketch.
pub const SKETCH_WORDS: u32 = TILE / SKETCH_STEP;

/// How often a workgroup that waits for others of its launch looks whether they are done, before it gives up. A look is a
/// load from the second level of the cache, so that it waits for a second and more, where all of a selection takes milliseconds.
pub const PATIENCE: u32 = 1 << 23;

/// Room for candidates is given out in pieces of this many, so that each tile's begin at a sector.
pub const PIECE: u32 = 16;

/// In place of where a tile's candidates are: they found no room, and are looked for in the gradient.
pub const NOWHERE: u32 = u32::MAX;

/// `flags` of [`SelectParams`].
pub mod select_flags {
    /// Select of gradient + residual, and leave the sum in the residual.
    pub const FEEDBACK: u32 = 1;
    /// Leave zero in the residual where an entry is kept: it is sent as it is (the emit and block kernels).
    pub const SENT: u32 = 2;
    /// Segments are 1024 elements at most, and a warp takes one (the block kernel).
    pub const WARPS: u32 = 4;
    /// The residual still holds what was sent last: of each segment, what `SENT_KEY` and `SENT_INDEX` say.
    pub const LAZY: u32 = 8;
    /// What is counted of each tile is its sketch (the count kernel).
    pub const OF_SKETCH: u32 = 16;
    /// Leave in `SENT_KEY` and `SENT_INDEX` of each segment what is kept of it, for the next selection, which is `LAZY` (the emit
    /// kernel).
    pub const LEAVES_SENT: u32 = 32;
    /// Instead of taking off what was sent, leave in the table that nothing was (the settle kernel).
    pub const FORGETS: u32 = 64;
}

/// Elements of a segment that one warp selects from.
pub const WARP_SEGMENT: u32 = 1024;

/// Words of a segment in the table that the host writes. Where what was sent stays on the device, the emit kernel writes
/// the two that say so.
pub mod segment {
    /// Words of a segment.
    pub const WORDS: u32 = 16;
    /// Its first element.
    pub const START: u32 = 0;
    /// Its elements.
    pub const ELEMENTS: u32 = 1;
    /// How many are kept.
    pub const KEEP: u32 = 2;
    /// Its first tile.
    pub const FIRST_TILE: u32 = 3;
    /// Where its entries begin in the output.
    pub const OUTPUT: u32 = 4;
    /// 1 where every key from `FLOOR` on is kept, and none is looked for.
    pub const FIXED: u32 = 5;
    /// See `FIXED`.
    pub const FLOOR: u32 = 6;
    /// 1 where no sample is taken, and the sketch is made at once.
    pub const UNSAMPLED: u32 = 7;
    /// Base-2 logarithm of the keys that a thread samples.
    pub const SLOTS_LOG2: u32 = 8;
    /// Rank in a workgroup's sample of the key from which on elements are candidates; 0: all are.
    pub const RANK_LOW: u32 = 9;
    /// Rank of the key from which on elements are in, most likely; 0: none is.
    pub const RANK_HIGH: u32 = 10;
    /// Rank in the sketch of the key from which on elements are candidates, with certainty enough of them; 0: all are.
    pub const SKETCH_LOW: u32 = 11;
    /// Rank in the sketch of the key from which on elements are in, with certainty; 0: none is.
    pub const SKETCH_HIGH: u32 = 12;
    /// With `LAZY`: elements of the residual above this key are zero,
    pub const SENT_KEY: u32 = 13;
    /// and those that have it, up to this one.
    pub const SENT_INDEX: u32 = 14;
}

/// Words of a segment's state. It is zero at the start, and the filter adds to the second half. From the sketch on, each pass that needs a state works it out from the one before and from
/// what was counted since, and leaves it where the next one will look.
pub mod state {
    /// Words of a state.
    pub const WORDS: u32 = 16;
    /// Complement of the key from which on elements are candidates.
    pub const FLOOR: u32 = 0;
    /// The key from which on elements are sure to be in, if the sample was right.
    pub const SURE: u32 = 1;
    /// 1 where the segment is to be filtered again, by what the sketch says.
    pub const AGAIN: u32 = 2;
    /// Where the last kept key is looked for: one of `source`.
    pub const SOURCE: u32 = 3;
    /// The lowest key that it may be.
    pub const BASE: u32 = 4;
    /// How many keys it may be.
    pub const SPAN: u32 = 5;
    /// Which one of the elements with such keys it is, counted from the largest.
    pub const RANK: u32 = 6;
    /// How many rounds of counting are left until it is known.
    pub const LEFT: u32 = 7;
    /// Sure elements.
    pub const COUNT_SURE: u32 = 8;
    /// Candidates that are not sure: the band.
    pub const COUNT_BAND: u32 = 9;
    /// Elements whose key is the one below the candidates'.
    pub const COUNT_BELOW: u32 = 10;
    /// Of the sketch's higher rank: the lowest key that it may be,
    pub const HIGH_BASE: u32 = 11;
    /// When it is known, the key from which on elements are kept,
    pub const CUT: u32 = 12;
    /// and how many of the key below, the first ones. Before, for a segment that is filtered again: how many entries of the
    /// sketch that have the lowest key of the candidates are within the lower rank.
    pub const TIES: u32 = 13;
    /// how many keys it may be,
    pub const HIGH_SPAN: u32 = 14;
    /// and which one of the entries with such keys it is.
    pub const HIGH_RANK: u32 = 15;
}

/// Words of the room, which count.
pub mod room {
    /// How many there are.
    pub const WORDS: u32 = 64;
    /// Room for candidates that was given out, of the first filter;
    pub const FIRST: u32 = 0;
    /// and of filtering again.
    pub const AGAIN: u32 = 1;
    /// Tiles that found none.
    pub const NONE_LEFT: u32 = 2;
    /// 1 where a segment is left to the sketch.
    pub const SKETCHED: u32 = 3;
    /// 1 where workgroups that hand over within a launch waited for one another in vain.
    pub const STUCK: u32 = 4;
    /// Of each round, 1 where a segment's keys are to be counted in the next one. Of a kernel that hands over within a launch.
    pub const GOES_ON: u32 = 8;
    /// Of each of its passes, two words: pieces that were taken, and pieces that are done.
    pub const PIECES: u32 = 16;
}

/// Where the last kept key is looked for.
pub mod source {
    /// It is known.
    pub const DONE: u32 = 0;
    /// Among the candidates that are not sure.
    pub const BAND: u32 = 1;
    /// Among all candidates: more were sure than are kept.
    pub const CANDIDATES: u32 = 2;
    /// In the sketch, for the time being: candidates were too few, or too many to be stored.
    pub const SKETCH: u32 = 3;
}

/// Argument of the top-k kernels.
///
/// The workspace is, from its first word on: the table of segments; the sample's guesses; the words of the [`room`]; the
/// segments' states, three times; sums of tiles' counts; the segments' histograms, three times; and then what `info` to `band`
/// point at, in words.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct SelectParams {
    /// Elements of the gradient.
    pub elements: u32,
    /// Index of the first element that this launch's input and residual hold.
    pub first: u32,
    /// Elements that they hold.
    pub bound: u32,
    /// The first tile of the launch, segment of the sample kernel, or block of the block kernel.
    pub first_tile: u32,
    /// Tiles, segments or blocks of the launch.
    pub tiles: u32,
    /// Segments in the table; 0 in the block kernel where there is none.
    pub segments: u32,
    /// [`select_flags`].
    pub flags: u32,
    /// [`dtype`].
    pub dtype: u32,
    /// Base-2 logarithm of the workgroups that sample a segment.
    pub samples_log2: u32,
    /// How often the last kept key was narrowed down before this pass, which does it once more.
    pub round: u32,
    /// How often it will be, at the most, until it is known; and as often again in what was filtered again.
    pub rounds: u32,
    /// Where the segments' states are.
    pub states: u32,
    /// Where this pass leaves them, narrowed down. Of the sample: how many words are made zero, from the room on.
    pub next: u32,
    /// Where the histograms are that were counted before this pass. Of the sample: how many times 4096 words other launches make
    /// zero before.
    pub counted: u32,
    /// Where those are that it adds to;
    pub histograms: u32,
    /// and those that it makes zero for the pass behind the next one, where that will need them.
    pub zeroed: u32,
    /// Candidates that there is room for,
    pub capacity: u32,
    /// and behind it, for those of filtering again.
    pub capacity_again: u32,
    /// Tiles of all segments.
    pub all_tiles: u32,
    /// Where the words of the [`room`](mod@room) are.
    pub room: u32,
    /// Where the sums of tiles' counts are, of the sketch and behind them of what is kept.
    pub sums: u32,
    /// Where 4 words per tile are: first candidate, candidates, those in the band, elements of the key below; or of tiles
    /// that were filtered again, whether elements of the highest key that the last kept one may be are in.
    pub info: u32,
    /// Where 2 words per tile are: elements from the cut on, and of the key below it.
    pub counts: u32,
    /// Where the candidates' values are; and where those of filtering again are to be, the sketch before them.
    pub values: u32,
    /// Where their places in the tile are.
    pub places: u32,
    /// Where the values of those in the band are.
    pub band: u32,
    /// Elements of a block, where the block kernel has no table.
    pub block: u32,
    /// How many of each are kept.
    pub keep: u32,
}

impl SelectParams {
    /// Whether a flag is set.
    #[inline(always)]
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Where the sample's guesses are of a segment: complements of floors and sure keys, in turn.
    #[inline(always)]
    pub fn guesses(&self, segment: u32) -> u32 {
        self.room - ((self.segments - segment) << (self.samples_log2 + 1))
    }

    /// Where the sums are of what is counted of 64 tiles, 2 words each, or with `upper` of 64 times 64.
    #[inline(always)]
    pub fn sums(&self, upper: bool, of_sketch: bool) -> u32 {
        let begin = if of_sketch { self.sums } else { self.sums + sum_words(self.all_tiles) };
        if upper { begin + 2 * self.all_tiles.div_ceil(1 << SUMMED_LOG2) } else { begin }
    }

    /// Where a tile's sketch is.
    #[inline(always)]
    pub fn sketch(&self, tile: u32) -> u32 {
        self.values + self.capacity + tile * SKETCH_WORDS
    }
}

/// Words of the sums of so many tiles' counts.
#[inline(always)]
pub const fn sum_words(tiles: u32) -> u32 {
    2 * (tiles.div_ceil(1 << SUMMED_LOG2) + tiles.div_ceil(1 << (2 * SUMMED_LOG2)))
}

/// `flags` of [`ScatterParams`].
pub mod scatter_flags {
    /// Add the weighted value to what the output holds; without it, write the value.
    pub const ACCUMULATE: u32 = 1;
}

/// Argument of the kernel that decodes sparse payloads.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct ScatterParams {
    /// Entries.
    pub entries: u32,
    /// Index of the first element that this launch's output holds.
    pub first: u32,
    /// Elements that it holds.
    pub bound: u32,
    /// [`scatter_flags`].
    pub flags: u32,
    /// Bits of the weight.
    pub weight: u32,
    /// Zero.
    pub reserved: [u32; 3],
}

/// Rows, and columns, of a tile of a matrix: what one workgroup of PowerSGD multiplies.
pub const LOW_RANK_TILE: u32 = 256;

/// Columns of a factor up to which gradient + residual is formed and multiplied in one pass.
pub const LOW_RANK_TOGETHER: u32 = 8;

/// Words of a tile in the list that the host writes: its matrix, its first row, its first column, zero.
pub const LOW_RANK_TILE_WORDS: u32 = 4;

/// Entries from which on, and after which, a factor's columns begin: each is padded with zeros to a multiple of this.
pub const LOW_RANK_PAD: u32 = 16;

/// `flags` of [`LowRankParams`].
pub mod low_rank_flags {
    /// The factor is the right one, with an entry for each column; without it, the left one.
    pub const RIGHT: u32 = 1;
    /// There is a residual.
    pub const FEEDBACK: u32 = 2;
    /// Form gradient + residual, and leave it in the residual; without it, that was done before.
    pub const FORM: u32 = 4;
    /// Multiply.
    pub const PRODUCT: u32 = 8;
    /// Tell in the status where gradient + residual is first not finite, and leave nothing else.
    pub const SCAN: u32 = 16;
    /// Take the factors from what was all-reduced.
    pub const TAKE: u32 = 32;
    /// Make the factors' columns orthonormal.
    pub const ORTHONORMAL: u32 = 64;
    /// Columns that depend on those before them are seeded, and made orthonormal again.
    pub const SEED: u32 = 128;
    /// A step begins whose state is on the device: its factors are those that the last one ended with, no matrix is poisoned,
    /// and the count of steps is the workspace's.
    pub const START: u32 = 256;
    /// Where the state is on the device: what was formed is gradient + residual, nothing of which was sent yet.
    pub const FORMED: u32 = 512;
    /// A step ends whose state is on the device: its factors become those that it ended with, and the marks say what became of
    /// each tensor. Of a tensor that is not compressed, its means are taken.
    pub const COMMIT: u32 = 1024;
    /// Tensors that are not compressed are written as they are sent.
    pub const SEND: u32 = 2048;
    /// Nothing is formed where the status tells of an element that is not finite.
    pub const GUARDED: u32 = 4096;
}

/// Elements of a tensor that is not compressed which one workgroup takes.
pub const LOW_RANK_PLAIN: u32 = 2048;

/// Words of a matrix in the table that the host writes.
pub mod matrix {
    /// Words of a matrix.
    pub const WORDS: u32 = 16;
    /// Its first element.
    pub const FIRST: u32 = 0;
    /// Its rows.
    pub const ROWS: u32 = 1;
    /// Its columns.
    pub const COLUMNS: u32 = 2;
    /// Where its left factor begins among all left factors, column by column and padded; the right one's is the next word.
    pub const PADDED: u32 = 3;
    /// Where its left factor begins among all as they are sent; the right one's is the next word.
    pub const SENT: u32 = 5;
    /// Where its tiles' shares of the left factor begin, each as the padded factor; of the right factor in the next word.
    pub const SHARES: u32 = 7;
    /// The first workgroup that sums shares of the left factor; of the right factor in the next word.
    pub const FIRST_GROUP: u32 = 9;
    /// Its place among all tensors, by which its seeded columns are drawn.
    pub const TENSOR: u32 = 11;
}

/// Words of what is known of a matrix between passes.
pub mod mark {
    /// Words of a matrix.
    pub const WORDS: u32 = 4;
    /// 1 where the last step sent L R^T of it, which is yet to be taken off the residual; [`DROPPED`] where the residual counts
    /// as zero.
    pub const SENT: u32 = 0;
    /// Not 0 where a factor of the step under way could not be used.
    pub const POISONED: u32 = 1;
    /// Where the state is on the device: for how many steps more a tensor drops what it would keep, up to [`WARY`],
    pub const WARY_FOR: u32 = 2;
    /// and what became of it: 0 before the first step, then one of `outcome`.
    pub const OUTCOME: u32 = 3;
    /// In `SENT`: nothing was sent of it, and nothing is kept.
    pub const DROPPED: u32 = 2;
    /// Steps that follow one that was poisoned.
    pub const WARY: u32 = 2;
}

/// What became of a tensor in a step.
pub mod outcome {
    /// It was sent.
    pub const SENT: u32 = 1;
    /// It was poisoned, and its residual keeps the finite part of the gradient.
    pub const KEPT: u32 = 2;
    /// It was poisoned, and nothing is kept.
    pub const DROPPED: u32 = 3;
}

/// Argument of the PowerSGD kernels.
///
/// The workspace is the table, and behind it what the fields point at, in words. Factors are `f32`, column by column, each
/// column padded with zeros.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct LowRankParams {
    /// Index of the first element that this launch's input, residual and output hold.
    pub first: u32,
    /// Elements that they hold.
    pub bound: u32,
    /// The first tile of the launch; of the kernel that sums shares, its first workgroup; of that which takes factors, its
    /// first matrix.
    pub first_tile: u32,
    /// Matrices in the table.
    pub matrices: u32,
    /// Columns of a factor.
    pub rank: u32,
    /// [`low_rank_flags`].
    pub flags: u32,
    /// [`dtype`].
    pub dtype: u32,
    /// Where the list of tiles is.
    pub tiles: u32,
    /// Where the marks are.
    pub marks: u32,
    /// Where the left factors are of which L R^T is taken off the residual, or written;
    pub left: u32,
    /// and the right ones.
    pub right: u32,
    /// Where the factors are that are multiplied by, or worked on.
    pub factor: u32,
    /// Where the tiles' shares of the product are.
    pub shares: u32,
    /// Seed of the run.
    pub key: [u32; 2],
    /// Which step, low word first.
    pub step: [u32; 2],
    /// The first tensor.
    pub tensor: u32,
    /// Where, with the state on the device, the two words are that count its steps.
    pub steps: u32,
    /// Where the tensors that are not compressed wait to be sent,
    pub plain: u32,
    /// and where they lie among what is sent.
    pub plain_sent: u32,
    /// Zero.
    pub reserved: [u32; 3],
}

impl LowRankParams {
    /// Whether a flag is set.
    #[inline(always)]
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}
