//! Settings whose decode has kernels of its own.

use crate::codecs::CodecId;
use crate::params::{DecodeParams, decode_flags};

/// What a decode does with the values of codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Use {
    /// Writes those of one payload.
    Write,
    /// Adds those of one payload, times the weight, to what the output holds.
    Add,
    /// Writes the sum of several payloads' values, each times the weight.
    Sum,
}

/// A setting whose decode has kernels of its own: every level of a width of 4 bits, and buckets of 64 elements and
/// more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecodePreset {
    /// QSGD or uniform quantization.
    pub codec: CodecId,
    /// What is done with the values.
    pub does: Use,
    /// Whether buckets have 64 or 128 elements.
    pub small: bool,
    /// Whether it takes many tensors of one buffer.
    pub segments: bool,
}

/// How many there are.
pub const COUNT: usize = 24;

/// Bits of their codes.
pub const BITS: u32 = 4;

impl DecodePreset {
    /// Every one.
    pub const ALL: [Self; COUNT] = {
        let one = Self { codec: CodecId::Qsgd, does: Use::Write, small: false, segments: false };
        let mut all = [one; COUNT];
        let mut at = 0;
        while at < COUNT {
            all[at] = Self {
                codec: if at < COUNT / 2 { CodecId::Qsgd } else { CodecId::Uniform },
                does: match at / 4 % 3 {
                    0 => Use::Write,
                    1 => Use::Add,
                    _ => Use::Sum,
                },
                small: at & 2 != 0,
                segments: at & 1 != 0,
            };
            at += 1;
        }
        all
    };

    /// The preset that a decode of one tensor, or of many, is of; none for other settings.
    pub fn of(codec: CodecId, p: &DecodeParams, segments: bool) -> Option<Self> {
        const ADD: u32 = decode_flags::WEIGHTED | decode_flags::ACCUMULATE;
        let does = match (p.flags, p.payloads) {
            (0, 1) => Use::Write,
            (ADD, 1) => Use::Add,
            (decode_flags::WEIGHTED, 1..) => Use::Sum,
            _ => return None,
        };
        let preset = Self { codec, does, small: p.bucket_log2 < 8, segments };
        let fits = p.bits == BITS && p.bucket_log2 >= 6 && p.levels == codec.max_levels(BITS);
        (fits && Self::ALL.contains(&preset)).then_some(preset)
    }

    /// Its place in the table of names.
    const fn index(self) -> usize {
        let codec = if matches!(self.codec, CodecId::Qsgd) { 0 } else { COUNT / 2 };
        let does = match self.does {
            Use::Write => 0,
            Use::Add => 4,
            Use::Sum => 8,
        };
        codec + does + if self.small { 2 } else { 0 } + if self.segments { 1 } else { 0 }
    }

    /// The name of its entry point.
    pub const fn name(self) -> &'static str {
        NAMES[self.index()]
    }
}

/// Hands the entry points to a macro, in the order of [`DecodePreset::ALL`]: for one tensor and for many, the formula,
/// what is done, and whether buckets are small.
macro_rules! decode_presets {
    ($then:ident) => {
        $then! {
            qsgd_fixed_write_4, qsgd_fixed_write_4_segments Qsgd Write false;
            qsgd_fixed_write_4_small, qsgd_fixed_write_4_small_segments Qsgd Write true;
            qsgd_fixed_add_4, qsgd_fixed_add_4_segments Qsgd Add false;
            qsgd_fixed_add_4_small, qsgd_fixed_add_4_small_segments Qsgd Add true;
            qsgd_fixed_sum_4, qsgd_fixed_sum_4_segments Qsgd Sum false;
            qsgd_fixed_sum_4_small, qsgd_fixed_sum_4_small_segments Qsgd Sum true;
            uniform_fixed_write_4, uniform_fixed_write_4_segments Uniform Write false;
            uniform_fixed_write_4_small, uniform_fixed_write_4_small_segments Uniform Write true;
            uniform_fixed_add_4, uniform_fixed_add_4_segments Uniform Add false;
            uniform_fixed_add_4_small, uniform_fixed_add_4_small_segments Uniform Add true;
            uniform_fixed_sum_4, uniform_fixed_sum_4_segments Uniform Sum false;
            uniform_fixed_sum_4_small, uniform_fixed_sum_4_small_segments Uniform Sum true;
        }
    };
}
#[cfg(any(target_arch = "nvptx64", feature = "rust-cuda"))]
pub(crate) use decode_presets;

macro_rules! names {
    ($($one:ident, $many:ident $codec:ident $does:ident $small:literal;)*) => {
        const NAMES: [&str; COUNT] = [$(stringify!($one), stringify!($many)),*];
    };
}
decode_presets!(names);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_places_agree() {
        for (place, preset) in DecodePreset::ALL.into_iter().enumerate() {
            assert_eq!(preset.index(), place);
            let has = |word: &str| preset.name().contains(word);
            assert!(has(if preset.codec == CodecId::Qsgd { "qsgd_" } else { "uniform_" }), "{}", preset.name());
            let does = match preset.does {
                Use::Write => "_write_",
                Use::Add => "_add_",
                Use::Sum => "_sum_",
            };
            assert!(has(does), "{}", preset.name());
            assert_eq!((has("_small"), has("_segments")), (preset.small, preset.segments), "{}", preset.name());
        }
    }

    #[test]
    fn only_what_its_kernel_does_is_a_preset() {
        let p = DecodeParams { bucket_log2: 9, bits: 4, levels: 7, payloads: 1, ..DecodeParams::default() };
        let of = |p| DecodePreset::of(CodecId::Qsgd, &p, false).map(|preset| (preset.does, preset.small));
        assert_eq!(of(p), Some((Use::Write, false)));
        let (add, sum) = (decode_flags::WEIGHTED | decode_flags::ACCUMULATE, decode_flags::WEIGHTED);
        assert_eq!(of(DecodeParams { flags: add, ..p }), Some((Use::Add, false)));
        assert_eq!(of(DecodeParams { flags: sum, payloads: 9, ..p }), Some((Use::Sum, false)));
        assert_eq!(of(DecodeParams { bucket_log2: 6, ..p }), Some((Use::Write, true)));
        for other in [
            DecodeParams { flags: add, payloads: 2, ..p },
            DecodeParams { flags: sum, payloads: 0, ..p },
            DecodeParams { payloads: 2, ..p },
            DecodeParams { bucket_log2: 5, ..p },
            DecodeParams { levels: 6, ..p },
            DecodeParams { bits: 8, ..p },
        ] {
            assert_eq!(of(other), None, "{other:?}");
        }
        assert_eq!(DecodePreset::of(CodecId::OneBit, &p, false), None);
    }
}
