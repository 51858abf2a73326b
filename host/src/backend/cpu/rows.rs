//! Rows of 32 elements: loading, drawing and packing, written as loops over lanes that compilers turn into vectors.

use gradwire_kernels::arith::float::{bf16_to_f32, f16_to_f32};
use gradwire_kernels::arith::pack::{LANES, SLOTS, UNIT, cut};
use gradwire_kernels::arith::philox::block;
use gradwire_kernels::arith::quantizer::Quantizer;
use gradwire_kernels::arith::round::{dither_nearest, dither16, dither32};
use gradwire_kernels::params::{EncodeParams, encode_flags};

use crate::gradient::Gradient;

/// The bits of 256 consecutive elements; slot `j` of lane `i` is element `32 j + i`.
pub(super) type Unit = [u32; UNIT];

/// Elements `start..start + len` of a gradient as bits, where they lie; `None` if they must be staged.
#[inline(always)]
pub(super) fn borrow<'a>(gradient: Gradient<'a>, start: usize, len: usize) -> Option<&'a [u32]> {
    match gradient {
        Gradient::F32(x) if len.is_multiple_of(UNIT) => Some(bytemuck::cast_slice(&x[start..start + len])),
        _ => None,
    }
}

/// Copies elements `start..start + len` as bits of f32, adds the residual, and leaves zeros after the last.
#[inline(always)]
pub(super) fn stage(to: &mut [u32], gradient: Gradient<'_>, start: usize, len: usize, residual: Option<&[f32]>) {
    let (used, rest) = to.split_at_mut(len);
    rest.fill(0);
    match gradient {
        Gradient::F32(x) => used.copy_from_slice(bytemuck::cast_slice(&x[start..start + len])),
        Gradient::F16(x) => {
            for (v, h) in used.iter_mut().zip(&x[start..start + len]) {
                *v = f16_to_f32(h.to_bits()).to_bits();
            }
        }
        Gradient::Bf16(x) => {
            for (v, h) in used.iter_mut().zip(&x[start..start + len]) {
                *v = bf16_to_f32(h.to_bits()).to_bits();
            }
        }
    }
    if let Some(residual) = residual {
        for (v, e) in used.iter_mut().zip(residual) {
            *v = (f32::from_bits(*v) + e).to_bits();
        }
    }
}

/// The dither of every element of a unit.
#[inline(always)]
pub(super) fn dithers(p: &EncodeParams, unit: u32, out: &mut Unit) {
    let fraction = p.fraction;
    if p.has(encode_flags::NEAREST) {
        *out = [dither_nearest(fraction); UNIT];
        return;
    }
    let stream = p.stream();
    if p.has(encode_flags::WIDE) {
        for half in 0..2 {
            for lane in 0..LANES {
                let draw = block(stream, (unit * LANES as u32 + lane as u32) * 2 + half as u32);
                for word in 0..4 {
                    out[(half * 4 + word) * LANES + lane] = dither32(draw[word], fraction);
                }
            }
        }
        return;
    }
    for lane in 0..LANES {
        let draw = block(stream, unit * LANES as u32 + lane as u32);
        for word in 0..4 {
            out[word * 2 * LANES + lane] = dither16(draw[word], fraction);
            out[(word * 2 + 1) * LANES + lane] = dither16(draw[word] >> 16, fraction);
        }
    }
}

/// Writes the codes of a unit: `out` has the unit's bytes.
#[inline(always)]
pub(super) fn pack(bits: u32, codes: &Unit, out: &mut [u8]) {
    match bits {
        1 => pack_bits::<1, 0>(codes, out),
        2 => pack_bits::<2, 0>(codes, out),
        3 => pack_bits::<3, 0>(codes, out),
        4 => pack_bits::<4, 1>(codes, out),
        5 => pack_bits::<5, 1>(codes, out),
        6 => pack_bits::<6, 1>(codes, out),
        7 => pack_bits::<7, 1>(codes, out),
        8 => pack_bits::<8, 2>(codes, out),
        _ => pack_bits::<16, 4>(codes, out),
    }
}

/// Reads the codes of a unit.
#[inline(always)]
pub(super) fn unpack(bits: u32, bytes: &[u8], codes: &mut Unit) {
    match bits {
        1 => unpack_bits::<1, 0>(bytes, codes),
        2 => unpack_bits::<2, 0>(bytes, codes),
        3 => unpack_bits::<3, 0>(bytes, codes),
        4 => unpack_bits::<4, 1>(bytes, codes),
        5 => unpack_bits::<5, 1>(bytes, codes),
        6 => unpack_bits::<6, 1>(bytes, codes),
        7 => unpack_bits::<7, 1>(bytes, codes),
        8 => unpack_bits::<8, 2>(bytes, codes),
        _ => unpack_bits::<16, 4>(bytes, codes),
    }
}

/// The packed pieces of a unit, each as the integers that a lane owns: `ROWS` is four rows of words for pieces of 16
/// bits, two for 8, one for 4; no code has two of those. Rows that a width has no use for would be cleared by a call.
///
/// One loop over lanes fills all of them: its body is long enough that compilers turn it into vectors over lanes, and
/// do not unroll it first and then look for vectors across slots, which would gather and scatter.
struct Packed<const ROWS: usize> {
    words: [[u32; LANES]; ROWS],
    halves: [u16; LANES],
    bytes: [u8; LANES],
}

impl<const ROWS: usize> Packed<ROWS> {
    const EMPTY: Self = Self { words: [[0; LANES]; ROWS], halves: [0; LANES], bytes: [0; LANES] };
}

/// `COUNT` slots of a lane, from `first` on: the piece of each of `bits`, low bits first.
#[inline(always)]
fn join<const COUNT: usize>(codes: &[u32; SLOTS], first: usize, bits: u32, done: u32, piece: u32) -> u32 {
    let (mut word, mut k) = (0, 0);
    while k < COUNT {
        // A code that is one piece has no bits beside it.
        let part = if bits == piece { codes[first + k] } else { cut(codes[first + k], done, piece) };
        word |= part << (k as u32 * piece);
        k += 1;
    }
    word
}

impl<const ROWS: usize> Packed<ROWS> {
    /// Takes the eight codes of a lane.
    #[inline(always)]
    fn set<const BITS: u32>(&mut self, lane: usize, codes: &[u32; SLOTS]) {
        if BITS & 16 != 0 {
            self.words[0][lane] = join::<2>(codes, 0, BITS, 0, 16).to_le();
            self.words[1][lane] = join::<2>(codes, 2, BITS, 0, 16).to_le();
            self.words[2][lane] = join::<2>(codes, 4, BITS, 0, 16).to_le();
            self.words[3][lane] = join::<2>(codes, 6, BITS, 0, 16).to_le();
        }
        if BITS & 8 != 0 {
            self.words[0][lane] = join::<4>(codes, 0, BITS, 0, 8).to_le();
            self.words[1][lane] = join::<4>(codes, 4, BITS, 0, 8).to_le();
        }
        if BITS & 4 != 0 {
            self.words[0][lane] = join::<8>(codes, 0, BITS, 0, 4).to_le();
        }
        if BITS & 2 != 0 {
            self.halves[lane] = (join::<8>(codes, 0, BITS, BITS & 4, 2) as u16).to_le();
        }
        if BITS & 1 != 0 {
            self.bytes[lane] = join::<8>(codes, 0, BITS, BITS & 6, 1) as u8;
        }
    }

    /// Writes the unit's bytes.
    #[inline(always)]
    fn store<const BITS: u32>(&self, out: &mut [u8]) {
        // Lengths that are known when compiled, so that a copy is a few stores and not a call.
        let (words, rest) = out.split_at_mut(ROWS * LANES * 4);
        words.copy_from_slice(bytemuck::cast_slice(&self.words));
        let rest = if BITS & 2 == 0 {
            rest
        } else {
            let (halves, rest) = rest.split_at_mut(LANES * 2);
            halves.copy_from_slice(bytemuck::cast_slice(&self.halves));
            rest
        };
        if BITS & 1 != 0 {
            rest[..LANES].copy_from_slice(&self.bytes);
        }
    }
}

/// The values of a lane's slots, of codes or of anything else.
#[inline(always)]
fn slots(unit: &Unit, lane: usize) -> [u32; SLOTS] {
    [
        unit[lane],
        unit[LANES + lane],
        unit[2 * LANES + lane],
        unit[3 * LANES + lane],
        unit[4 * LANES + lane],
        unit[5 * LANES + lane],
        unit[6 * LANES + lane],
        unit[7 * LANES + lane],
    ]
}

#[inline(always)]
fn pack_bits<const BITS: u32, const ROWS: usize>(codes: &Unit, out: &mut [u8]) {
    let mut packed = Packed::<ROWS>::EMPTY;
    for lane in 0..LANES {
        packed.set::<BITS>(lane, &slots(codes, lane));
    }
    packed.store::<BITS>(out);
}

/// Draws, encodes and packs a whole unit of one bucket with 16-bit draws and a plain encoder: what most units are.
#[inline(always)]
pub(super) fn draw_and_pack<Q: Quantizer>(
    p: &EncodeParams,
    encoder: &Q::Encoder,
    unit: u32,
    values: &Unit,
    out: &mut [u8],
) {
    match p.bits {
        1 => fused::<Q, 1, 0>(p, encoder, unit, values, out),
        2 => fused::<Q, 2, 0>(p, encoder, unit, values, out),
        3 => fused::<Q, 3, 0>(p, encoder, unit, values, out),
        4 => fused::<Q, 4, 1>(p, encoder, unit, values, out),
        5 => fused::<Q, 5, 1>(p, encoder, unit, values, out),
        6 => fused::<Q, 6, 1>(p, encoder, unit, values, out),
        7 => fused::<Q, 7, 1>(p, encoder, unit, values, out),
        8 => fused::<Q, 8, 2>(p, encoder, unit, values, out),
        _ => fused::<Q, 16, 4>(p, encoder, unit, values, out),
    }
}

#[expect(clippy::needless_range_loop, reason = "vectors are found in loops over lanes")]
#[inline(always)]
fn fused<Q: Quantizer, const BITS: u32, const ROWS: usize>(
    p: &EncodeParams,
    encoder: &Q::Encoder,
    unit: u32,
    values: &Unit,
    out: &mut [u8],
) {
    prefetch(values);
    let (stream, first) = (p.stream(), unit * LANES as u32);
    // A loop for the draws and one for the codes: together they need more registers than AVX2 has.
    let mut draws = [[0; LANES]; 4];
    for lane in 0..LANES {
        let [a, b, c, d] = block(stream, first + lane as u32);
        draws[0][lane] = a;
        draws[1][lane] = b;
        draws[2][lane] = c;
        draws[3][lane] = d;
    }
    let mut packed = Packed::<ROWS>::EMPTY;
    for lane in 0..LANES {
        let [a, b, c, d] = [draws[0][lane], draws[1][lane], draws[2][lane], draws[3][lane]];
        let v = slots(values, lane);
        // SAFETY: the caller's encoder is a plain one of the bucket of these values, and codes have `BITS` bits.
        let codes = unsafe {
            [
                Q::code_by_draw::<BITS>(p, encoder, v[0], a),
                Q::code_by_draw::<BITS>(p, encoder, v[1], a >> 16),
                Q::code_by_draw::<BITS>(p, encoder, v[2], b),
                Q::code_by_draw::<BITS>(p, encoder, v[3], b >> 16),
                Q::code_by_draw::<BITS>(p, encoder, v[4], c),
                Q::code_by_draw::<BITS>(p, encoder, v[5], c >> 16),
                Q::code_by_draw::<BITS>(p, encoder, v[6], d),
                Q::code_by_draw::<BITS>(p, encoder, v[7], d >> 16),
            ]
        };
        packed.set::<BITS>(lane, &codes);
    }
    packed.store::<BITS>(out);
}

/// Has memory after a unit's values fetched: a bucket is measured as soon as the one before it is encoded, and would
/// wait. Only speed depends on it.
#[inline(always)]
fn prefetch(_values: &Unit) {
    #[cfg(target_arch = "x86_64")]
    for line in _values.chunks_exact(16) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        const AHEAD: usize = 2048;
        // SAFETY: a prefetch is no access, whatever is there.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(AHEAD).cast()) }
    }
}

/// The code of one slot of a lane.
#[inline(always)]
fn part<const BITS: u32, const ROWS: usize>(packed: &Packed<ROWS>, lane: usize, slot: usize) -> u32 {
    let k = slot as u32;
    let mut code = 0;
    if BITS & 16 != 0 {
        code |= cut(u32::from_le(packed.words[slot / 2][lane]), k % 2 * 16, 16);
    }
    if BITS & 8 != 0 {
        code |= cut(u32::from_le(packed.words[slot / 4][lane]), k % 4 * 8, 8);
    }
    if BITS & 4 != 0 {
        code |= cut(u32::from_le(packed.words[0][lane]), k * 4, 4);
    }
    if BITS & 2 != 0 {
        code |= cut(u32::from(u16::from_le(packed.halves[lane])), k * 2, 2) << (BITS & 4);
    }
    if BITS & 1 != 0 {
        code |= cut(u32::from(packed.bytes[lane]), k, 1) << (BITS & 6);
    }
    code
}

#[inline(always)]
fn unpack_bits<const BITS: u32, const ROWS: usize>(from: &[u8], codes: &mut Unit) {
    let mut packed = Packed::<ROWS>::EMPTY;
    let (words, rest) = from.split_at(ROWS * LANES * 4);
    bytemuck::cast_slice_mut(&mut packed.words).copy_from_slice(words);
    let rest = if BITS & 2 == 0 {
        rest
    } else {
        let (halves, rest) = rest.split_at(LANES * 2);
        bytemuck::cast_slice_mut(&mut packed.halves).copy_from_slice(halves);
        rest
    };
    if BITS & 1 != 0 {
        packed.bytes.copy_from_slice(&rest[..LANES]);
    }
    for lane in 0..LANES {
        codes[lane] = part::<BITS, ROWS>(&packed, lane, 0);
        codes[LANES + lane] = part::<BITS, ROWS>(&packed, lane, 1);
        codes[2 * LANES + lane] = part::<BITS, ROWS>(&packed, lane, 2);
        codes[3 * LANES + lane] = part::<BITS, ROWS>(&packed, lane, 3);
        codes[4 * LANES + lane] = part::<BITS, ROWS>(&packed, lane, 4);
        codes[5 * LANES + lane] = part::<BITS, ROWS>(&packed, lane, 5);
        codes[6 * LANES + lane] = part::<BITS, ROWS>(&packed, lane, 6);
        codes[7 * LANES + lane] = part::<BITS, ROWS>(&packed, lane, 7);
    }
}
