//! The kernels, by what they do.

use gradwire_kernels::presets::Preset;
use gradwire_kernels::presets::decode::DecodePreset;

use crate::wire::CodecId;

/// A kernel, by what it does. Backends map it to a PTX entry point, a WGSL entry point or a CPU function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kernel {
    /// Writes zeros over the bound parts of the status, the workspace and the output.
    Clear,
    /// Leaves in the status word where the first element is that is not finite.
    FiniteScan,
    /// Statistics of spans of 8192 elements, for a tensor that is one bucket.
    Stats(CodecId),
    /// Folds the statistics into one, and writes the wire's scalars.
    Combine(CodecId),
    /// Encodes; with feedback, also leaves the new residual.
    Encode(CodecId),
    /// Decodes one payload or the sum of several, over or onto the output.
    Decode(CodecId),
    /// As the scan, over many tensors of one buffer.
    FiniteScanSegments,
    /// Encodes many tensors of one buffer.
    EncodeSegments(CodecId),
    /// Decodes onto many tensors of one buffer.
    DecodeSegments(CodecId),
    /// Tells from a sample between which two keys the last kept one is likely to lie.
    TopKSample,
    /// Stores what may be kept: the one read of the gradient.
    TopKFilter,
    /// Sorts short runs, where the sample was wrong.
    TopKSketch,
    /// Stores anew what may be kept, by what the sorted runs tell.
    TopKFilterAgain,
    /// Counts the keys of a range.
    TopKHistogram,
    /// Counts the kept entries of each tile.
    TopKCount,
    /// Writes the kept entries.
    TopKEmit,
    /// Selects of segments that are a tile at most.
    TopKBlock,
    /// Puts the entries of a sparse payload in their places.
    Scatter,
    /// Adds a gradient to a momentum.
    Momentum,
    /// Rotates blocks, or rotates them back.
    Rotate,
    /// Transforms blocks by cosines, or transforms them back.
    Dct,
    /// Puts tiles of a matrix one after another, or puts them back.
    Tiles,
    /// Counts the signs of payloads.
    Vote,
    /// Takes the entries that a seed draws.
    RandomGather,
    /// Puts entries in the places that a seed draws.
    RandomScatter,
    /// Makes the columns of factors orthonormal. As a shader, it first takes them from the all-reduced values.
    PowerSgdFactor,
    /// Forms gradient + residual, and multiplies it by right factors.
    PowerSgdLeft,
    /// Forms gradient + residual, and multiplies its transpose by left factors.
    PowerSgdRight,
    /// Sums the tiles' parts of a factor.
    PowerSgdGather,
    /// Writes the product of two factors.
    PowerSgdExpand,
    /// Forms, sends or takes tensors that are not compressed.
    PowerSgdPlain,
    /// Statistics of spans of many tensors, each of them one bucket.
    StatsSegments(CodecId),
    /// Folds those of each tensor into one, and writes the wire's scalars.
    CombineSegments(CodecId),
    /// Encodes many tensors of one buffer, each of them one bucket.
    EncodeTensors(CodecId),
    /// Subtracts the last sent values from a residual.
    TopKSettle,
    /// Measures the Elias codes of each unit of 256 codes.
    EliasMeasure,
    /// Sums up the words that a table of packed codes names.
    EntropySums,
    /// Turns sums of words into where they begin.
    EntropyOffsets,
    /// Writes the Elias codes of measured codes.
    EliasWrite,
    /// Reads Elias codes.
    EliasRead,
    /// Measures the Elias delta codes of each unit of 256 codes.
    DeltaMeasure,
    /// Writes the Elias delta codes of measured codes.
    DeltaWrite,
    /// Reads Elias delta codes.
    DeltaRead,
    /// Measures the codes in base 3 of each unit of 1280 codes.
    Base3Measure,
    /// Writes measured codes in base 3.
    Base3Write,
    /// Reads codes in base 3.
    Base3Read,
    /// Measures places and levels of each unit of 16384 codes.
    PlacesMeasure,
    /// Finds the words of each unit of places and levels from a table.
    PlacesSums,
    /// Writes places and levels of measured codes.
    PlacesWrite,
    /// Reads places and levels.
    PlacesRead,
    /// What lies between the filter and writing the entries, in one launch: of devices whose [`Limits`](super::Limits)
    /// say that blocks may wait for one another. It counts in the workspace from where the sample's launches left it:
    /// alone, over any other words, its blocks may wait in vain, and then give up.
    TopKRest,
    /// Takes factors that were all-reduced, and multiplies their columns with one another: of devices whose
    /// [`Limits`](super::Limits) say that blocks share a factor.
    PowerSgdProducts,
    /// Takes a step back if it found a number that is not finite: of exchanges that are queued on a CUDA stream.
    Restore,
    /// Encodes, for a setting that the compiler knows: what CUDA launches in place of [`Kernel::Encode`] and
    /// [`Kernel::EncodeSegments`]. No plan names it.
    Fixed(Preset),
    /// Decodes, for a setting that the compiler knows: what CUDA launches in place of [`Kernel::Decode`] and
    /// [`Kernel::DecodeSegments`]. No plan names it.
    FixedDecode(DecodePreset),
}

/// Kernels that are shaders too, beside those of each codec.
const SHARED: [Kernel; 40] = [
    Kernel::FiniteScan,
    Kernel::FiniteScanSegments,
    Kernel::TopKSample,
    Kernel::TopKFilter,
    Kernel::TopKSketch,
    Kernel::TopKFilterAgain,
    Kernel::TopKHistogram,
    Kernel::TopKCount,
    Kernel::TopKEmit,
    Kernel::TopKBlock,
    Kernel::Scatter,
    Kernel::Momentum,
    Kernel::Rotate,
    Kernel::Dct,
    Kernel::Tiles,
    Kernel::Vote,
    Kernel::RandomGather,
    Kernel::RandomScatter,
    Kernel::PowerSgdFactor,
    Kernel::PowerSgdLeft,
    Kernel::PowerSgdRight,
    Kernel::PowerSgdGather,
    Kernel::PowerSgdExpand,
    Kernel::PowerSgdPlain,
    Kernel::TopKSettle,
    Kernel::EliasMeasure,
    Kernel::EntropySums,
    Kernel::EntropyOffsets,
    Kernel::EliasWrite,
    Kernel::EliasRead,
    Kernel::DeltaMeasure,
    Kernel::DeltaWrite,
    Kernel::DeltaRead,
    Kernel::Base3Measure,
    Kernel::Base3Write,
    Kernel::Base3Read,
    Kernel::PlacesMeasure,
    Kernel::PlacesSums,
    Kernel::PlacesWrite,
    Kernel::PlacesRead,
];

/// Kernels of CUDA alone.
const OF_CUDA: [Kernel; 3] = [Kernel::TopKRest, Kernel::PowerSgdProducts, Kernel::Restore];

/// Kernels of a bucketed codec.
const fn of_codec(codec: CodecId) -> [Kernel; 9] {
    [
        Kernel::Stats(codec),
        Kernel::Combine(codec),
        Kernel::Encode(codec),
        Kernel::Decode(codec),
        Kernel::EncodeSegments(codec),
        Kernel::DecodeSegments(codec),
        Kernel::StatsSegments(codec),
        Kernel::CombineSegments(codec),
        Kernel::EncodeTensors(codec),
    ]
}

const COUNT: usize = SHARED.len() + of_codecs() + OF_CUDA.len() + Preset::ALL.len() + DecodePreset::ALL.len();

/// Kernels of all bucketed codecs.
const fn of_codecs() -> usize {
    let (mut count, mut codec) = (0, 0);
    while codec < CodecId::ALL.len() {
        count += if CodecId::ALL[codec].has_whole_tensors() { 9 } else { 4 };
        codec += 1;
    }
    count
}

const fn all() -> [Kernel; COUNT] {
    let mut all = [Kernel::TopKRest; COUNT];
    let mut at = 0;
    while at < SHARED.len() {
        all[at] = SHARED[at];
        at += 1;
    }
    let mut codec = 0;
    while codec < CodecId::ALL.len() {
        let kernels = of_codec(CodecId::ALL[codec]);
        let mut k = 0;
        while k < kernels.len() {
            if CodecId::ALL[codec].has_whole_tensors() || !kernels[k].is_of_whole_tensors() {
                all[at] = kernels[k];
                at += 1;
            }
            k += 1;
        }
        codec += 1;
    }
    let mut k = 0;
    while k < OF_CUDA.len() {
        all[at] = OF_CUDA[k];
        at += 1;
        k += 1;
    }
    let mut k = 0;
    while k < Preset::ALL.len() {
        all[at] = Kernel::Fixed(Preset::ALL[k]);
        at += 1;
        k += 1;
    }
    let mut k = 0;
    while k < DecodePreset::ALL.len() {
        all[at] = Kernel::FixedDecode(DecodePreset::ALL[k]);
        at += 1;
        k += 1;
    }
    all
}

impl Kernel {
    /// Every kernel that is an entry point of its own: first those that are shaders too, and then those of CUDA alone.
    pub const ALL: [Self; COUNT] = all();

    /// Whether it is for tensors that are one bucket.
    const fn is_of_whole_tensors(self) -> bool {
        matches!(
            self,
            Self::Stats(_)
                | Self::Combine(_)
                | Self::StatsSegments(_)
                | Self::CombineSegments(_)
                | Self::EncodeTensors(_)
        )
    }

    /// The entry point's name in PTX and WGSL, by which the CPU backend goes too.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::FiniteScan => "finite_scan",
            Self::Stats(codec) => codec.entries().stats,
            Self::Combine(codec) => codec.entries().combine,
            Self::Encode(codec) => codec.entries().encode,
            Self::Decode(codec) => codec.entries().decode,
            Self::FiniteScanSegments => "finite_scan_segments",
            Self::EncodeSegments(codec) => codec.entries().encode_segments,
            Self::DecodeSegments(codec) => codec.entries().decode_segments,
            Self::TopKSample => "topk_sample",
            Self::TopKFilter => "topk_filter",
            Self::TopKSketch => "topk_sketch",
            Self::TopKFilterAgain => "topk_filter_again",
            Self::TopKHistogram => "topk_histogram",
            Self::TopKCount => "topk_count",
            Self::TopKEmit => "topk_emit",
            Self::TopKBlock => "topk_block",
            Self::Scatter => "sparse_scatter",
            Self::Momentum => "memory_momentum",
            Self::Restore => "memory_restore",
            Self::Rotate => "rotate_blocks",
            Self::Dct => "dct_blocks",
            Self::Tiles => "dct_tiles",
            Self::Vote => "sign_vote",
            Self::RandomGather => "random_gather",
            Self::RandomScatter => "random_scatter",
            Self::PowerSgdFactor => "powersgd_factor",
            Self::PowerSgdProducts => "powersgd_products",
            Self::PowerSgdLeft => "powersgd_left",
            Self::PowerSgdRight => "powersgd_right",
            Self::PowerSgdGather => "powersgd_gather",
            Self::PowerSgdExpand => "powersgd_expand",
            Self::PowerSgdPlain => "powersgd_plain",
            Self::StatsSegments(codec) => codec.entries().stats_segments,
            Self::CombineSegments(codec) => codec.entries().combine_segments,
            Self::EncodeTensors(codec) => codec.entries().encode_tensors,
            Self::TopKSettle => "topk_settle",
            Self::EliasMeasure => "elias_measure",
            Self::EntropySums => "entropy_sums",
            Self::EntropyOffsets => "entropy_offsets",
            Self::EliasWrite => "elias_write",
            Self::EliasRead => "elias_read",
            Self::DeltaMeasure => "elias_delta_measure",
            Self::DeltaWrite => "elias_delta_write",
            Self::DeltaRead => "elias_delta_read",
            Self::Base3Measure => "base3_measure",
            Self::Base3Write => "base3_write",
            Self::Base3Read => "base3_read",
            Self::PlacesMeasure => "entropy_places_measure",
            Self::PlacesSums => "entropy_places_sums",
            Self::PlacesWrite => "entropy_places_write",
            Self::PlacesRead => "entropy_places_read",
            Self::TopKRest => "topk_rest",
            Self::Fixed(preset) => preset.name(),
            Self::FixedDecode(preset) => preset.name(),
        }
    }
}
