//! Uniform quantization: see [`crate::arith::uniform`] for the formula and its source.

use super::bucketed::{self, Quantizer};
use super::combine;
use super::decode;
use super::statistic::{Grouping, Max, Min};
use super::tile::{Buffers, Place, Tile};
use crate::arith::float::{from_key, to_key};
use crate::arith::uniform::{Decoder, Encoder};
use crate::device;
use crate::params::{DecodeParams, EncodeParams};

struct Uniform;

/// First word of shared memory for the ranges.
const RANGES: u32 = 0;

impl Quantizer for Uniform {
    type Encoder = Encoder;
    type Decoder = Decoder;
    const SCALARS: usize = 2;
    // A zero behind the last element could lie outside of the bucket's range.
    const PAD_WITH_LAST: bool = true;

    #[inline(always)]
    unsafe fn statistic(_: &EncodeParams, place: Place, tile: &Tile, grouping: Grouping) -> [u32; 4] {
        let of = |v, _| (Min(to_key(v)), Max(to_key(v)));
        // SAFETY: the caller brings all threads here.
        let (low, high) = unsafe { grouping.fold(place, tile, None, RANGES, of) };
        [low.0, high.0, 0, 0]
    }

    #[inline(always)]
    fn finish(_: &EncodeParams, [low, high, ..]: [u32; 4]) -> [u32; 2] {
        [from_key(low), from_key(high)]
    }

    #[inline(always)]
    fn encoder(p: &EncodeParams, statistic: [u32; 2]) -> Encoder {
        let [low, high] = statistic.map(f32::from_bits);
        Encoder::new(low, high, p.levels, p.fraction, p.beta())
    }

    #[inline(always)]
    unsafe fn encoder_of(encoder: &Encoder, from: u32) -> Encoder {
        let words = [encoder.lift.to_bits(), encoder.low.to_bits(), encoder.inverse.to_bits(), encoder.keep];
        // SAFETY: the caller's, word for word.
        let [lift, low, inverse, keep] = words.map(|word| unsafe { device::shuffle(word, from) });
        let [lift, low, inverse] = [lift, low, inverse].map(f32::from_bits);
        // The scalars on the wire are the owner's to write.
        Encoder { lift, low, inverse, keep, wire: [0.0; 2] }
    }

    #[inline(always)]
    fn plain(encoder: &Encoder) -> Option<Encoder> {
        let plain = encoder.keep != 0 && encoder.lift == 1.0;
        plain.then_some(Encoder { lift: 1.0, keep: !0, ..*encoder })
    }

    #[inline(always)]
    fn wire(encoder: &Encoder) -> [f32; 2] {
        encoder.wire
    }

    #[inline(always)]
    fn code(p: &EncodeParams, encoder: &Encoder, value: u32, dither: u32) -> u32 {
        encoder.code(value, dither, p.fraction, p.levels)
    }

    #[inline(always)]
    fn decoder(wire: [f32; 2], levels: u32) -> Decoder {
        Decoder::new(wire[0], wire[1], levels)
    }

    #[inline(always)]
    unsafe fn decoder_of(d: &Decoder, from: u32) -> Decoder {
        let words = [d.low.to_bits(), d.high.to_bits(), d.step.to_bits(), d.lower.to_bits(), d.keep, d.fill];
        // SAFETY: the caller's, word for word.
        let [low, high, step, lower, keep, fill] = words.map(|word| unsafe { device::shuffle(word, from) });
        let [low, high, step, lower] = [low, high, step, lower].map(f32::from_bits);
        Decoder { low, high, step, lower, keep, fill }
    }

    #[inline(always)]
    fn poisoned(decoder: &Decoder) -> bool {
        decoder.keep == 0
    }

    #[inline(always)]
    fn value(decoder: &Decoder, _bits: u32, levels: u32, code: u32) -> f32 {
        decoder.value(code, levels)
    }
}

kernel! {
    fn uniform_stats(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        // SAFETY: the kernel's contract.
        unsafe { bucketed::stats::<Uniform>(p, Buffers { input, residual, scalars, codes, workspace, status }) }
    }
}

kernel! {
    fn uniform_combine(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        let b = Buffers { input, residual, scalars, codes, workspace, status };
        // SAFETY: the kernel's contract covers the workspace; all threads are here.
        let (low, high) = unsafe {
            let of_thread = combine::fold_thread(&p, &b, |[low, high, ..]| (Min(low), Max(high)));
            combine::fold_block(Place::here(), RANGES, of_thread)
        };
        let statistic = [from_key(low.0), from_key(high.0)];
        let wire = Uniform::wire(&Uniform::encoder(&p, statistic));
        // SAFETY: the kernel's contract covers the workspace and the scalars.
        unsafe { combine::write(&b, statistic, &wire) };
    }
}

kernel! {
    fn uniform_encode(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        // SAFETY: the kernel's contract.
        unsafe { bucketed::encode::<Uniform>(p, Buffers { input, residual, scalars, codes, workspace, status }) }
    }
}

kernel! {
    fn uniform_decode(
        p: DecodeParams,
        scalars: *const u32,
        codes: *const u8,
        output: *mut f32,
    ) {
        // SAFETY: the kernel's contract.
        unsafe { decode::decode::<Uniform>(p, decode::Buffers { scalars, codes, output }) }
    }
}
