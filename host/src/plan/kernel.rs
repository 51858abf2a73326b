//! The kernels, by what they do.

use crate::wire::CodecId;

/// A kernel, by what it does. Backends map it to a PTX entry point, a WGSL entry point or a CPU function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kernel {
    /// Writes zeros over what is bound of the status, the workspace and the output.
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
    /// Counts what is kept of each tile.
    TopKCount,
    /// Writes the kept entries.
    TopKEmit,
    /// Selects of segments that are a tile at most.
    TopKBlock,
    /// Puts the entries of a sparse payload in their places.
    Scatter,
    /// Takes factors that were all-reduced, and makes their columns orthonormal.
    PowerSgdFactor,
    /// Forms gradient + residual, and multiplies it by right factors.
    PowerSgdLeft,
    /// Forms gradient + residual, and multiplies its transpose by left factors.
    PowerSgdRight,
    /// Sums up what the tiles gave of a factor.
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
    /// Takes off a residual what was sent of it last.
    TopKSettle,
    /// What lies between the filter and writing the entries, in one launch: of devices whose [`Limits`](super::Limits) say that blocks
    /// may wait for one another. It counts in the workspace from where the sample's launches left it: alone, over any other words, its blocks
    /// may wait in vain, and then give up.
    TopKRest,
}

impl Kernel {
    /// Every kernel that is an entry point of its own: first those that are shaders too, and then those of CUDA alone.
    pub const ALL: [Self; 37] = [
        Self::FiniteScan,
        Self::Stats(CodecId::Qsgd),
        Self::Combine(CodecId::Qsgd),
        Self::Encode(CodecId::Qsgd),
        Self::Decode(CodecId::Qsgd),
        Self::Stats(CodecId::Uniform),
        Self::Combine(CodecId::Uniform),
        Self::Encode(CodecId::Uniform),
        Self::Decode(CodecId::Uniform),
        Self::FiniteScanSegments,
        Self::EncodeSegments(CodecId::Qsgd),
        Self::DecodeSegments(CodecId::Qsgd),
        Self::EncodeSegments(CodecId::Uniform),
        Self::DecodeSegments(CodecId::Uniform),
        Self::TopKSample,
        Self::TopKFilter,
        Self::TopKSketch,
        Self::TopKFilterAgain,
        Self::TopKHistogram,
        Self::TopKCount,
        Self::TopKEmit,
        Self::TopKBlock,
        Self::Scatter,
        Self::PowerSgdFactor,
        Self::PowerSgdLeft,
        Self::PowerSgdRight,
        Self::PowerSgdGather,
        Self::PowerSgdExpand,
        Self::PowerSgdPlain,
        Self::StatsSegments(CodecId::Qsgd),
        Self::CombineSegments(CodecId::Qsgd),
        Self::EncodeTensors(CodecId::Qsgd),
        Self::StatsSegments(CodecId::Uniform),
        Self::CombineSegments(CodecId::Uniform),
        Self::EncodeTensors(CodecId::Uniform),
        Self::TopKSettle,
        Self::TopKRest,
    ];

    /// The entry point's name in PTX and WGSL, by which the CPU backend goes too.
    pub const fn name(self) -> &'static str {
        use CodecId::{Qsgd, Uniform};
        match self {
            Self::Clear => "clear",
            Self::FiniteScan => "finite_scan",
            Self::Stats(Qsgd) => "qsgd_stats",
            Self::Combine(Qsgd) => "qsgd_combine",
            Self::Encode(Qsgd) => "qsgd_encode",
            Self::Decode(Qsgd) => "qsgd_decode",
            Self::Stats(Uniform) => "uniform_stats",
            Self::Combine(Uniform) => "uniform_combine",
            Self::Encode(Uniform) => "uniform_encode",
            Self::Decode(Uniform) => "uniform_decode",
            Self::FiniteScanSegments => "finite_scan_segments",
            Self::EncodeSegments(Qsgd) => "qsgd_encode_segments",
            Self::DecodeSegments(Qsgd) => "qsgd_decode_segments",
            Self::EncodeSegments(Uniform) => "uniform_encode_segments",
            Self::DecodeSegments(Uniform) => "uniform_decode_segments",
            Self::TopKSample => "topk_sample",
            Self::TopKFilter => "topk_filter",
            Self::TopKSketch => "topk_sketch",
            Self::TopKFilterAgain => "topk_filter_again",
            Self::TopKHistogram => "topk_histogram",
            Self::TopKCount => "topk_count",
            Self::TopKEmit => "topk_emit",
            Self::TopKBlock => "topk_block",
            Self::Scatter => "sparse_scatter",
            Self::PowerSgdFactor => "powersgd_factor",
            Self::PowerSgdLeft => "powersgd_left",
            Self::PowerSgdRight => "powersgd_right",
            Self::PowerSgdGather => "powersgd_gather",
            Self::PowerSgdExpand => "powersgd_expand",
            Self::PowerSgdPlain => "powersgd_plain",
            Self::StatsSegments(Qsgd) => "qsgd_stats_segments",
            Self::CombineSegments(Qsgd) => "qsgd_combine_segments",
            Self::EncodeTensors(Qsgd) => "qsgd_encode_tensors",
            Self::StatsSegments(Uniform) => "uniform_stats_segments",
            Self::CombineSegments(Uniform) => "uniform_combine_segments",
            Self::EncodeTensors(Uniform) => "uniform_encode_tensors",
            Self::TopKSettle => "topk_settle",
            Self::TopKRest => "topk_rest",
        }
    }
}
