//! One struct a kernel family: the PTX parameter, the WGSL uniform and the CPU's argument are the same bytes.

use bytemuck::{Pod, Zeroable};

use crate::arith::philox::Stream;

/// `bucket_log2` of a tensor that is one bucket: every index shifted by it is 0.
pub const WHOLE: u32 = 31;

/// Elements that one workgroup encodes, and that one partial statistic of a whole-tensor bucket covers.
pub const SPAN: u32 = 8192;

/// Words of one partial statistic.
pub const PARTIAL_WORDS: u32 = 4;

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
    /// Draw 32 bits an element; without it, 16.
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
    /// Partial statistics that the combine kernel folds.
    pub partials: u32,
    /// Zero.
    pub reserved: u32,
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
    /// Zero.
    pub reserved: [u32; 3],
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
