//! Uniform quantization on the CPU: the twin of `kernels-gpu/src/kernels/uniform.rs` and `shaders/src/uniform.wgsl`.

use gradwire_kernels::arith::float::{from_key, to_key};
use gradwire_kernels::arith::quantizer::Quantizer;
use gradwire_kernels::arith::uniform::{Encoder, Uniform};
use gradwire_kernels::params::{EncodeParams, PARTIAL_WORDS};

use super::bucketed::Measured;

impl Measured for Uniform {
    #[inline(always)]
    fn statistic(_: &EncodeParams, values: &[u32]) -> [u32; 4] {
        let (low, high) = values.iter().fold((u32::MAX, 0), |(low, high), v| {
            let key = to_key(*v);
            (low.min(key), high.max(key))
        });
        [low, high, 0, 0]
    }

    fn combine(_: &EncodeParams, partials: &[u32]) -> [u32; 2] {
        let partials = || partials.chunks_exact(PARTIAL_WORDS as usize);
        let low = partials().map(|s| s[0]).min().unwrap_or(0);
        let high = partials().map(|s| s[1]).max().unwrap_or(0);
        [from_key(low), from_key(high)]
    }

    #[inline(always)]
    fn measure(p: &EncodeParams, values: &[u32]) -> Encoder {
        let [low, high, ..] = Self::statistic(p, values);
        Self::encoder(p, [from_key(low), from_key(high)])
    }
}
