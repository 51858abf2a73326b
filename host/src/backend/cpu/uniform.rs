//! Uniform quantization on the CPU: the twin of `kernels-gpu/src/kernels/uniform.rs` and `shaders/src/uniform.wgsl`.

use gradwire_kernels::arith::float::{from_key, to_key};
use gradwire_kernels::arith::uniform::{Decoder, Encoder};
use gradwire_kernels::params::{EncodeParams, PARTIAL_WORDS};

use super::bucketed::Quantizer;

pub(super) struct Uniform;

impl Quantizer for Uniform {
    type Encoder = Encoder;
    type Decoder = Decoder;
    const SCALARS: usize = 2;
    // A zero behind the last element could lie outside of the bucket's range.
    const PAD_WITH_FIRST: bool = true;

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
    fn encoder(p: &EncodeParams, statistic: [u32; 2]) -> Encoder {
        let [low, high] = statistic.map(f32::from_bits);
        Encoder::new(low, high, p.levels, p.fraction, p.beta())
    }

    #[inline(always)]
    fn measure(p: &EncodeParams, values: &[u32]) -> Encoder {
        let [low, high, ..] = Self::statistic(p, values);
        Self::encoder(p, [from_key(low), from_key(high)])
    }

    #[inline(always)]
    fn wire(encoder: &Encoder) -> [f32; 2] {
        encoder.wire
    }

    #[inline(always)]
    fn poisoned(encoder: &Encoder) -> bool {
        encoder.keep == 0
    }

    #[inline(always)]
    fn code<const WIDE: bool>(p: &EncodeParams, encoder: &Encoder, value: u32, dither: u32) -> u32 {
        encoder.code(value, dither, p.fraction, p.levels)
    }

    #[inline(always)]
    fn decoder(wire: [f32; 2], levels: u32) -> Decoder {
        Decoder::new(wire[0], wire[1], levels)
    }

    #[inline(always)]
    fn value(decoder: &Decoder, _bits: u32, levels: u32, code: u32) -> f32 {
        decoder.value(code, levels)
    }
}
