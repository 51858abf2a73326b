//! What the tests know of each bucketed codec: a file per codec, and a line in the list below. Settings, oracle,
//! hostile bytes, theorems and golden vectors are made from it.

pub use gradwire::Quantizer;
use gradwire::{CodecId, Device};

use crate::cases::Case;
use crate::conformance::Outcome;
use crate::oracle::{Encoded, Setting};
use crate::vectors::Spec;

/// A formula of a codec, which may have several. None of it shares code with the product but [`Formula::product`].
pub trait Formula: Sync {
    /// The codec, and the variant of it.
    fn name(&self) -> &'static str;

    /// Norm and rounding, as the golden vectors name them.
    fn words(&self) -> [Option<&'static str>; 2];

    /// What bounds a bucket's levels, and how values are rounded, as results of measurements have them.
    fn terms(&self) -> [&'static str; 2];

    /// The product's codec for a setting.
    fn product(&self, case: &Case) -> Quantizer;

    /// What `docs/wire.md` says of the codec's payloads.
    fn page(&self) -> &'static Page;

    /// The flag that payloads of this formula have on the wire.
    fn flag(&self) -> u8 {
        0
    }

    /// Scalars of a bucket, with codes of this width.
    fn scalars(&self, bits: u32) -> usize {
        self.page().scalars(bits)
    }

    /// Levels where a case names the width alone.
    fn usual_levels(&self, bits: u32) -> u32 {
        CodecId::of_tag(self.page().tag).map_or(0, |codec| codec.max_levels(bits))
    }

    /// Whether values are rounded to the nearest level, without a draw.
    fn is_nearest(&self) -> bool {
        false
    }

    /// The bound on the variance factor for a bucket of `b` elements, from the formulas of the codec's documentation.
    fn omega(&self, b: f64, levels: f64) -> f64;

    /// How much of a gradient the contraction takes off its square at least, in expectation: what feedback's lemma asks
    /// for.
    fn delta(&self, omega: f64) -> f64 {
        1.0 / (1.0 + omega)
    }

    /// What the levels of a bucket span, and where they begin; `None` where magnitudes are quantized, with a sign.
    fn span(&self, bucket: &[f64]) -> (f64, Option<f64>);

    /// A level's value in a bucket that has the highest and zero among its values.
    fn level(&self, level: u32, _levels: u32) -> f32 {
        level as f32 * 0.125
    }

    /// The largest distance of two levels in a bucket of this span.
    fn widest(&self, span: f64, levels: u32) -> f64 {
        span / f64::from(levels)
    }

    /// The distance of the two levels around each element of a bucket, and the element's place in such distances, whose
    /// fraction is the part of the way from the lower level to the upper.
    fn positions(&self, levels: u32, bucket: &[f64]) -> Vec<(f64, f64)> {
        let (scale, base) = self.span(bucket);
        let step = scale / f64::from(levels);
        bucket.iter().map(|v| (step, base.map_or(v.abs(), |low| v - low) / step)).collect()
    }

    /// Encodes a bucket of finite values, the first of which is element `first` of the tensor.
    fn encode(&self, s: &Setting, bucket: &[f32], first: usize, out: &mut Encoded);

    /// Decodes an element of a bucket with these scalars.
    fn value(&self, s: &Setting, scalars: &[f32], code: u32) -> f32;
}

/// What `docs/wire.md` says of a codec's payloads, for a reader that shares no code with the oracle either.
#[derive(Debug)]
pub struct Page {
    /// Byte 5.
    pub tag: u8,
    /// Widths of a code.
    pub widths: &'static [u8],
    /// The widths with the levels of each, where not all are allowed that a width holds.
    pub levels: &'static [(u8, u16)],
    /// Bits of a code that are not its level.
    pub sign_bits: u8,
    /// Flags that may be set.
    pub flags: u8,
    /// Scalars of a bucket; 0 for one per code.
    pub scalars: usize,
    /// What byte 7 may be.
    pub buckets: &'static [u8],
    /// Decodes a code, given the scalars, the levels and the width.
    pub decode: fn(&[f32], f32, u32, u8) -> f32,
}

/// What byte 7 may be of a codec whose buckets are of any size.
pub const BUCKETS: &[u8] = &[5, 6, 7, 8, 9, 10, 11, 12, 13, 255];

impl Page {
    /// Scalars of a bucket, with codes of this width.
    pub fn scalars(&self, bits: u32) -> usize {
        if self.scalars == 0 { 1 << (bits % 32) } else { self.scalars }
    }

    /// Whether buckets may have so many elements; `None` is the whole tensor.
    pub fn has_bucket(&self, elements: Option<usize>) -> bool {
        self.buckets.contains(&elements.map_or(255, |elements| elements.trailing_zeros() as u8))
    }
}

/// Who hears what came of a check.
pub type Note<'n> = dyn FnMut(&'static str, Outcome) + 'n;

/// What the tests know of a codec.
#[derive(Debug)]
pub struct Tests {
    /// Which one.
    pub codec: CodecId,
    /// As the page has it.
    pub page: &'static Page,
    /// Settings that the suite goes through: every width, every bucket, whole tensors, contractions, presets.
    pub settings: fn() -> Vec<Case>,
    /// Of which settings unbiasedness and variance are tested: none of a codec that is biased.
    pub stochastic: &'static [Case],
    /// Settings that are timed, the published ones and the widths between them; and whether a report on a device times
    /// each too.
    pub timed: fn() -> Vec<(Case, bool)>,
    /// Which golden vectors there are.
    pub(crate) vectors: fn() -> Vec<Spec>,
    /// The committed ones.
    pub committed: &'static str,
    /// Theorems that are this codec's own: on a device, of a gradient, with who hears of each.
    pub theorems: fn(&Device, &[f32], &mut Note<'_>),
    /// Settings of which is tested that the errors of workers are independent.
    pub independent: &'static [Case],
    /// Settings whose error feedback is tested beside the stochastic ones.
    pub feedback: &'static [Case],
}

/// The list. Each line is a file, the product's codec, and the formulas with the constant that has each.
macro_rules! codecs {
    ($($file:ident: $codec:ident [$($kind:ident = $formula:ident),+],)+) => {
        $(mod $file;)+

        /// The codecs, in the order of their tags.
        pub const CODECS: &[&Tests] = &[$(&$file::TESTS),+];

        /// Which formula.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "a codec's file says what its formulas are")]
        pub enum Kind {
            $($($kind,)+)+
        }

        impl Kind {
            /// Every formula, beside its codec's others.
            pub const ALL: [Self; [$($(stringify!($kind),)+)+].len()] = [$($(Self::$kind,)+)+];

            /// What the tests know of it.
            pub fn formula(self) -> &'static dyn Formula {
                match self {
                    $($(Self::$kind => &$file::$formula,)+)+
                }
            }

            /// The codec that it is of.
            pub fn codec(self) -> CodecId {
                match self {
                    $($(Self::$kind => CodecId::$codec,)+)+
                }
            }
        }
    };
}

codecs! {
    qsgd: Qsgd [QsgdMax = MAX, QsgdL2 = L2],
    uniform: Uniform [Uniform = STOCHASTIC, UniformNearest = NEAREST],
    onebit: OneBit [OneBit = MEANS],
    sign: Sign [Sign = SCALED, SignUnit = UNIT],
    ternary: Ternary [Ternary = STOCHASTIC, TernaryClipped = CLIPPED, TernaryNearest = NEAREST],
    float: Float [
        Float = PLAIN,
        FloatNearest = NEAREST,
        FloatScaled = SCALED,
        FloatScaledNearest = SCALED_NEAREST,
        FloatBounded = BOUNDED
    ],
    tree: Tree [Tree = NEAREST, TreeStochastic = STOCHASTIC],
    eden: Eden [Eden = CENTROIDS],
    natural: Natural [Natural = POWERS],
    drive: Drive [Drive = SIGNS],
    quantile: Quantile [Quantile = MEANS],
}

impl Kind {
    /// The codec, and the variant of it.
    pub fn name(self) -> &'static str {
        self.formula().name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_codec_of_the_product_is_in_the_list_with_what_the_page_says() {
        let codecs: Vec<_> = CODECS.iter().map(|tests| tests.codec).collect();
        assert_eq!(codecs, CodecId::ALL);
        for tests in CODECS {
            let widths: Vec<u32> = tests.page.widths.iter().map(|bits| (*bits).into()).collect();
            assert_eq!(widths, tests.codec.widths());
            assert_eq!(tests.page.tag, tests.codec.tag());
            for bits in widths {
                assert_eq!(tests.page.scalars(bits), tests.codec.scalars(bits));
            }
            assert_eq!(tests.page.flags, tests.codec.wire_flags());
        }
    }
}
