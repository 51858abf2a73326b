//! The sum of several payloads.

use super::unit::{BATCH, Decoders, PARTS, Place, behind, unit_codes, wire};
use crate::arith::pack::{SLOTS, UNIT};
use crate::arith::quantizer::{Quantizer, Words};
use crate::device;
use crate::kernels::decode::{Buffers, of_sum};
use crate::kernels::tile::UNITS;
use crate::params::DecodeParams;
use crate::presets::decode::BITS;

/// What a warp that sums works on at a time: a unit, of the payloads from `batch` on.
#[derive(Clone, Copy)]
struct Turn {
    unit: u32,
    batch: u32,
}

impl Turn {
    /// Payloads from here on: those of the turn, or more.
    #[inline(always)]
    fn left(self, p: &DecodeParams) -> u32 {
        p.payloads - self.batch
    }

    /// The scalars of this lane: lane `4 k + j` has those of the `k`-th payload, in unit `j` or part `j` of the unit.
    ///
    /// # Safety
    /// As the kernels ask.
    #[inline(always)]
    unsafe fn wire<Q: Quantizer, const SMALL: bool>(self, p: &DecodeParams, b: &Buffers, place: Place) -> [f32; 2] {
        let part = place.lane % 4;
        let element = if SMALL { self.unit * UNIT as u32 + part * (UNIT / PARTS) as u32 } else { part * UNIT as u32 };
        // A batch may be short: its last payload stands in.
        let payload = (self.batch + place.lane / 4).min(p.payloads - 1);
        // SAFETY: the kernel's contract covers the scalars.
        unsafe { wire::<Q>(p, b, place.first + element, payload) }
    }

    /// The decoders of the turn, if `fresh` are its lanes' scalars.
    ///
    /// # Safety
    /// All lanes of the warp arrive together.
    #[inline(always)]
    unsafe fn decoders<Q: Quantizer>(self, p: &DecodeParams, place: Place, fresh: [f32; 2]) -> Decoders<Q> {
        // SAFETY: the caller brings all lanes here.
        let Decoders { own, plain } = unsafe { Decoders::<Q>::new(p, fresh) };
        // Payloads that stand in are worth nothing: a finite weight times zero, which changes no sum that began with
        // +0.
        let there = place.lane / 4 < self.left(p);
        let own = own.handed_on(|word| if there { word } else { 0 });
        Decoders { own, plain: plain && p.weight().is_finite() }
    }

    /// Loads this lane's codes of four payloads. After the last, that one's stand in.
    ///
    /// # Safety
    /// As the kernels ask; there is such a turn.
    #[inline(always)]
    unsafe fn load<const FIRST: u32>(self, p: &DecodeParams, b: &Buffers, place: Place, raw: &mut [u32; 8]) {
        let at = unit_codes(p, b, place, place.first / UNIT as u32 + self.unit, self.batch);
        for k in FIRST..FIRST + BATCH / 2 {
            // In bytes, so that an instruction makes the address.
            let payload = u64::from((4 * k).min(4 * (self.left(p) - 1))) * u64::from(p.code_stride);
            // SAFETY: the unit has an element, so its codes are in every payload.
            raw[k as usize] = unsafe { *at.wrapping_byte_add(payload as usize) };
        }
    }

    /// Adds half of the turn's payloads to `values`.
    ///
    /// # Safety
    /// All lanes of the warp arrive together; the decoders are plain.
    #[inline(always)]
    unsafe fn add<Q: Quantizer, const SMALL: bool, const FIRST: u32>(
        self,
        p: &DecodeParams,
        lane: u32,
        decoders: &Decoders<Q>,
        raw: &[u32; BATCH as usize],
        values: &mut [f32; SLOTS],
    ) {
        // A table has the values of two decoders, one above the other: of two payloads, or of two parts.
        let high = lane / (1 << BITS);
        for pair in FIRST / 2..FIRST / 2 + BATCH / 4 {
            if !SMALL {
                // SAFETY: the caller brings all lanes here.
                let table = unsafe { decoders.table::<true, true>(p, lane, self.unit + 8 * pair + 4 * high) };
                // SAFETY: as above.
                unsafe {
                    look_up([table; 2], raw[2 * pair as usize], 0, values);
                    look_up([table; 2], raw[2 * pair as usize + 1], 0x1010_1010, values);
                }
                continue;
            }
            for k in 2 * pair..2 * pair + 2 {
                // SAFETY: as above.
                unsafe {
                    let tables = [0, 2].map(|part| decoders.table::<true, true>(p, lane, 4 * k + part + high));
                    look_up(tables, raw[k as usize], 0x1000_1000, values);
                }
            }
        }
    }
}

/// Adds what this lane's codes stand for: those of the first four slots in the first table, of the others in the
/// second. `above` has, in the bit above each code, which half of the table it is.
///
/// # Safety
/// All lanes of the warp arrive together.
#[inline(always)]
unsafe fn look_up(tables: [f32; 2], raw: u32, above: u32, values: &mut [f32; SLOTS]) {
    const CODES: u32 = 0x0f0f_0f0f;
    let words = [raw & CODES | above, raw >> BITS & CODES | above];
    for slot in 0..SLOTS {
        // SAFETY: the caller brings all lanes here.
        let term = unsafe { device::shuffle(tables[slot / 4].to_bits(), words[slot % 2] >> (slot / 2 * 8)) };
        values[slot] += f32::from_bits(term);
    }
}

/// Decodes the sum of several payloads: a unit after the other, with the next one's codes on their way meanwhile.
///
/// # Safety
/// As [`one`](super::one).
#[inline(always)]
pub(super) unsafe fn sum<Q: Quantizer, const SMALL: bool>(p: &DecodeParams, b: &Buffers, place: Place) {
    const HALF: u32 = BATCH / 2;
    let units = ((p.n - 1 - place.first) / UNIT as u32 + 1).min(UNITS as u32);
    // With one batch, the lanes have the decoders of all four units.
    let anew = SMALL || p.payloads > BATCH;
    let mut turn = Turn { unit: 0, batch: 0 };
    let mut raw = [0; BATCH as usize];
    // SAFETY: the kernel's contract covers the codes.
    unsafe {
        turn.load::<0>(p, b, place, &mut raw);
        if HALF < turn.left(p) {
            turn.load::<HALF>(p, b, place, &mut raw);
        }
    }
    // SAFETY: as above, of the scalars; all lanes are here.
    let mut decoders: Decoders<Q> = unsafe { turn.decoders(p, place, turn.wire::<Q, SMALL>(p, b, place)) };
    let mut values = [0.0; SLOTS];
    // What decides where the loop goes is the same in all lanes.
    loop {
        let last = turn.left(p) <= BATCH;
        let next = if last {
            Turn { unit: turn.unit + 1, batch: 0 }
        } else {
            Turn { unit: turn.unit, batch: turn.batch + BATCH }
        };
        let more = next.unit < units;
        let mut fresh = [0.0; 2];
        // SAFETY: the kernel's contract covers scalars and codes; all lanes are here.
        unsafe {
            if anew && more {
                fresh = next.wire::<Q, SMALL>(p, b, place);
            }
            if decoders.plain {
                turn.add::<Q, SMALL, 0>(p, place.lane, &decoders, &raw, &mut values);
                if more {
                    next.load::<0>(p, b, place, &mut raw);
                }
                if HALF < turn.left(p) {
                    turn.add::<Q, SMALL, HALF>(p, place.lane, &decoders, &raw, &mut values);
                }
                if more && HALF < next.left(p) {
                    next.load::<HALF>(p, b, place, &mut raw);
                }
            } else {
                // Read once more, because all that it takes would wait in registers.
                let decoders =
                    Decoders::<Q> { own: Q::decoder(turn.wire::<Q, SMALL>(p, b, place), p.levels), plain: false };
                for k in 0..BATCH {
                    if k < turn.left(p) {
                        let from = if SMALL { k } else { k * UNITS as u32 + turn.unit };
                        let terms = decoders.unit::<true, SMALL, false>(p, place.lane, from, raw[k as usize]);
                        for slot in 0..SLOTS {
                            values[slot] += terms[slot];
                        }
                    }
                }
                if more {
                    next.load::<0>(p, b, place, &mut raw);
                    if HALF < next.left(p) {
                        next.load::<HALF>(p, b, place, &mut raw);
                    }
                }
            }
        }
        if last {
            let element = place.element(turn.unit as usize, 0);
            let (output, left) = (b.output.wrapping_add(element as usize), p.n.saturating_sub(element));
            for slot in 0..SLOTS {
                if left > behind(0, slot) as u32 {
                    // A NaN stays one through a sum, so that one look at the end is enough.
                    // SAFETY: the element is there, and no other lane's.
                    unsafe { *output.wrapping_add(behind(0, slot)) = of_sum(values[slot]) };
                }
                values[slot] = 0.0;
            }
        }
        if !more {
            return;
        }
        turn = next;
        if anew {
            // SAFETY: all lanes are here.
            decoders = unsafe { turn.decoders(p, place, fresh) };
        }
    }
}
