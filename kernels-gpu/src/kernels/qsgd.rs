//! QSGD: see [`crate::arith::qsgd`] for the formula and its source.

use super::bucketed::{self, Quantizer};
use super::combine;
use super::decode;
use super::statistic::{Grouping, Max, Sum, high, join, low};
use super::tile::{Buffers, Place, Tile};
use crate::arith::float::{INF_BITS, MAGNITUDE, NAN_BITS};
use crate::arith::norm;
use crate::arith::qsgd::{Decoder, Encoder};
use crate::device;
use crate::params::{DecodeParams, EncodeParams, encode_flags};

struct Qsgd;

/// First word of shared memory for the largest magnitudes.
const MAXIMA: u32 = 0;
/// First word of shared memory for the sums.
const SUMS: u32 = 8;

impl Quantizer for Qsgd {
    type Encoder = Encoder;
    type Decoder = Decoder;
    const SCALARS: usize = 1;
    const PAD_WITH_LAST: bool = false;

    #[inline(always)]
    unsafe fn statistic(p: &EncodeParams, place: Place, tile: &Tile, grouping: Grouping) -> [u32; 4] {
        // NaN is above infinity, and infinity above every number.
        // SAFETY: the caller brings all threads here.
        let largest = unsafe { grouping.fold(place, tile, None, MAXIMA, |v, _| Max(v & MAGNITUDE)) }.0;
        if !p.has(encode_flags::L2) {
            return [largest, 0, 0, 0];
        }
        let square = |v, alignment| Sum(norm::square(norm::aligned(v & MAGNITUDE, alignment)));
        // SAFETY: as above; the flag is the same for all threads.
        let sum = unsafe { grouping.fold(place, tile, Some(norm::alignment(largest)), SUMS, square) }.0;
        let sum = if largest < INF_BITS { sum } else { 0 };
        [largest, low(sum), high(sum), 0]
    }

    #[inline(always)]
    fn finish(p: &EncodeParams, [largest, low, high, _]: [u32; 4]) -> [u32; 2] {
        if !p.has(encode_flags::L2) {
            return [if largest >= INF_BITS { NAN_BITS } else { largest }, 0];
        }
        let norm = norm::from_sum(join([low, high]), 0, norm::alignment(largest)).to_bits();
        let norm = if largest == 0 { 0 } else { norm };
        [if largest >= INF_BITS { NAN_BITS } else { norm }, 0]
    }

    #[inline(always)]
    fn encoder(p: &EncodeParams, [norm, _]: [u32; 2]) -> Encoder {
        Encoder::new(f32::from_bits(norm), p.levels, p.fraction, p.beta())
    }

    #[inline(always)]
    unsafe fn encoder_of(encoder: &Encoder, from: u32) -> Encoder {
        let words = [encoder.lift.to_bits(), encoder.inverse.to_bits(), encoder.keep];
        // SAFETY: the caller's, word for word.
        let [lift, inverse, keep] = words.map(|word| unsafe { device::shuffle(word, from) });
        // The scalar on the wire is the owner's to write.
        Encoder { lift: f32::from_bits(lift), inverse: f32::from_bits(inverse), keep, wire: 0.0 }
    }

    #[inline(always)]
    fn plain(encoder: &Encoder) -> Option<Encoder> {
        let plain = encoder.keep != 0 && encoder.lift == 1.0;
        plain.then_some(Encoder { lift: 1.0, keep: !0, ..*encoder })
    }

    #[inline(always)]
    fn wire(encoder: &Encoder) -> [f32; 2] {
        [encoder.wire, 0.0]
    }

    #[inline(always)]
    fn code(p: &EncodeParams, encoder: &Encoder, value: u32, dither: u32) -> u32 {
        encoder.code(value, dither, p.fraction, p.levels, p.bits)
    }

    #[inline(always)]
    fn decoder(wire: [f32; 2], levels: u32) -> Decoder {
        Decoder::new(wire[0], levels)
    }

    #[inline(always)]
    unsafe fn decoder_of(d: &Decoder, from: u32) -> Decoder {
        let words = [d.step.to_bits(), d.top.to_bits(), d.lower.to_bits(), d.keep, d.fill];
        // SAFETY: the caller's, word for word.
        let [step, top, lower, keep, fill] = words.map(|word| unsafe { device::shuffle(word, from) });
        let [step, top, lower] = [step, top, lower].map(f32::from_bits);
        Decoder { step, top, lower, keep, fill }
    }

    #[inline(always)]
    fn poisoned(decoder: &Decoder) -> bool {
        decoder.keep == 0
    }

    #[inline(always)]
    fn value(decoder: &Decoder, bits: u32, _levels: u32, code: u32) -> f32 {
        decoder.value(code, bits)
    }
}

kernel! {
    fn qsgd_stats(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        // SAFETY: the kernel's contract.
        unsafe { bucketed::stats::<Qsgd>(p, Buffers { input, residual, scalars, codes, workspace, status }) }
    }
}

kernel! {
    fn qsgd_combine(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        let b = Buffers { input, residual, scalars, codes, workspace, status };
        let place = Place::here();
        // SAFETY: the kernel's contract covers the workspace; all threads are here.
        let largest = unsafe {
            let of_thread = combine::fold_thread(&p, &b, |[largest, ..]| Max(largest));
            combine::fold_block(place, MAXIMA, of_thread).0
        };
        let norm = if largest >= INF_BITS {
            NAN_BITS
        } else if largest == 0 || !p.has(encode_flags::L2) {
            largest
        } else {
            let alignment = norm::alignment(largest);
            let shifted = |[largest, low, high, _]: [u32; 4]| {
                join([low, high]) >> (2 * (alignment - norm::alignment(largest)).min(31))
            };
            let halves = |partial| (Sum(low(shifted(partial)).into()), Sum(high(shifted(partial)).into()));
            // A sum of 2^18 integers below 2^61 takes 79 bits. Its halves are summed apart, each in 64 bits.
            // SAFETY: as above; the largest magnitude is the same for all threads.
            let (Sum(below), Sum(above)) = unsafe {
                let of_thread = combine::fold_thread(&p, &b, halves);
                combine::fold_block(place, SUMS, of_thread)
            };
            let (sum, halvings) = norm::reduce(u128::from(below) + (u128::from(above) << 32));
            norm::from_sum(sum, halvings, alignment).to_bits()
        };
        let wire = Qsgd::wire(&Qsgd::encoder(&p, [norm, 0]));
        // SAFETY: the kernel's contract covers the workspace and the scalars.
        unsafe { combine::write(&b, [norm, 0], &wire[..Qsgd::SCALARS]) };
    }
}

kernel! {
    fn qsgd_encode(
        p: EncodeParams,
        input: *const u8,
        residual: *mut f32,
        scalars: *mut u32,
        codes: *mut u8,
        workspace: *mut u32,
        status: *mut u32,
    ) {
        // SAFETY: the kernel's contract.
        unsafe { bucketed::encode::<Qsgd>(p, Buffers { input, residual, scalars, codes, workspace, status }) }
    }
}

kernel! {
    fn qsgd_decode(
        p: DecodeParams,
        scalars: *const u32,
        codes: *const u8,
        output: *mut f32,
    ) {
        // SAFETY: the kernel's contract.
        unsafe { decode::decode::<Qsgd>(p, decode::Buffers { scalars, codes, output }) }
    }
}
