//! The same code, compiled once for each vector width, and chosen at run time.

use std::collections::TryReserveError;

use gradwire_kernels::arith::quantizer::Quantizer;
use gradwire_kernels::codecs::Visitor;
use gradwire_kernels::params::{DctParams, DecodeParams, EncodeParams, RotateParams};

use super::base3;
use super::bucketed::{self, Body, Elements, EncodeTask};
#[cfg(target_arch = "x86_64")]
use super::compress;
use super::dct;
use super::elias;
use super::filter::{self, Filter};
use super::gram;
use super::lanes::Array;
#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512};
use super::quantile;
use super::rotate;
use super::slab::{self, Slab};
use super::vote;
use crate::error::Error;
use crate::gradient::Gradient;
use crate::kind::BackendKind;
use crate::plan::Part;
use crate::sparse::Entries;
use crate::wire::CodecId;

/// Vector instructions that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simd {
    /// What every processor of this architecture has: SSE2 on x86-64, NEON on AArch64.
    Baseline,
    /// AVX2.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Simd {
    /// Every choice, narrowest first.
    pub const ALL: [Self; 3] = [Self::Baseline, Self::Avx2, Self::Avx512];

    /// The widest that this machine has.
    pub fn detect() -> Self {
        if Self::Avx512.available() {
            Self::Avx512
        } else if Self::Avx2.available() {
            Self::Avx2
        } else {
            Self::Baseline
        }
    }

    /// Whether this machine has the instructions.
    pub fn available(self) -> bool {
        match self {
            Self::Baseline => true,
            #[cfg(target_arch = "x86_64")]
            // Every processor that has AVX2 counts ones, and an emulator may be told otherwise.
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }

    /// The name of the choice.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Avx2 => "AVX2",
            Self::Avx512 => "AVX-512",
        }
    }

    pub(super) fn check(self) -> Result<(), Error> {
        if self.available() {
            return Ok(());
        }
        let reason = format!(
            "{} vectors were asked for, and this processor has no more than {}",
            self.name(),
            Self::detect().name()
        );
        Err(Error::Unavailable { backend: BackendKind::Cpu, reason })
    }
}

/// A call with these arguments, of a function that is compiled for each width and each codec.
struct Call<A>(Simd, A);

/// Makes a method that runs a generic body compiled for the chosen width and the codec.
macro_rules! dispatch {
    ($(#[$doc:meta])* $name:ident, $body:path, ($($arg:ident: $ty:ty),*)) => {
        impl Visitor for Call<($($ty,)*)> {
            type Output = ();

            #[inline(always)]
            fn visit<Q: Quantizer>(self) {
                let Self(_simd, ($($arg,)*)) = self;
                #[cfg(target_arch = "x86_64")]
                {
                    #[target_feature(enable = "avx2")]
                    fn avx2<Q: Quantizer>($($arg: $ty),*) {
                        $body($($arg),*)
                    }
                    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
                    fn avx512<Q: Quantizer>($($arg: $ty),*) {
                        $body($($arg),*)
                    }
                    match _simd {
                        Simd::Baseline => {}
                        // SAFETY: a `Simd` other than the baseline comes from `detect` or passed `check`.
                        Simd::Avx2 => return unsafe { avx2::<Q>($($arg),*) },
                        // SAFETY: as above.
                        Simd::Avx512 => return unsafe { avx512::<Q>($($arg),*) },
                    }
                }
                $body($($arg),*)
            }
        }

        impl Simd {
            $(#[$doc])*
            pub(super) fn $name(self, codec: CodecId, $($arg: $ty),*) {
                // A codec without a formula of its own for each element has its loops elsewhere.
                let _ = codec.visit(Call(self, ($($arg,)*)));
            }
        }
    };
}

dispatch!(
    /// Encodes a run of elements.
    encode, bucketed::encode::<Q>, (p: &EncodeParams, statistic: [u32; 2], task: EncodeTask<'_>)
);
dispatch!(
    /// Writes the partial statistic of a span.
    statistic, bucketed::statistic::<Q>, (p: &EncodeParams, elements: Elements<'_>, out: &mut [u32])
);
dispatch!(
    /// Decodes a run of elements.
    decode, bucketed::decode::<Q>, (p: &DecodeParams, bodies: &[Body<'_>], start: usize, output: &mut [f32])
);

/// Makes a method that runs a body over vectors compiled for the chosen width.
macro_rules! over_lanes {
    ($(#[$doc:meta])* $name:ident, ($($arg:ident: $ty:ty),*) -> $ret:ty, $array:expr, $avx2:expr, $avx512:expr) => {
        impl Simd {
            $(#[$doc])*
            pub(super) fn $name(self, $($arg: $ty),*) -> $ret {
                #[cfg(target_arch = "x86_64")]
                {
                    #[target_feature(enable = "avx2")]
                    fn avx2($($arg: $ty),*) -> $ret {
                        $avx2($($arg),*)
                    }
                    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
                    fn avx512($($arg: $ty),*) -> $ret {
                        $avx512($($arg),*)
                    }
                    match self {
                        Self::Baseline => {}
                        // SAFETY: a `Simd` other than the baseline comes from `detect` or passed `check`.
                        Self::Avx2 => return unsafe { avx2($($arg),*) },
                        // SAFETY: as above.
                        Self::Avx512 => return unsafe { avx512($($arg),*) },
                    }
                }
                $array($($arg),*)
            }
        }
    };
}

over_lanes!(
    /// Multiplies a slab's rows by a factor, and forms them where that is yet to be done.
    multiply, (slab: Slab<'_>) -> (),
    slab::multiply::<Array, 1, 1>, slab::multiply::<Avx2, 1, 4>, slab::multiply::<Avx512, 4, 8>
);
over_lanes!(
    /// Rows of the product of two factors.
    expand, (part: Part, rank: usize, first: usize, left: &[f32], right: &[f32], out: &mut [f32]) -> (),
    slab::expand::<Array>, slab::expand::<Avx2>, slab::expand::<Avx512>
);
over_lanes!(
    /// Where in a slab gradient + residual is first not finite.
    first_not_finite, (slab: Slab<'_>, sums: &[f32]) -> Option<usize>,
    slab::first_not_finite::<Array>, slab::first_not_finite::<Avx2>, slab::first_not_finite::<Avx512>
);
over_lanes!(
    /// Products of the columns of a block of a factor.
    gram, (columns: &[&[f32]], out: &mut [f64]) -> (), gram::products, gram::products, gram::products
);
over_lanes!(
    /// Applies the inverse of a triangle to the rows of a block of a factor.
    solve, (columns: &mut [&mut [f32]], triangle: &[f64]) -> (), gram::solve, gram::solve, gram::solve
);
over_lanes!(
    /// Rotates blocks.
    rotate, (p: &RotateParams, first: usize, input: &[f32], output: &mut [f32]) -> (),
    rotate::rotate, rotate::rotate, rotate::rotate
);
over_lanes!(
    /// Transforms blocks by cosines.
    dct, (p: &DctParams, first: usize, input: &[f32], output: &mut [f32]) -> (),
    dct::dct::<4>, dct::dct::<8>, dct::dct::<16>
);
over_lanes!(
    /// Adds a gradient to its residual.
    add_to, (gradient: Gradient<'_>, residual: &mut [f32]) -> (), filter::add_to, filter::add_to, filter::add_to
);
over_lanes!(
    /// Encodes a run of quantile buckets.
    quantile_encode, (p: &EncodeParams, task: EncodeTask<'_>) -> (),
    quantile::encode, quantile::encode, quantile::encode
);
over_lanes!(
    /// Decodes a run of quantile buckets.
    quantile_decode, (p: &DecodeParams, bodies: &[Body<'_>], start: usize, output: &mut [f32]) -> (),
    quantile::decode, quantile::decode, quantile::decode
);
over_lanes!(
    /// Votes on units of signs.
    vote, (first: usize, codes: &[&[u8]], output: &mut [f32]) -> (), vote::vote, vote::vote, vote::vote
);
over_lanes!(
    /// Packs units of codes as Elias codes.
    elias_pack, (bits: u32, codes: &[u8], table: &mut [u8], out: &mut Vec<u8>) -> Result<(), TryReserveError>,
    elias::pack_units::<false>, elias::pack_units::<false>, elias::pack_units::<false>
);
over_lanes!(
    /// Unpacks units of Elias codes.
    elias_unpack, (bits: u32, table: &[u8], packed: &[u8], codes: &mut [u8]) -> (),
    elias::unpack_units::<false>, elias::unpack_units::<false>, elias::unpack_units::<false>
);
over_lanes!(
    /// Packs units of codes as Elias delta codes.
    delta_pack, (bits: u32, codes: &[u8], table: &mut [u8], out: &mut Vec<u8>) -> Result<(), TryReserveError>,
    elias::pack_units::<true>, elias::pack_units::<true>, elias::pack_units::<true>
);
over_lanes!(
    /// Unpacks units of Elias delta codes.
    delta_unpack, (bits: u32, table: &[u8], packed: &[u8], codes: &mut [u8]) -> (),
    elias::unpack_units::<true>, elias::unpack_units::<true>, elias::unpack_units::<true>
);

over_lanes!(
    /// Packs units of codes in base 3.
    base3_pack, (codes: &[u8], table: &mut [u8], out: &mut Vec<u8>) -> Result<(), TryReserveError>,
    base3::pack_units, base3::pack_units, base3::pack_units
);
over_lanes!(
    /// Unpacks units of codes in base 3.
    base3_unpack, (table: &[u8], packed: &[u8], codes: &mut [u8]) -> (),
    base3::unpack_units, base3::unpack_units, base3::unpack_units
);

impl Simd {
    /// Filters a run of elements for top-k, and appends what is wanted.
    pub(super) fn filter(self, task: Filter<'_>, to: &mut Entries) {
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2")]
            fn avx2(task: Filter<'_>, to: &mut Entries) {
                filter::filter(task, to);
            }
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512(task: Filter<'_>, to: &mut Entries) {
                filter::filter(task, to);
            }
            // SAFETY: a `Simd` other than the baseline comes from `detect` or passed `check`.
            unsafe {
                match (self, task.source.gradient) {
                    (Self::Baseline, _) => {}
                    (_, Gradient::F32(values)) => {
                        let Filter { source, start, sums, floor } = task;
                        let residual = source.residual.unwrap_or_default();
                        return match self {
                            Self::Avx512 => compress::filter(values, residual, sums, start, floor, to),
                            _ => compress::filter_by_table(values, residual, sums, start, floor, to),
                        };
                    }
                    (Self::Avx2, _) => return avx2(task, to),
                    (Self::Avx512, _) => return avx512(task, to),
                }
            }
        }
        filter::filter(task, to);
    }
}

/// The final statistic and the wire's scalars of a tensor that is one bucket, of a codec that has such. Too little work
/// for vectors.
pub(super) fn combine(codec: CodecId, p: &EncodeParams, partials: &[u32]) -> Option<([u32; 2], Vec<f32>)> {
    struct Combine<'a>(&'a EncodeParams, &'a [u32]);

    impl Visitor for Combine<'_> {
        type Output = ([u32; 2], Vec<f32>);

        fn visit<Q: Quantizer>(self) -> Self::Output {
            bucketed::combine::<Q>(self.0, self.1)
        }
    }

    codec.visit(Combine(p, partials))
}
