//! The table of bucketed codecs. Names, tags, entry points, the CPU's dispatch and the lists of tests and tools are
//! made from it. Quantile buckets stand beside it: their codes need a sorted bucket, and their scalars are as many as
//! codes.

use crate::arith;
use crate::arith::quantizer::Quantizer;

/// The entry points of a codec, by their names in PTX and WGSL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entries {
    /// Statistics of spans of 8192 elements, for a tensor that is one bucket.
    pub stats: &'static str,
    /// Folds the statistics into one, and writes the wire's scalars.
    pub combine: &'static str,
    /// Encodes.
    pub encode: &'static str,
    /// Decodes.
    pub decode: &'static str,
    /// Encodes many tensors of one buffer.
    pub encode_segments: &'static str,
    /// Decodes onto many tensors of one buffer.
    pub decode_segments: &'static str,
    /// Statistics of spans of many tensors, each of them one bucket.
    pub stats_segments: &'static str,
    /// Folds those of each tensor into one, and writes the wire's scalars.
    pub combine_segments: &'static str,
    /// Encodes many tensors of one buffer, each of them one bucket.
    pub encode_tensors: &'static str,
}

/// Work that is done with the formula of a codec which is known at run time only.
pub trait Visitor {
    /// What the work gives.
    type Output;

    /// Does it.
    fn visit<Q: Quantizer>(self) -> Self::Output;
}

/// The tag of a sparse payload.
pub const SPARSE_TAG: u8 = 3;

/// Flags in a payload's header. A codec that does not have one refuses it.
pub mod wire_flags {
    /// The bucket's scale is its L2 norm; without it, its largest magnitude.
    pub const L2: u8 = 1;
    /// What is decoded is scaled to a contraction.
    pub const SCALED: u8 = 2;
}

/// The bound omega on E|C(x) - x|^2 / |x|^2 of a codec, by the elements B of a bucket and the levels L.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Variance {
    /// Of stochastic rounding, which is unbiased: min(linear B / L^2, root sqrt(B) / L).
    Stochastic {
        /// The factor of the first.
        linear: f64,
        /// The factor of the second.
        root: f64,
    },
    /// Of powers of two: 1/8, and for what is below the lowest level min(B 4^-L, sqrt(B) 2^(1 - L)).
    Powers,
    /// Of decades in equal parts. Between levels a and b, (x - a)(b - x) is at most (b - a)^2/(4ab) x^2, which is
    /// 0.9205 in the lowest decade; below that, where b is 10^-6 of the largest magnitude and a is zero, b^2/4 and b
    /// |x|.
    Decades,
    /// Of floating-point formats with a scale. Between numbers a and b above the lowest normal one, b = a (1 + u) at
    /// most with u a mantissa's last place, (x - a)(b - x) is at most u^2/(4 + 4u) x^2; below, where numbers are s
    /// apart, s^2/4 and s |x|.
    Formats,
    /// Of a contraction without a random draw, whose error is this part of |x|^2 at most: 1 - 1/B.
    Contraction,
    /// Of signs times |x|_2^2 / |x|_1, without a random draw: B |x|_2^2 / |x|_1^2 - 1, which is B - 1 at most.
    Signs,
    /// Of centroids c times |x|_2^2 / <x, c>, without a random draw: |c|_2^2 |x|_2^2 / <x, c>^2 - 1. Since larger
    /// magnitudes have larger centroids, B <x, c> is |x|_1 |c|_1 at least (Chebyshev), and of centroids between a and b
    /// B |c|_2^2 is |c|_1^2 (a + b)^2/(4ab) at most (Polya and Szego). So it is B (a + b)^2/(4ab) - 1 at most.
    Centroids,
}

/// Hands the table to a macro: a row per codec. Its `shaders` and `texts` are read by `gradwire-shaders`, which has the
/// files of WGSL and composes a module of them and of 32-bit maxima and 64-bit sums of a statistic, and by
/// `gradwire-ptx`, which has the texts that sm_80 and sm_90 use.
#[doc(hidden)]
#[macro_export]
macro_rules! bucketed_codecs {
    ($then:ident) => {
        $then! {
            /// QSGD: magnitudes as fractions of the bucket's norm, with signs.
            Qsgd {
                file: "qsgd",
                shaders: {
                    maxima: 1, sums: 1,
                    looks: "bucketed/two_looks.wgsl",
                    files: ["common/norm.wgsl", "codecs/qsgd.wgsl"],
                },
                texts: { sm_80: 80, sm_90: 90 },
                whole: true,
                formula: arith::qsgd::Qsgd,
                tag: 1,
                name: "QSGD",
                // Bits of a code, and the same in words.
                widths: [2, 3, 4, 5, 6, 7, 8, 16], "2 to 8, or 16,",
                // Bits of a code that are not its level.
                sign_bits: 1,
                flags: wire_flags::L2 | wire_flags::SCALED,
                // Of both norms: an element's variance is at most min(1/4, r) (N/L)^2, N the norm and r = |x| L/N.
                variance: Variance::Stochastic { linear: 0.25, root: 1.0 },
                entries: qsgd_stats, qsgd_combine, qsgd_encode, qsgd_decode, qsgd_encode_segments,
                    qsgd_decode_segments, qsgd_stats_segments, qsgd_combine_segments, qsgd_encode_tensors,
            }
            /// Uniform quantization between the bucket's minimum and maximum.
            Uniform {
                file: "uniform",
                shaders: {
                    maxima: 2, sums: 0,
                    looks: "bucketed/two_looks.wgsl",
                    files: ["bucketed/maxima_alone.wgsl", "codecs/uniform.wgsl"],
                },
                texts: { sm_80: 80, sm_90: 80 },
                whole: true,
                formula: arith::uniform::Uniform,
                tag: 2,
                name: "uniform",
                widths: [1, 2, 3, 4, 5, 6, 7, 8], "1 to 8",
                sign_bits: 0,
                flags: wire_flags::SCALED,
                // An element's variance is at most a quarter of ((max - min)/L)^2, and (max - min)^2 <= 2 |x|^2, since
                // the two are different elements wherever they differ.
                variance: Variance::Stochastic { linear: 0.5, root: f64::INFINITY },
                entries: uniform_stats, uniform_combine, uniform_encode, uniform_decode, uniform_encode_segments,
                    uniform_decode_segments, uniform_stats_segments, uniform_combine_segments, uniform_encode_tensors,
            }
            /// 1-bit SGD: the means of a bucket's elements on each side of zero.
            OneBit {
                file: "onebit",
                shaders: {
                    maxima: 2, sums: 3,
                    looks: "bucketed/two_looks.wgsl",
                    files: ["common/norm.wgsl", "bucketed/mean.wgsl", "codecs/onebit.wgsl"],
                },
                texts: { sm_80: 80, sm_90: 80 },
                whole: true,
                formula: arith::onebit::OneBit,
                tag: 4,
                name: "1-bit SGD",
                widths: [1], "1",
                sign_bits: 0,
                flags: 0,
                // The squares lose n m^2 on each side, n elements with mean m, which is at least 1/B of all squares.
                variance: Variance::Contraction,
                entries: onebit_stats, onebit_combine, onebit_encode, onebit_decode, onebit_encode_segments,
                    onebit_decode_segments, onebit_stats_segments, onebit_combine_segments, onebit_encode_tensors,
            }
            /// Signs with a scale: the mean of the bucket's magnitudes, or 1.
            Sign {
                file: "sign",
                shaders: {
                    maxima: 1, sums: 2,
                    looks: "bucketed/two_looks.wgsl",
                    files: ["common/norm.wgsl", "bucketed/mean.wgsl", "bucketed/signs.wgsl", "codecs/sign.wgsl"],
                },
                texts: { sm_80: 80, sm_90: 80 },
                whole: true,
                formula: arith::sign::Sign,
                tag: 6,
                name: "sign",
                widths: [1], "1",
                sign_bits: 0,
                flags: 0,
                // Of the mean m of n magnitudes, the squares lose n m^2, which is at least 1/B of all squares.
                variance: Variance::Contraction,
                entries: sign_stats, sign_combine, sign_encode, sign_decode, sign_encode_segments,
                    sign_decode_segments, sign_stats_segments, sign_combine_segments, sign_encode_tensors,
            }
            /// Ternary codes: a bucket's scale, zero, or minus the scale.
            Ternary {
                file: "ternary",
                shaders: {
                    maxima: 1, sums: 2,
                    looks: "bucketed/two_looks.wgsl",
                    files: ["common/norm.wgsl", "codecs/ternary.wgsl"],
                },
                texts: { sm_80: 80, sm_90: 80 },
                whole: true,
                formula: arith::ternary::Ternary,
                tag: 7,
                name: "ternary",
                widths: [2], "2",
                sign_bits: 1,
                flags: wire_flags::SCALED,
                // An element's variance is at most min(S/4, |x|) S, S the scale. The whole is S |x|_1 - |x|^2, which is
                // largest where all elements but one are (sqrt(B) - 1)/(B - 1) of that one.
                variance: Variance::Stochastic { linear: 0.25, root: 0.5 },
                entries: ternary_stats, ternary_combine, ternary_encode, ternary_decode, ternary_encode_segments,
                    ternary_decode_segments, ternary_stats_segments, ternary_combine_segments, ternary_encode_tensors,
            }
            /// Casts to small floating-point formats, with a scale of the bucket or without.
            Float {
                file: "float",
                shaders: {
                    maxima: 1, sums: 0,
                    looks: "bucketed/two_looks.wgsl",
                    files: ["bucketed/maxima_alone.wgsl", "codecs/float.wgsl"],
                },
                texts: { sm_80: 80, sm_90: 80 },
                whole: true,
                formula: arith::minifloat::Minifloat,
                tag: 8,
                name: "float",
                widths: [4, 8, 16], "4, 8 or 16",
                sign_bits: 1,
                flags: 0,
                variance: Variance::Formats,
                entries: float_stats, float_combine, float_encode, float_decode, float_encode_segments,
                    float_decode_segments, float_stats_segments, float_combine_segments, float_encode_tensors,
            }
            /// Dynamic trees: decades below the bucket's largest magnitude in equal parts, with signs.
            Tree {
                file: "tree",
                shaders: {
                    maxima: 1, sums: 0,
                    looks: "bucketed/two_looks.wgsl",
                    files: ["bucketed/maxima_alone.wgsl", "codecs/tree.wgsl"],
                },
                texts: { sm_80: 80, sm_90: 80 },
                whole: true,
                formula: arith::tree::Tree,
                tag: 10,
                name: "dynamic tree",
                widths: [8], "8",
                sign_bits: 1,
                flags: wire_flags::SCALED,
                variance: Variance::Decades,
                entries: tree_stats, tree_combine, tree_encode, tree_decode, tree_encode_segments,
                    tree_decode_segments, tree_stats_segments, tree_combine_segments, tree_encode_tensors,
            }
            /// EDEN: the centroids of a normal distribution that are nearest to a rotated bucket's elements, with the
            /// scale |y|_2^2 / <y, c>.
            Eden {
                file: "eden",
                shaders: {
                    maxima: 1, sums: 3,
                    looks: "bucketed/three_looks.wgsl",
                    files: ["common/norm.wgsl", "bucketed/mean.wgsl", "codecs/eden.wgsl"],
                },
                texts: { sm_80: 80, sm_90: 80 },
                // The codes of a tensor are not known when its spans are measured, and the scale is of codes.
                whole: false,
                formula: arith::eden::Eden,
                tag: 11,
                name: "EDEN",
                widths: [1, 2, 3, 4], "1 to 4",
                sign_bits: 0,
                flags: 0,
                variance: Variance::Centroids,
                entries: eden_stats, eden_combine, eden_encode, eden_decode, eden_encode_segments,
                    eden_decode_segments, eden_stats_segments, eden_combine_segments, eden_encode_tensors,
            }
            /// Natural compression and dithering: powers of two below the bucket's largest magnitude, with signs.
            Natural {
                file: "natural",
                shaders: {
                    maxima: 1, sums: 0,
                    looks: "bucketed/two_looks.wgsl",
                    files: ["bucketed/maxima_alone.wgsl", "codecs/natural.wgsl"],
                },
                texts: { sm_80: 80, sm_90: 80 },
                whole: true,
                formula: arith::natural::Natural,
                tag: 12,
                name: "natural",
                widths: [2, 3, 4, 5, 6, 7, 8], "2 to 8",
                sign_bits: 1,
                flags: wire_flags::SCALED,
                // Between powers of two a and 2a, (x - a)(2a - x) is at most x^2/8. Below the lowest level v it is at
                // most v^2/4 and |x| v, and v is at most 2^(2 - L) of the largest magnitude.
                variance: Variance::Powers,
                entries: natural_stats, natural_combine, natural_encode, natural_decode, natural_encode_segments,
                    natural_decode_segments, natural_stats_segments, natural_combine_segments, natural_encode_tensors,
            }
            /// DRIVE: signs with the scale |y|_2^2 / |y|_1, of buckets y that were rotated before.
            Drive {
                file: "drive",
                shaders: {
                    maxima: 1, sums: 2,
                    looks: "bucketed/two_looks.wgsl",
                    files: ["common/norm.wgsl", "bucketed/mean.wgsl", "bucketed/signs.wgsl", "codecs/drive.wgsl"],
                },
                texts: { sm_80: 80, sm_90: 80 },
                whole: true,
                formula: arith::drive::Drive,
                tag: 13,
                name: "DRIVE",
                widths: [1], "1",
                sign_bits: 0,
                flags: 0,
                variance: Variance::Signs,
                entries: drive_stats, drive_combine, drive_encode, drive_decode, drive_encode_segments,
                    drive_decode_segments, drive_stats_segments, drive_combine_segments, drive_encode_tensors,
            }
        }
    };
}

macro_rules! codecs {
    ($($(#[$doc:meta])* $codec:ident {
        file: $file:literal,
        shaders: $shaders:tt,
        texts: $texts:tt,
        whole: $whole:literal,
        formula: $formula:ty,
        tag: $tag:literal,
        name: $name:literal,
        widths: [$($width:literal),+], $widths:literal,
        sign_bits: $sign:literal,
        flags: $flags:expr,
        variance: $variance:expr,
        entries: $stats:ident, $combine:ident, $encode:ident, $decode:ident, $encode_segments:ident,
            $decode_segments:ident, $stats_segments:ident, $combine_segments:ident, $encode_tensors:ident,
    })+) => {
        /// Which codec made a payload.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum CodecId {
            $($(#[$doc])* $codec,)+
            /// SketchML's quantile buckets: the quantiles of a bucket, each with the mean of its elements.
            Quantile,
        }

        impl CodecId {
            /// All of them, in the order of their tags.
            pub const ALL: &'static [Self] = &[$(Self::$codec,)+ Self::Quantile];

            /// The tags on the wire and whose they are, for a message.
            pub const TAGS: &'static str = concat!($($tag, " (", $name, "), ",)+ "14 (quantile), or 3 (sparse)");

            /// The codec's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$codec => $name,)+
                    Self::Quantile => "quantile",
                }
            }

            /// The tag on the wire.
            pub const fn tag(self) -> u8 {
                match self {
                    $(Self::$codec => $tag,)+
                    Self::Quantile => 14,
                }
            }

            /// The codec with this tag on the wire.
            pub const fn of_tag(tag: u8) -> Option<Self> {
                match tag {
                    $($tag => Some(Self::$codec),)+
                    14 => Some(Self::Quantile),
                    _ => None,
                }
            }

            /// The widths of a code in bits that the codec packs, smallest first.
            pub const fn widths(self) -> &'static [u32] {
                match self {
                    $(Self::$codec => &[$($width),+],)+
                    Self::Quantile => &[2, 3, 4, 5, 6, 7, 8],
                }
            }

            /// The same for a message.
            pub const fn allowed_widths(self) -> &'static str {
                match self {
                    $(Self::$codec => $widths,)+
                    Self::Quantile => "2 to 8",
                }
            }

            /// The flags that a header may have.
            pub const fn wire_flags(self) -> u8 {
                match self {
                    $(Self::$codec => $flags,)+
                    Self::Quantile => 0,
                }
            }

            /// The bound on the codec's squared error.
            pub const fn variance(self) -> Variance {
                match self {
                    $(Self::$codec => $variance,)+
                    // No quantile has elements on both sides of zero, so each loses what a side of 1-bit SGD loses.
                    Self::Quantile => Variance::Contraction,
                }
            }

            /// Whether a tensor may be one bucket, whatever its length.
            pub const fn has_whole_tensors(self) -> bool {
                match self {
                    $(Self::$codec => $whole,)+
                    Self::Quantile => false,
                }
            }

            /// Bits of a code that are a sign.
            const fn sign_bits(self) -> u32 {
                match self {
                    $(Self::$codec => $sign,)+
                    Self::Quantile => 0,
                }
            }

            /// Scalars that each bucket puts on the wire, with codes of this width: the norm, minimum and maximum, two
            /// means, or the mean of each quantile.
            pub const fn scalars(self, bits: u32) -> usize {
                match self {
                    $(Self::$codec => <$formula as Quantizer>::SCALARS,)+
                    Self::Quantile => 1 << bits,
                }
            }

            /// Words of a partial statistic, of a span of a tensor that is one bucket; 0 where no tensor may be one.
            pub const fn partial_words(self) -> u32 {
                let bytes = match self {
                    $(Self::$codec if $whole => size_of::<<$formula as Quantizer>::Partial>(),)+
                    _ => 0,
                };
                bytes as u32 / 4
            }

            /// What the names of its entry points and of its files begin with.
            pub const fn file(self) -> &'static str {
                match self {
                    $(Self::$codec => $file,)+
                    Self::Quantile => "quantile",
                }
            }

            /// The entry points.
            pub const fn entries(self) -> &'static Entries {
                match self {
                    $(Self::$codec => &Entries {
                        stats: stringify!($stats),
                        combine: stringify!($combine),
                        encode: stringify!($encode),
                        decode: stringify!($decode),
                        encode_segments: stringify!($encode_segments),
                        decode_segments: stringify!($decode_segments),
                        stats_segments: stringify!($stats_segments),
                        combine_segments: stringify!($combine_segments),
                        encode_tensors: stringify!($encode_tensors),
                    },)+
                    Self::Quantile => &QUANTILE,
                }
            }

            /// Does work with the codec's formula; none where an element's code needs more than a statistic of its
            /// bucket.
            #[inline(always)]
            pub fn visit<V: Visitor>(self, visitor: V) -> Option<V::Output> {
                match self {
                    $(Self::$codec => Some(visitor.visit::<$formula>()),)+
                    Self::Quantile => None,
                }
            }
        }
    };
}
bucketed_codecs!(codecs);

/// The entry points of quantile buckets. Those for tensors that are one bucket do not exist
/// ([`CodecId::has_whole_tensors`]).
const QUANTILE: Entries = Entries {
    stats: "quantile_stats",
    combine: "quantile_combine",
    encode: "quantile_encode",
    decode: "quantile_decode",
    encode_segments: "quantile_encode_segments",
    decode_segments: "quantile_decode_segments",
    stats_segments: "quantile_stats_segments",
    combine_segments: "quantile_combine_segments",
    encode_tensors: "quantile_encode_tensors",
};

impl CodecId {
    /// The base-2 logarithms of the smallest bucket and of the largest.
    pub const fn bucket_log2s(self) -> [u8; 2] {
        match self {
            Self::Quantile => [8, 12],
            _ => [5, 13],
        }
    }

    /// Whether the codec packs codes of this width.
    pub const fn packs(self, bits: u32) -> bool {
        let widths = self.widths();
        let mut at = 0;
        while at < widths.len() {
            if widths[at] == bits {
                return true;
            }
            at += 1;
        }
        false
    }

    /// Whether its codes can be packed, in some format at least: a level, small ones being frequent, below a sign.
    pub const fn is_packable(self) -> bool {
        matches!(self, Self::Qsgd | Self::Ternary | Self::Float)
    }

    /// Whether codes of so many levels can be packed: of floats, those that are integers.
    pub const fn packs_levels(self, levels: u32) -> bool {
        match self {
            Self::Float => arith::minifloat::Format::of(levels).is_integer(),
            _ => self.is_packable(),
        }
    }

    /// Whether codes of this width may have so many levels: all of them where levels lie in decades, or are centroids
    /// or quantiles, and a format's own.
    pub const fn has_levels(self, bits: u32, levels: u32) -> bool {
        match self.variance() {
            _ if matches!(self, Self::Quantile) => levels == self.max_levels(bits),
            Variance::Decades | Variance::Centroids => levels == self.max_levels(bits),
            Variance::Formats => {
                let format = arith::minifloat::Format::of(levels);
                format.bits == bits && format.levels == levels
            }
            _ => 1 <= levels && levels <= self.max_levels(bits),
        }
    }

    /// The most levels that codes of this width hold; none of a width that the codec does not pack.
    pub const fn max_levels(self, bits: u32) -> u32 {
        if let (Self::Quantile, true) = (self, self.packs(bits)) {
            return 1 << bits;
        }
        if let (Variance::Formats, true) = (self.variance(), self.packs(bits)) {
            return match bits {
                4 => 7,
                8 => 127,
                _ => 32_767,
            };
        }
        if self.packs(bits) { (1 << (bits - self.sign_bits())) - 1 } else { 0 }
    }
}
