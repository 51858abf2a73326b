//! Settings that have kernels of their own, in which the compiler knows what is fixed.

use crate::arith::round::fraction_bits;
use crate::codecs::CodecId;
use crate::params::{EncodeParams, dtype};

pub mod decode;

/// A setting whose encode has kernels of its own: every level of a width of 4 or 8 bits, f32 or bf16, draws of 16 bits,
/// the largest magnitude as QSGD's norm, no feedback, and buckets of 32 to 1024 elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Preset {
    /// QSGD or uniform quantization.
    pub codec: CodecId,
    /// [`dtype`] of the gradient.
    pub dtype: u32,
    /// Bits of a code.
    pub bits: u32,
    /// Whether buckets have fewer than 256 elements.
    pub small: bool,
    /// Whether it takes many tensors of one buffer.
    pub segments: bool,
}

/// How many there are.
pub const COUNT: usize = 32;

impl Preset {
    /// Every one.
    pub const ALL: [Self; COUNT] = {
        let one = Self { codec: CodecId::Qsgd, dtype: dtype::F32, bits: 4, small: false, segments: false };
        let mut all = [one; COUNT];
        let mut at = 0;
        while at < COUNT {
            all[at] = Self {
                codec: if at & 16 == 0 { CodecId::Qsgd } else { CodecId::Uniform },
                dtype: if at & 8 == 0 { dtype::F32 } else { dtype::BF16 },
                bits: if at & 4 == 0 { 4 } else { 8 },
                small: at & 2 != 0,
                segments: at & 1 != 0,
            };
            at += 1;
        }
        all
    };

    /// The preset that an encode of one tensor, or of many, is of; none for other settings.
    pub fn of(codec: CodecId, p: &EncodeParams, segments: bool) -> Option<Self> {
        let preset = Self { codec, dtype: p.dtype, bits: p.bits, small: p.bucket_log2 < 8, segments };
        let levels = codec.max_levels(p.bits);
        let fits = p.flags == 0 && p.bucket_log2 <= 10 && p.levels == levels && p.fraction == fraction_bits(levels);
        (fits && Self::ALL.contains(&preset)).then_some(preset)
    }

    /// Its place in the table of names.
    const fn index(self) -> usize {
        let mut at = 0;
        if !matches!(self.codec, CodecId::Qsgd) {
            at += 16;
        }
        if self.dtype != dtype::F32 {
            at += 8;
        }
        if self.bits != 4 {
            at += 4;
        }
        if self.small {
            at += 2;
        }
        if self.segments {
            at += 1;
        }
        at
    }

    /// The name of its entry point.
    pub const fn name(self) -> &'static str {
        NAMES[self.index()]
    }
}

/// Hands the entry points to a macro, in the order of [`Preset::ALL`]: name, formula, type, bits, whether buckets are
/// small, whether there are many tensors.
macro_rules! presets {
    ($then:ident) => {
        $then! {
            qsgd_fixed_f32_4 Qsgd F32 4 false false;
            qsgd_fixed_f32_4_segments Qsgd F32 4 false true;
            qsgd_fixed_f32_4_small Qsgd F32 4 true false;
            qsgd_fixed_f32_4_small_segments Qsgd F32 4 true true;
            qsgd_fixed_f32_8 Qsgd F32 8 false false;
            qsgd_fixed_f32_8_segments Qsgd F32 8 false true;
            qsgd_fixed_f32_8_small Qsgd F32 8 true false;
            qsgd_fixed_f32_8_small_segments Qsgd F32 8 true true;
            qsgd_fixed_bf16_4 Qsgd BF16 4 false false;
            qsgd_fixed_bf16_4_segments Qsgd BF16 4 false true;
            qsgd_fixed_bf16_4_small Qsgd BF16 4 true false;
            qsgd_fixed_bf16_4_small_segments Qsgd BF16 4 true true;
            qsgd_fixed_bf16_8 Qsgd BF16 8 false false;
            qsgd_fixed_bf16_8_segments Qsgd BF16 8 false true;
            qsgd_fixed_bf16_8_small Qsgd BF16 8 true false;
            qsgd_fixed_bf16_8_small_segments Qsgd BF16 8 true true;
            uniform_fixed_f32_4 Uniform F32 4 false false;
            uniform_fixed_f32_4_segments Uniform F32 4 false true;
            uniform_fixed_f32_4_small Uniform F32 4 true false;
            uniform_fixed_f32_4_small_segments Uniform F32 4 true true;
            uniform_fixed_f32_8 Uniform F32 8 false false;
            uniform_fixed_f32_8_segments Uniform F32 8 false true;
            uniform_fixed_f32_8_small Uniform F32 8 true false;
            uniform_fixed_f32_8_small_segments Uniform F32 8 true true;
            uniform_fixed_bf16_4 Uniform BF16 4 false false;
            uniform_fixed_bf16_4_segments Uniform BF16 4 false true;
            uniform_fixed_bf16_4_small Uniform BF16 4 true false;
            uniform_fixed_bf16_4_small_segments Uniform BF16 4 true true;
            uniform_fixed_bf16_8 Uniform BF16 8 false false;
            uniform_fixed_bf16_8_segments Uniform BF16 8 false true;
            uniform_fixed_bf16_8_small Uniform BF16 8 true false;
            uniform_fixed_bf16_8_small_segments Uniform BF16 8 true true;
        }
    };
}
#[cfg(any(target_arch = "nvptx64", feature = "rust-cuda"))]
pub(crate) use presets;

macro_rules! names {
    ($($name:ident $codec:ident $dtype:ident $bits:literal $small:literal $segments:literal;)*) => {
        const NAMES: [&str; COUNT] = [$(stringify!($name)),*];
    };
}
presets!(names);

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use super::*;
    use crate::arith::quantizer::Quantizer;
    use crate::arith::round::dither16;
    use crate::arith::{qsgd, uniform};

    /// Values of a bucket with these extremes: both ends, what is beside them, zeros, and anything between.
    fn values(low: f32, high: f32, random: &mut impl FnMut() -> u32) -> Vec<f32> {
        let mut all = vec![low, high];
        for end in [low, high] {
            all.extend([1, 2, 3].map(|by: u32| f32::from_bits(end.to_bits().saturating_sub(by))));
        }
        all.extend((0..400).map(|_| low + (high - low) * (random() as f32 / u32::MAX as f32)));
        all.retain(|value| (low..=high).contains(value));
        if low <= 0.0 && high >= 0.0 {
            all.extend([0.0, -0.0, f32::from_bits(1)].into_iter().filter(|value| *value <= high));
        }
        all
    }

    fn high_is_code<Q: Quantizer>(codec: CodecId, bits: u32, statistic: [u32; 2], values: &[f32], draws: &[u32]) {
        let levels = codec.max_levels(bits);
        let fraction = fraction_bits(levels);
        let p = EncodeParams { bits, levels, fraction, beta: 1f32.to_bits(), ..EncodeParams::default() };
        assert!(Preset::of(codec, &EncodeParams { bucket_log2: 9, ..p }, false).is_some(), "it is a preset");
        let encoder = Q::encoder(&p, statistic);
        for value in values.iter().map(|value| value.to_bits()) {
            for draw in draws {
                // SAFETY: the values are of a bucket with the statistic, and the dither is a draw's.
                let (expected, found) = unsafe {
                    let expected = Q::code::<false>(&p, &encoder, value, dither16(*draw & 0xffff, fraction));
                    (expected, Q::high(&p, &encoder, value, *draw) >> (32 - bits))
                };
                assert_eq!(found, expected, "{codec:?}, {bits} bits, {statistic:x?}, {value:x}, draw {draw:x}");
            }
        }
    }

    #[test]
    fn a_code_in_the_highest_bits_is_the_code() {
        let mut state = 0x9e37_79b9u32;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state
        };
        let mut draws = vec![0, 0xffff, 0x7fff, 0x8000, 0xabcd_0000, 0xabcd_ffff];
        draws.extend((0..10).map(|_| random()));
        for bits in [4, 8] {
            // Usual norms, a lifted one, subnormal ones, the largest.
            for norm in [1.0, 0.737, 3e-30, f32::from_bits(1), f32::from_bits(77), f32::MAX, 0.0] {
                let mut values = values(0.0, norm, &mut random);
                values.extend(values.clone().iter().map(|value| -value));
                high_is_code::<qsgd::Qsgd>(CodecId::Qsgd, bits, [norm.to_bits(), 0], &values, &draws);
            }
            for (low, high) in [
                (-1.0, 1.0),
                (-0.3, 0.737),
                (1.0, 1.0 + f32::EPSILON),
                (-3e-30, 1e-31),
                (0.0, f32::from_bits(1)),
                (f32::MIN, f32::MAX),
                (2.5, 2.5),
            ] {
                let values = values(low, high, &mut random);
                high_is_code::<uniform::Uniform>(
                    CodecId::Uniform,
                    bits,
                    [low, high].map(f32::to_bits),
                    &values,
                    &draws,
                );
            }
            // A poisoned bucket has codes of zero, whatever its values are.
            let values = [f32::NAN, f32::INFINITY, -1.0, 1.0, f32::MAX];
            let nan = f32::NAN.to_bits();
            high_is_code::<qsgd::Qsgd>(CodecId::Qsgd, bits, [nan, 0], &values, &draws);
            high_is_code::<uniform::Uniform>(CodecId::Uniform, bits, [nan, nan], &values, &draws);
        }
    }

    #[test]
    fn names_and_places_agree() {
        for (place, preset) in Preset::ALL.into_iter().enumerate() {
            assert_eq!(preset.index(), place);
            let has = |word: &str| preset.name().contains(word);
            assert!(has(if preset.codec == CodecId::Qsgd { "qsgd_" } else { "uniform_" }), "{}", preset.name());
            assert!(has(if preset.dtype == dtype::F32 { "_f32_" } else { "_bf16_" }), "{}", preset.name());
            assert!(has(if preset.bits == 4 { "_4" } else { "_8" }), "{}", preset.name());
            assert_eq!((has("_small"), has("_segments")), (preset.small, preset.segments), "{}", preset.name());
        }
    }
}
