//! Sixteen f32 at a time: the registers of AVX-512, pairs of AVX2's, or an array. All have the same bits in every lane,
//! since each operation is rounded for itself.

use gradwire_kernels::arith::powersgd;

/// Lanes of a vector.
pub(super) const LANES: usize = 16;

/// A cache line of f32. Vectors that lie across two lines are loaded at half the rate.
#[derive(Clone, Copy, Default, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [f32; LANES]);

/// Sixteen f32.
pub(super) trait Lanes: Copy {
    fn load(from: &[f32; LANES]) -> Self;
    fn store(self, to: &mut [f32; LANES]);
    fn splat(value: f32) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// [`powersgd::kept`] in each lane.
    fn kept(sum: Self, residual: Self) -> Self;

    /// Has a value's cache line fetched, for later; nothing if there is no such value.
    #[inline(always)]
    fn prefetch(_of: &[f32], _at: usize) {}

    /// The first of fewer than sixteen values, and zeros.
    #[inline(always)]
    fn load_part(from: &[f32]) -> Self {
        let mut all = [0.0; LANES];
        all[..from.len()].copy_from_slice(from);
        Self::load(&all)
    }

    /// The first lanes, as many as there is room for.
    #[inline(always)]
    fn store_part(self, to: &mut [f32]) {
        let mut all = [0.0; LANES];
        self.store(&mut all);
        to.copy_from_slice(&all[..to.len()]);
    }
}

/// An array, which the compiler makes the best of.
#[derive(Clone, Copy)]
pub(super) struct Array([f32; LANES]);

impl Array {
    #[inline(always)]
    fn zip(self, other: Self, with: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| with(self.0[i], other.0[i])))
    }
}

impl Lanes for Array {
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        Self(*from)
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        *to = self.0;
    }
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; LANES])
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    fn kept(sum: Self, residual: Self) -> Self {
        sum.zip(residual, powersgd::kept)
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use crate::backend::cpu::lanes::{LANES, Lanes};

    /// Two registers of AVX2. To be used only where a caller is compiled for AVX2.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx2([__m256; 2]);

    /// A register of AVX-512. To be used only where a caller is compiled for AVX-512 F.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx512(__m512);

    impl Lanes for Avx2 {
        #[inline(always)]
        fn prefetch(of: &[f32], at: usize) {
            if let Some(value) = of.get(at) {
                // SAFETY: a prefetch is no access.
                unsafe { _mm_prefetch::<_MM_HINT_T0>((value as *const f32).cast()) }
            }
        }
        #[inline(always)]
        fn load(from: &[f32; LANES]) -> Self {
            // SAFETY: there are 64 bytes to read, and the processor has AVX2, by this type's contract.
            unsafe { Self([_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))]) }
        }
        #[inline(always)]
        fn store(self, to: &mut [f32; LANES]) {
            // SAFETY: there is room for 64 bytes; AVX2 as above.
            unsafe {
                _mm256_storeu_ps(to.as_mut_ptr(), self.0[0]);
                _mm256_storeu_ps(to.as_mut_ptr().add(8), self.0[1]);
            }
        }
        #[inline(always)]
        fn splat(value: f32) -> Self {
            // SAFETY: AVX2, by this type's contract.
            unsafe { Self([_mm256_set1_ps(value); 2]) }
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: as above.
            unsafe { Self([_mm256_add_ps(self.0[0], other.0[0]), _mm256_add_ps(self.0[1], other.0[1])]) }
        }
        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            // SAFETY: as above.
            unsafe { Self([_mm256_sub_ps(self.0[0], other.0[0]), _mm256_sub_ps(self.0[1], other.0[1])]) }
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: as above.
            unsafe { Self([_mm256_mul_ps(self.0[0], other.0[0]), _mm256_mul_ps(self.0[1], other.0[1])]) }
        }
        #[inline(always)]
        fn kept(sum: Self, residual: Self) -> Self {
            let mut kept = sum.0;
            for (sum, residual) in kept.iter_mut().zip(residual.0) {
                // SAFETY: as above. x - x is zero for a finite x, and NaN for every other.
                unsafe {
                    let finite = _mm256_cmp_ps::<_CMP_EQ_OQ>(_mm256_sub_ps(*sum, *sum), _mm256_setzero_ps());
                    let before = _mm256_cmp_ps::<_CMP_EQ_OQ>(_mm256_sub_ps(residual, residual), _mm256_setzero_ps());
                    *sum = _mm256_blendv_ps(_mm256_and_ps(residual, before), *sum, finite);
                }
            }
            Self(kept)
        }
    }

    impl Lanes for Avx512 {
        #[inline(always)]
        fn prefetch(of: &[f32], at: usize) {
            if let Some(value) = of.get(at) {
                // SAFETY: a prefetch is no access.
                unsafe { _mm_prefetch::<_MM_HINT_T0>((value as *const f32).cast()) }
            }
        }
        #[inline(always)]
        fn load(from: &[f32; LANES]) -> Self {
            // SAFETY: there are 64 bytes to read, and the processor has AVX-512 F, by this type's contract.
            unsafe { Self(_mm512_loadu_ps(from.as_ptr())) }
        }
        #[inline(always)]
        fn store(self, to: &mut [f32; LANES]) {
            // SAFETY: there is room for 64 bytes; AVX-512 F as above.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) }
        }
        #[inline(always)]
        fn splat(value: f32) -> Self {
            // SAFETY: AVX-512 F, by this type's contract.
            unsafe { Self(_mm512_set1_ps(value)) }
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: as above.
            unsafe { Self(_mm512_add_ps(self.0, other.0)) }
        }
        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            // SAFETY: as above.
            unsafe { Self(_mm512_sub_ps(self.0, other.0)) }
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: as above.
            unsafe { Self(_mm512_mul_ps(self.0, other.0)) }
        }
        #[inline(always)]
        fn kept(sum: Self, residual: Self) -> Self {
            let (sum, residual) = (sum.0, residual.0);
            // SAFETY: as above. x - x is zero for a finite x, and NaN for every other.
            unsafe {
                let finite = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(_mm512_sub_ps(sum, sum), _mm512_setzero_ps());
                let before = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(_mm512_sub_ps(residual, residual), _mm512_setzero_ps());
                Self(_mm512_mask_mov_ps(_mm512_maskz_mov_ps(before, residual), finite, sum))
            }
        }
    }
}
