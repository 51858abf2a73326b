//! Settings that have kernels of their own, in which the compiler knows what is fixed.

use crate::arith::round::fraction_bits;
use crate::codecs::CodecId;
use crate::params::{EncodeParams, dtype};

/// A setting whose encode has kernels of its own: every level of a width of 4 or 8 bits, f32 or bf16, draws of 16 bits, the largest
/// magnitude as QSGD's norm, no feedback, and buckets of 32 to 1024 elements.
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

/// Hands the entry points to a macro, in the order of [`Preset::ALL`]: name, formula, type, bits, whether buckets are small, whether
/// there are many tensors.
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
