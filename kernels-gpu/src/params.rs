//! One struct per kernel family: the PTX parameter, the WGSL uniform and the CPU's argument are the same bytes.

use bytemuck::{Pod, Zeroable};

use crate::integer::stream::{ROUNDS, Stream, round_keys};
use crate::integer::tiles::place;

/// `bucket_log2` of a tensor that is one bucket: every index shifted by it is 0.
pub const WHOLE: u32 = 31;

/// Elements that one workgroup encodes, and that one partial statistic of a whole-tensor bucket covers.
pub const SPAN: u32 = 8192;

/// Threads of a workgroup, of every kernel.
pub const THREADS: u32 = 256;

/// Elements that one workgroup decodes.
pub const DECODE_SPAN: u32 = 2048;

/// Elements of a block of threads that transforms by cosines: those of the largest block.
pub const DCT_SPAN: u32 = 4096;

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
    /// The bucket's scale is 1; without it, the mean of its magnitudes (signs).
    pub const UNIT: u32 = 32;
    /// The bucket's scale is at most `beta` standard deviations; without it, at most the largest magnitude, which
    /// rounding to nearest multiplies by `beta` (ternary).
    pub const CLIPPED: u32 = 64;
    /// The bucket's scale is at least `beta`, a power of two (floats).
    pub const AT_LEAST: u32 = 128;
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
    /// Index, in its tensor, of the launch's first unit of 256 elements.
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
    /// Bits of the factor that scales the wire's scalars: 1, or 1/(1 + omega). Of ternary codes that are clipped or
    /// rounded to nearest, of the factor of the scale.
    pub beta: u32,
    /// Seed of the run.
    pub key: [u32; 2],
    /// Which tensor.
    pub tensor: u32,
    /// Which step, low word first.
    pub step: [u32; 2],
    /// Combine kernel of one tensor: how many partial statistics it folds. Combine kernel of many tensors: the first
    /// tensor of the launch. Segments kernels: the first item of the launch.
    pub partials: u32,
    /// Segments kernels: the element of the flat buffer at which the launch's buffers begin. Combine kernel of many
    /// tensors: the word of the table at which its tensors begin.
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

/// Argument of the encode kernels whose setting is fixed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct FixedParams {
    /// What the kernel for every setting would take.
    pub encode: EncodeParams,
    /// The key of each round of a draw: from here an instruction reads one without taking a register.
    pub keys: [[u32; 2]; ROUNDS],
}

impl FixedParams {
    /// The same parameters, with the keys worked out.
    pub fn new(encode: EncodeParams) -> Self {
        Self { encode, keys: round_keys(encode.key) }
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
    /// Segments kernels: the first item of the launch.
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

/// Words of the table that the segments kernels take: 64 words in front, then an item per span.
///
/// A segments kernel encodes or decodes many tensors at once. They lie in one flat buffer. Each is cut into spans of
/// [`SPAN`] elements, counted from its own first element. An item says where its span is, and where the span's scalars
/// and codes go. Positions count from where the launch's buffers begin.
pub mod item {
    /// Low word of the number that is added to [`EncodeParams::step`](super::EncodeParams::step); the high word
    /// follows.
    pub const STEP: u32 = 0;
    /// Words in front of the items.
    pub const HEADER: u32 = 64;
    /// Words of an item.
    pub const WORDS: u32 = 8;
    /// First element of the span.
    pub const START: u32 = 0;
    /// Elements of the span, 1 to [`SPAN`](super::SPAN).
    pub const ELEMENTS: u32 = 1;
    /// Index, in its tensor, of the span's first unit of 256 elements.
    pub const FIRST_UNIT: u32 = 2;
    /// Number that is added to [`EncodeParams::tensor`](super::EncodeParams::tensor).
    pub const TENSOR: u32 = 3;
    /// First word of the span's scalars.
    pub const SCALARS: u32 = 4;
    /// First word of the span's codes.
    pub const CODES: u32 = 5;
    /// Bits of the factor that scales the span's scalars.
    pub const BETA: u32 = 6;
    /// Where every tensor is one bucket: the statistic of the span's tensor, as a word offset from the start of the
    /// status buffer.
    pub const STATISTIC: u32 = 7;
}

/// Words per tensor that follow the items where every tensor is one bucket, for the kernel that folds partial
/// statistics. Tensors without elements have none.
///
/// Statistics lie in the status buffer, from word [`PARTIALS`](whole::PARTIALS) on: first one per item, of as many
/// words as the codec's statistic has, then two words per tensor.
pub mod whole {
    /// Words of a tensor.
    pub const WORDS: u32 = 8;
    /// The tensor's first partial statistic, as a word offset from the start of the status buffer.
    pub const FIRST: u32 = 0;
    /// How many partial statistics the tensor has.
    pub const COUNT: u32 = 1;
    /// First word of the tensor's scalars.
    pub const SCALARS: u32 = 2;
    /// Bits of the factor that scales the tensor's scalars.
    pub const BETA: u32 = 3;
    /// The tensor's statistic, as a word offset from the start of the status buffer.
    pub const STATISTIC: u32 = 4;
    /// Words of the status buffer in front of the partial statistics: they hold the status.
    pub const PARTIALS: u32 = 64;
}

/// Elements of a tile: what one workgroup of the top-k filter reads.
pub const TILE: u32 = 8192;

/// Tiles that one warp looks through, of `tiles` in all, after the filter. It takes them one after another, so fewer
/// tiles per warp are done sooner, as long as all blocks of a large GPU have some.
#[inline(always)]
pub const fn tiles_per_warp(tiles: u32) -> u32 {
    share(tiles, 2048)
}

/// Tiles whose entries one warp writes, of `tiles` in all.
#[inline(always)]
pub const fn tiles_to_emit(tiles: u32) -> u32 {
    share(tiles, 8192)
}

/// Tiles per warp, where `warps` share `tiles`: 1, 2, 4 or 8, so that a division by it is a shift.
#[inline(always)]
const fn share(tiles: u32, warps: u32) -> u32 {
    1 << ((tiles > warps) as u32 + (tiles > 2 * warps) as u32 + (tiles > 4 * warps) as u32)
}

/// Bins of a histogram of keys.
pub const HISTOGRAM_BINS: u32 = 2048;
/// Words of a histogram of keys: its bins, then the sum of each 32 bins.
pub const HISTOGRAM_WORDS: u32 = HISTOGRAM_BINS + HISTOGRAM_BINS / 32 * SUM_WORDS;

/// Words from one sum of 32 bins to the next: a sector of memory each, since all tiles add to the sums. PTX keeps no
/// sums for a selection of a single large segment.
pub const SUM_WORDS: u32 = 8;

/// Words that one block of the sample kernel clears.
pub const ZEROED_WORDS: u32 = 4096;

/// Base-2 logarithm of the tiles whose counts make one sum, and of the sums that make one upper sum.
pub const SUMMED_LOG2: u32 = 6;

/// Tiles that one workgroup of the second filter takes; the first filter takes one.
pub const TILES_AGAIN: u32 = 8;

/// Elements of a run of the sketch: one warp's part of a tile.
pub const SKETCH_RUN: u32 = 1024;
/// Of a run's keys in falling order, every so many-th is in the sketch.
pub const SKETCH_STEP: u32 = 32;
/// Words of a tile's sketch.
pub const SKETCH_WORDS: u32 = TILE / SKETCH_STEP;

/// How often a workgroup that waits for others of its launch looks whether they are done, before it gives up.
///
/// A look is a load from the L2 cache, so all of them take a second or more. A selection takes milliseconds.
pub const PATIENCE: u32 = 1 << 23;

/// Room for candidates is given out in multiples of this, so that each tile's candidates begin at a sector of memory.
pub const PIECE: u32 = 16;

/// Stands for a tile's first candidate where its candidates found no room, and are looked for in the gradient.
pub const NOWHERE: u32 = u32::MAX;

/// `flags` of [`SelectParams`].
pub mod select_flags {
    /// Select of gradient + residual, and leave the sum in the residual.
    pub const FEEDBACK: u32 = 1;
    /// Leave zero in the residual where an entry is kept, since entries are sent exactly (the emit and block kernels).
    pub const SENT: u32 = 2;
    /// Segments are 1024 elements at most, and a warp takes one (the block kernel).
    pub const WARPS: u32 = 4;
    /// The residual still holds the entries that were sent last: those that each segment's `SENT_KEY` and `SENT_INDEX`
    /// name.
    pub const LAZY: u32 = 8;
    /// Count entries of each tile's sketch, not its candidates (the count kernel).
    pub const OF_SKETCH: u32 = 16;
    /// Leave each segment's kept entries in its `SENT_KEY` and `SENT_INDEX`, for the next selection, which is `LAZY`
    /// (the emit kernel).
    pub const LEAVES_SENT: u32 = 32;
    /// Zero no entry; mark in the table that none is left to be zeroed (the settle kernel).
    pub const FORGETS: u32 = 64;
}

/// Elements of a segment that one warp selects from.
pub const WARP_SEGMENT: u32 = 1024;

/// Words of a segment in the table that the host writes.
///
/// With [`LEAVES_SENT`](select_flags::LEAVES_SENT), the emit kernel writes `SENT_KEY` and `SENT_INDEX`.
pub mod segment {
    /// Words of a segment.
    pub const WORDS: u32 = 16;
    /// The segment's first element.
    pub const START: u32 = 0;
    /// The segment's number of elements.
    pub const ELEMENTS: u32 = 1;
    /// How many of the segment's elements are kept.
    pub const KEEP: u32 = 2;
    /// The segment's first tile.
    pub const FIRST_TILE: u32 = 3;
    /// Where the segment's entries begin in the output.
    pub const OUTPUT: u32 = 4;
    /// 1 where every key from `FLOOR` on is kept, and none is looked for.
    pub const FIXED: u32 = 5;
    /// With `FIXED`, the lowest key that is kept.
    pub const FLOOR: u32 = 6;
    /// 1 where no sample is taken, and the sketch is made at once.
    pub const UNSAMPLED: u32 = 7;
    /// Base-2 logarithm of the keys that a thread samples.
    pub const SLOTS_LOG2: u32 = 8;
    /// Rank, in a workgroup's sample, of the key above which elements are candidates. 0: all elements are.
    pub const RANK_LOW: u32 = 9;
    /// Rank, in a workgroup's sample, of the key from which on elements are most likely kept. 0: no element is.
    pub const RANK_HIGH: u32 = 10;
    /// Rank, in the sketch, of the key from which on there are certainly enough candidates. 0: all elements are
    /// candidates.
    pub const SKETCH_LOW: u32 = 11;
    /// Rank, in the sketch, of the key from which on elements are certainly kept. 0: no element is.
    pub const SKETCH_HIGH: u32 = 12;
    /// With `LAZY`: elements of the residual with a larger key count as zero.
    pub const SENT_KEY: u32 = 13;
    /// With `LAZY`: elements of the residual whose key is `SENT_KEY` count as zero up to this index.
    pub const SENT_INDEX: u32 = 14;
}

/// Words of a segment's state: what is known of its last kept key.
///
/// It is zero at the start, and the filter adds to its counts. From the sketch on, each pass that needs a state works
/// it out from the state before and from what was counted since, and leaves it for the next pass.
pub mod state {
    /// Words of a state.
    pub const WORDS: u32 = 16;
    /// Complement of the key from which on elements are candidates.
    pub const FLOOR: u32 = 0;
    /// The sure key: elements from it on are kept, if the sample was right.
    pub const SURE: u32 = 1;
    /// 1 where the segment is to be filtered again, between keys that the sketch gave; 2 once it was.
    pub const AGAIN: u32 = 2;
    /// Where the last kept key is looked for: one of `source`.
    pub const SOURCE: u32 = 3;
    /// The lowest key that the last kept one may be.
    pub const BASE: u32 = 4;
    /// How many keys, from `BASE` on, the last kept one may be.
    pub const SPAN: u32 = 5;
    /// Rank of the last kept element among the elements whose keys are in that range, counted from the largest.
    pub const RANK: u32 = 6;
    /// How many rounds of counting are left until the last kept key is known.
    pub const LEFT: u32 = 7;
    /// How many elements have the sure key or a larger one.
    pub const COUNT_SURE: u32 = 8;
    /// How many candidates are below the sure key: the band.
    pub const COUNT_BAND: u32 = 9;
    /// How many elements have the key just below the lowest candidate's.
    pub const COUNT_BELOW: u32 = 10;
    /// The lowest key that the sketch's entry of the higher rank may have.
    pub const HIGH_BASE: u32 = 11;
    /// Once the last kept key is known: every element with this key or a larger one is kept.
    pub const CUT: u32 = 12;
    /// Once the last kept key is known: how many elements with the key just below `CUT` are kept, the first ones.
    ///
    /// Before, for a segment that is filtered again: how many of the sketch's entries with the lowest candidate's key
    /// are within the lower rank.
    pub const TIES: u32 = 13;
    /// How many keys, from `HIGH_BASE` on, the sketch's entry of the higher rank may have.
    pub const HIGH_SPAN: u32 = 14;
    /// The higher rank, among the sketch's entries whose keys are in that range.
    pub const HIGH_RANK: u32 = 15;
}

/// Words that all segments of a selection share: room that was given out, and how far the passes are.
pub mod room {
    /// How many words there are.
    pub const WORDS: u32 = 64;
    /// How much room for candidates the first filter has given out.
    pub const FIRST: u32 = 0;
    /// How much room for candidates the second filter has given out.
    pub const AGAIN: u32 = 1;
    /// How many tiles found no room for their candidates.
    pub const NONE_LEFT: u32 = 2;
    /// 1 where a segment is left to the sketch.
    pub const SKETCHED: u32 = 3;
    /// 1 where workgroups of the rest kernel waited for one another in vain.
    pub const STUCK: u32 = 4;
    /// One word per round, for the rest kernel: 1 where a segment's keys are to be counted in the next round.
    pub const GOES_ON: u32 = 8;
    /// Two words per pass of the rest kernel: pieces that were taken, and pieces that are done.
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
    /// In the sketch, until the segment is filtered again: candidates were too few, or too many to be stored.
    pub const SKETCH: u32 = 3;
}

/// Argument of the top-k kernels.
///
/// The workspace is, from its first word on: the table of segments; the sample's guesses; the words of the [`room`];
/// the segments' states, three times; sums of tiles' counts; the segments' histograms, three times; and then the arrays
/// that `info` to `band` point at. Every place in it is a number of words.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct SelectParams {
    /// Elements of the gradient.
    pub elements: u32,
    /// Index of the first element that this launch's input and residual hold.
    pub first: u32,
    /// Elements that this launch's input and residual hold.
    pub bound: u32,
    /// The first tile of the launch. Sample kernel: the first segment. Block kernel: the first segment or block.
    pub first_tile: u32,
    /// Tiles of the launch. Sample kernel: its segments. Block kernel: its segments or blocks.
    pub tiles: u32,
    /// Segments in the table. Block kernel: 0 where there is no table.
    pub segments: u32,
    /// [`select_flags`].
    pub flags: u32,
    /// [`dtype`].
    pub dtype: u32,
    /// Base-2 logarithm of the workgroups that sample a segment.
    pub samples_log2: u32,
    /// How often the last kept key was narrowed down before this pass, which does it once more.
    pub round: u32,
    /// How often the last kept key is narrowed down at most until it is known, and as often again after a second
    /// filter.
    pub rounds: u32,
    /// Where the segments' states are.
    pub states: u32,
    /// Where this pass leaves the segments' states, narrowed down. Sample kernel: how many words, from the room on, all
    /// launches together clear.
    pub next: u32,
    /// Where the histograms are that were counted before this pass. Sample kernel: how many blocks of earlier launches
    /// clear 4096 words each.
    pub counted: u32,
    /// Where the histograms are that this pass adds to.
    pub histograms: u32,
    /// Where the histograms are that this pass clears for the pass after the next, if that will count.
    pub zeroed: u32,
    /// Room for candidates of the first filter, in elements.
    pub capacity: u32,
    /// Room for candidates of the second filter, in elements, after that of the first.
    pub capacity_again: u32,
    /// Tiles of all segments.
    pub all_tiles: u32,
    /// Where the words of the [`room`](mod@room) are.
    pub room: u32,
    /// Where the sums of tiles' counts are: those of the sketch, and after them those of kept elements.
    pub sums: u32,
    /// Where 4 words per tile are: the first candidate, the number of candidates, how many of them are in the band, and
    /// how many elements have the key just below. For a tile that was filtered again, the last word says whether
    /// elements of the highest key that the last kept one may be are kept.
    pub info: u32,
    /// Where 2 words per tile are: how many elements have the cut's key or a larger one, and how many the key just
    /// below.
    pub counts: u32,
    /// Where the candidates' values are, the second filter's after the first's. Until then the sketch is in their
    /// place.
    pub values: u32,
    /// Where the candidates' places in their tiles are.
    pub places: u32,
    /// Where the values of the candidates in the band are.
    pub band: u32,
    /// Block kernel without a table: elements of a block.
    pub block: u32,
    /// Block kernel without a table: how many elements of each block are kept.
    pub keep: u32,
}

impl SelectParams {
    /// Whether a flag is set.
    #[inline(always)]
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Where a segment's guesses of the sample are: the complement of a floor and a sure key, per workgroup.
    #[inline(always)]
    pub fn guesses(&self, segment: u32) -> u32 {
        self.room - ((self.segments - segment) << (self.samples_log2 + 1))
    }

    /// Where the sums of the counts of 64 tiles are, 2 words each; with `upper`, those of 64 times 64 tiles.
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

/// Words of the sums of the counts of `tiles`.
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
    /// Elements that this launch's output holds.
    pub bound: u32,
    /// [`scatter_flags`].
    pub flags: u32,
    /// Bits of the weight.
    pub weight: u32,
    /// Zero.
    pub reserved: [u32; 3],
}

/// Argument of the kernel that adds a gradient to a momentum.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct MomentumParams {
    /// The first element that is changed, of those that are bound.
    pub first: u32,
    /// The end of those that are changed.
    pub end: u32,
    /// Bits of the factor of the momentum.
    pub factor: u32,
    /// Bits of the factor of the gradient.
    pub gain: u32,
}

/// Argument of the kernel that takes a step back on the device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct RestoreParams {
    /// Elements.
    pub elements: u32,
    /// Words of the status.
    pub words: u32,
    /// Spans of 2048 elements that a block takes.
    pub spans: u32,
    /// 1: the elements become those of the copy. 0: they become `fill`.
    pub copies: u32,
    /// Bits of a number.
    pub fill: u32,
}

/// `flags` of [`RotateParams`].
pub mod rotate_flags {
    /// Transform back: the signs come last, and what was padded is not written.
    pub const INVERSE: u32 = 1;
}

/// Argument of the kernel that rotates blocks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct RotateParams {
    /// Elements of this launch as the tensor has them.
    pub n: u32,
    /// Rows of 32 elements of this launch: as many as hold them.
    pub rows: u32,
    /// Base-2 logarithm of the block, 5 to 13.
    pub block_log2: u32,
    /// [`rotate_flags`].
    pub flags: u32,
    /// Key of the signs.
    pub key: [u32; 2],
    /// Which tensor.
    pub tensor: u32,
    /// Which step, low word first.
    pub step: [u32; 2],
    /// The draw of the launch's first four rows.
    pub first_call: u32,
    /// Zero.
    pub reserved: [u32; 2],
}

impl RotateParams {
    /// Where the signs come from.
    #[inline(always)]
    pub fn stream(&self) -> Stream {
        Stream { key: self.key, tensor: self.tensor, step: self.step }
    }

    /// Whether the launch transforms back.
    #[inline(always)]
    pub fn is_inverse(&self) -> bool {
        self.flags & rotate_flags::INVERSE != 0
    }
}

/// `flags` of [`DctParams`].
pub mod dct_flags {
    /// Transform back.
    pub const INVERSE: u32 = 1;
}

/// Argument of the kernel that transforms blocks by cosines.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct DctParams {
    /// Elements of this launch.
    pub n: u32,
    /// Base-2 logarithm of the elements of a whole block, 2 to 12.
    pub block_log2: u32,
    /// [`dct_flags`].
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

impl DctParams {
    /// Whether the launch transforms back.
    #[inline(always)]
    pub fn is_inverse(&self) -> bool {
        self.flags & dct_flags::INVERSE != 0
    }
}

/// `flags` of [`TilesParams`].
pub mod tiles_flags {
    /// Put the elements of tiles back where they lie.
    pub const INVERSE: u32 = 1;
}

/// Argument of the kernel that concatenates tiles of a matrix.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct TilesParams {
    /// Elements of this launch: whole rows of tiles.
    pub n: u32,
    /// Where the first tile begins as it lies, of what is bound.
    pub lies: u32,
    /// Where it begins in the order, of what is bound.
    pub ordered: u32,
    /// Base-2 logarithm of the side of a tile, 0 to 6.
    pub side_log2: u32,
    /// Tiles beside each other.
    pub beside: u32,
    /// What quotients by `beside` are products with ([`reciprocal`](crate::integer::tiles::reciprocal)).
    pub reciprocal: u32,
    /// Its logarithm.
    pub beside_log2: u32,
    /// Elements from a row of the matrix to the next one.
    pub stride: u32,
    /// [`tiles_flags`].
    pub flags: u32,
}

impl TilesParams {
    /// Whether the launch puts elements back.
    #[inline(always)]
    pub fn is_inverse(&self) -> bool {
        self.flags & tiles_flags::INVERSE != 0
    }

    /// Where an element lies, by its number among those of the launch.
    #[inline(always)]
    pub fn place(&self, at: u32) -> u32 {
        self.lies + place(at, self.side_log2, self.beside, [self.reciprocal, self.beside_log2], self.stride)
    }
}

/// Argument of the kernel that counts votes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct VoteParams {
    /// Elements of this launch.
    pub n: u32,
    /// Payloads that vote, up to 65535.
    pub payloads: u32,
    /// Words of codes of each: whole units of 256 elements.
    pub words: u32,
    /// Zero.
    pub reserved: u32,
}

/// Rows, and columns, of a tile of a matrix: what one workgroup of PowerSGD multiplies.
pub const LOW_RANK_TILE: u32 = 256;

/// Columns of a factor up to which gradient + residual is formed and multiplied in one pass.
pub const LOW_RANK_TOGETHER: u32 = 8;

/// Words of a tile in the list that the host writes: its matrix, its first row, its first column, zero.
pub const LOW_RANK_TILE_WORDS: u32 = 4;

/// A factor's columns are padded with zeros to a multiple of this many entries.
pub const LOW_RANK_PAD: u32 = 16;

/// `flags` of [`LowRankParams`].
pub mod low_rank_flags {
    /// The factor is the right one, with an entry for each column; without it, the left one.
    pub const RIGHT: u32 = 1;
    /// There is a residual.
    pub const FEEDBACK: u32 = 2;
    /// Form gradient + residual, and leave the sum in the residual; without it, an earlier pass did.
    pub const FORM: u32 = 4;
    /// Multiply gradient + residual by the factor.
    pub const PRODUCT: u32 = 8;
    /// Leave in the status where gradient + residual is first not finite, and change nothing else.
    pub const SCAN: u32 = 16;
    /// Take the factors from what was all-reduced.
    pub const TAKE: u32 = 32;
    /// Make the factors' columns orthonormal.
    pub const ORTHONORMAL: u32 = 64;
    /// Draw columns that depend on earlier ones from the seed, and make the columns orthonormal again.
    pub const SEED: u32 = 128;
    /// Begin a step whose state is on the device: it starts from the last step's factors, no matrix is poisoned, and
    /// the workspace holds the count of steps.
    pub const START: u32 = 256;
    /// Where the state is on the device: mark that gradient + residual was formed, and nothing of it was sent yet.
    pub const FORMED: u32 = 512;
    /// End a step whose state is on the device: the step's factors become the state's, and the marks say what became of
    /// each tensor. The means of tensors that are not compressed become the output.
    pub const COMMIT: u32 = 1024;
    /// Write tensors that are not compressed to where they are sent from.
    pub const SEND: u32 = 2048;
    /// Form nothing where the status names an element that is not finite.
    pub const GUARDED: u32 = 4096;
}

/// The most blocks that share a matrix's factor while its columns are made orthonormal.
pub const LOW_RANK_SHARES: u32 = 64;

/// Rows of a factor of `entries` rows that one block takes while columns are made orthonormal, as a base-2 logarithm.
#[inline(always)]
pub const fn low_rank_share_log2(entries: u32) -> u32 {
    let mut log2 = THREADS.trailing_zeros();
    while entries > LOW_RANK_SHARES << log2 {
        log2 += 1;
    }
    log2
}

/// Blocks that share a factor of `entries` rows.
#[inline(always)]
pub const fn low_rank_shares(entries: u32) -> u32 {
    let log2 = low_rank_share_log2(entries);
    entries.div_ceil(1 << log2)
}

/// Words that a block leaves of the products of a factor's columns: squares of 4 x 4 products, of two words each.
#[inline(always)]
pub const fn low_rank_products(rank: u32) -> u32 {
    let fours = rank.div_ceil(4);
    fours * (fours + 1) / 2 * 32
}

/// Elements that one workgroup takes of a tensor that is not compressed.
pub const LOW_RANK_PLAIN: u32 = 2048;

/// Words of a matrix in the table that the host writes.
pub mod matrix {
    /// Words of a matrix.
    pub const WORDS: u32 = 16;
    /// The matrix's first element.
    pub const FIRST: u32 = 0;
    /// The matrix's rows.
    pub const ROWS: u32 = 1;
    /// The matrix's columns.
    pub const COLUMNS: u32 = 2;
    /// Where the matrix's left factor begins among all left factors, column by column and padded. The next word is the
    /// same for its right factor.
    pub const PADDED: u32 = 3;
    /// Where the matrix's left factor begins among all left factors as they are sent. The next word is the same for its
    /// right factor.
    pub const SENT: u32 = 5;
    /// Where the tiles' shares of the matrix's left factor begin, each padded as the factor is. The next word is the
    /// same for its right factor.
    pub const SHARES: u32 = 7;
    /// The first workgroup that sums shares of the matrix's left factor. The next word is the same for its right
    /// factor.
    pub const FIRST_GROUP: u32 = 9;
    /// The matrix's place among all tensors, by which its seeded columns are drawn.
    pub const TENSOR: u32 = 11;
    /// In PTX, the first block that works on the matrix's left factor while columns are made orthonormal. The next word
    /// is the same for its right factor.
    pub const FIRST_SHARE: u32 = 12;
}

/// Words that passes leave for one another about a matrix or tensor: its marks.
pub mod mark {
    /// Words of a matrix.
    pub const WORDS: u32 = 4;
    /// 1 where the last step sent L R^T of the matrix, which is yet to be taken off the residual; [`DROPPED`] where the
    /// residual counts as zero.
    pub const SENT: u32 = 0;
    /// Not 0 where a factor of the step under way could not be used.
    pub const POISONED: u32 = 1;
    /// Where the state is on the device: for how many steps more a poisoned tensor's residual is dropped, up to
    /// [`WARY`].
    pub const WARY_FOR: u32 = 2;
    /// Where the state is on the device: what became of the tensor. 0 before the first step, then one of `outcome`.
    pub const OUTCOME: u32 = 3;
    /// Value of `SENT`: nothing was sent of the matrix, and its residual counts as zero.
    pub const DROPPED: u32 = 2;
    /// `WARY_FOR` after a step in which the tensor was poisoned.
    pub const WARY: u32 = 2;
}

/// What became of a tensor in a step.
pub mod outcome {
    /// The tensor was sent.
    pub const SENT: u32 = 1;
    /// The tensor was poisoned, and its residual keeps the finite part of the gradient.
    pub const KEPT: u32 = 2;
    /// The tensor was poisoned, and its residual is dropped.
    pub const DROPPED: u32 = 3;
}

/// Argument of the PowerSGD kernels.
///
/// The workspace is the table, and after it the arrays that the fields point at. Every place in it is a number of
/// words. Factors are `f32`, column by column, each column padded with zeros.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct LowRankParams {
    /// Index of the first element that this launch's input, residual and output hold.
    pub first: u32,
    /// Elements that this launch's input, residual and output hold.
    pub bound: u32,
    /// The first tile of the launch. Gather kernel: its first workgroup. Factor kernel: its first matrix, in PTX its
    /// first block.
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
    /// Where the left factors L are, of which L R^T is taken off the residual, or written.
    pub left: u32,
    /// Where the right factors R are, of which L R^T is taken off the residual, or written.
    pub right: u32,
    /// Where the factors are by which gradient + residual is multiplied. Factor kernel: those that it works on.
    pub factor: u32,
    /// Where the tiles' shares of the product are. In PTX, factor kernels: where the blocks' products of columns are.
    pub shares: u32,
    /// Seed of the run.
    pub key: [u32; 2],
    /// Which step, low word first.
    pub step: [u32; 2],
    /// The tensor number of the seed, to which a matrix's place among all tensors is added.
    pub tensor: u32,
    /// Where the state is on the device: where the two words are that count its steps.
    pub steps: u32,
    /// Where the tensors that are not compressed wait to be sent.
    pub plain: u32,
    /// Where the tensors that are not compressed begin among the values that are sent.
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

/// Argument of the kernels that pack codes, and unpack them.
///
/// The packed codes are a byte per unit, the table, in whole words; then the words of the units, one after another. A
/// unit is 256 codes that are packed as Elias codes, and 1280 that are packed in base 3. Of places a unit is 16384
/// codes, the table has a word per unit, and there is a sum for each.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct EntropyParams {
    /// Units of packed codes.
    pub units: u32,
    /// Bits of a code of fixed width.
    pub bits: u32,
    /// Words of the table.
    pub table: u32,
    /// Sums of words, one for each 256 units: what the kernel of the offsets takes.
    pub sums: u32,
    /// Units of 256 codes of fixed width.
    pub fixed: u32,
}

/// `flags` of [`RandomParams`].
pub mod random_flags {
    /// Take from the residual, and leave there what is not sent; without it, take from the input.
    pub const TAKE: u32 = 1;
    /// Add to what the output holds; without it, overwrite.
    pub const ACCUMULATE: u32 = 2;
    /// Take nothing: add the input to the residual, at as many elements as there are entries, in their own order.
    pub const ADD: u32 = 4;
}

/// Argument of the kernels of entries that a seed draws.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct RandomParams {
    /// Elements of the tensor, 1 to 2^31.
    pub n: u32,
    /// Entries of this launch.
    pub entries: u32,
    /// The number of the launch's first entry.
    pub first: u32,
    /// Bits of the lower half of a number below `n`.
    pub low_bits: u32,
    /// Bits of the upper half.
    pub high_bits: u32,
    /// [`random_flags`].
    pub flags: u32,
    /// Bits of the factor, by which values are multiplied.
    pub factor: u32,
    /// Zero.
    pub reserved: u32,
    /// Keys of the rounds of the permutation.
    pub keys: [u32; 8],
}
