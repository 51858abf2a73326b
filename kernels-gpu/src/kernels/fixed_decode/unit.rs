//! A warp's units, and the decoders of their codes.

use crate::arith::pack::{LANES, SLOTS, UNIT, unit_bytes};
use crate::arith::quantizer::Quantizer;
use crate::device;
use crate::kernels::decode::Buffers;
use crate::kernels::quantizer::of_lane;
use crate::params::DecodeParams;
use crate::presets::decode::BITS;

/// Payloads whose codes are on their way at a time: with four units, or four parts of one, each lane has one decoder.
pub(super) const BATCH: u32 = 8;
/// Parts of a unit that have a decoder each, if buckets are small.
pub(super) const PARTS: usize = 4;

/// A thread's lane and its warp's first element, which do not change while it works.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Lane of the warp.
    pub(super) lane: u32,
    /// Index, in the launch, of the warp's first element.
    pub(super) first: u32,
}

impl Place {
    /// Index, in the launch, of this lane's element in a slot of a unit of the warp.
    #[inline(always)]
    pub(super) fn element(&self, unit: usize, slot: usize) -> u32 {
        self.first + behind(unit, slot) as u32 + self.lane
    }
}

/// Elements from a lane's first one to that in a slot of a unit of the warp. Added to an address it takes no
/// instruction.
#[inline(always)]
pub(super) fn behind(unit: usize, slot: usize) -> usize {
    unit * UNIT + slot * LANES
}

/// The scalars of the bucket that has an element, of a payload.
///
/// # Safety
/// As the kernels ask; there is such a payload.
#[inline(always)]
pub(super) unsafe fn wire<Q: Quantizer>(p: &DecodeParams, b: &Buffers, element: u32, payload: u32) -> [f32; 2] {
    // A part without an element may lie in a bucket without scalars: the last one's stand in.
    let bucket = (element.min(p.n - 1) >> p.bucket_log2) as usize;
    let mut wire = [0.0; 2];
    for scalar in 0..Q::SCALARS {
        let index = payload as usize * p.scalar_stride as usize + bucket * Q::SCALARS + scalar;
        // SAFETY: the bucket has an element, so its scalars are in every payload.
        wire[scalar] = f32::from_bits(unsafe { *b.scalars.add(index) });
    }
    wire
}

/// Where this lane's codes are: of a unit of the launch, of a payload.
#[inline(always)]
pub(super) fn unit_codes(p: &DecodeParams, b: &Buffers, place: Place, unit: u32, payload: u32) -> *const u32 {
    let start = b.codes.cast::<u32>().wrapping_add(payload as usize * p.code_stride as usize);
    start.wrapping_add(unit as usize * (unit_bytes(BITS) / 4) + place.lane as usize)
}

/// The decoders that the lanes of a warp have.
pub(super) struct Decoders<Q: Quantizer> {
    /// This lane's.
    pub(super) own: Q::Decoder,
    /// Whether all are plain. The same in all lanes.
    pub(super) plain: bool,
}

impl<Q: Quantizer> Decoders<Q> {
    /// # Safety
    /// All lanes of the warp arrive together.
    #[inline(always)]
    pub(super) unsafe fn new(p: &DecodeParams, wire: [f32; 2]) -> Self {
        let own = Q::decoder(wire, p.levels);
        // SAFETY: the caller brings all lanes here.
        let plain = unsafe { device::ballot(Q::plain_decoder(&own).is_none()) } == 0;
        Self { own, plain }
    }

    /// The value of this lane's code by the decoder of lane `from`, times the weight if there is one. With `PLAIN` all
    /// decoders are plain.
    ///
    /// # Safety
    /// All lanes of the warp arrive together.
    #[inline(always)]
    pub(super) unsafe fn table<const WEIGHTED: bool, const PLAIN: bool>(
        &self,
        p: &DecodeParams,
        lane: u32,
        from: u32,
    ) -> f32 {
        let decoder = if PLAIN {
            // SAFETY: the caller brings all lanes here.
            Q::plain_handed_on(&self.own, |word| unsafe { device::shuffle(word, from) })
        } else {
            // SAFETY: as above.
            unsafe { of_lane(&self.own, from) }
        };
        let value = Q::value(&decoder, BITS, p.levels, lane & ((1 << BITS) - 1));
        if WEIGHTED { p.weight() * value } else { value }
    }

    /// The values of this lane's codes of a unit.
    ///
    /// # Safety
    /// As [`Decoders::table`], with the same `unit` in all lanes.
    #[inline(always)]
    pub(super) unsafe fn unit<const WEIGHTED: bool, const SMALL: bool, const PLAIN: bool>(
        &self,
        p: &DecodeParams,
        lane: u32,
        unit: u32,
        raw: u32,
    ) -> [f32; SLOTS] {
        let parts = if SMALL { PARTS } else { 1 };
        let (mut table, mut values) = (0.0, [0.0; SLOTS]);
        for slot in 0..SLOTS {
            if slot % (SLOTS / parts) == 0 {
                let from = unit * parts as u32 + (slot / (SLOTS / parts)) as u32;
                // SAFETY: the caller brings all lanes here.
                table = unsafe { self.table::<WEIGHTED, PLAIN>(p, lane, from) };
            }
            // SAFETY: as above.
            values[slot] = f32::from_bits(unsafe { device::shuffle(table.to_bits(), raw >> (slot as u32 * BITS)) });
        }
        values
    }

    /// The same of one payload, whatever the decoders are.
    ///
    /// # Safety
    /// As [`Decoders::unit`].
    #[inline(always)]
    pub(super) unsafe fn decode<const WEIGHTED: bool, const SMALL: bool>(
        &self,
        p: &DecodeParams,
        lane: u32,
        unit: u32,
        raw: u32,
    ) -> [f32; SLOTS] {
        // SAFETY: the caller brings all lanes here, and whether decoders are plain is the same in each.
        unsafe {
            if self.plain {
                self.unit::<WEIGHTED, SMALL, true>(p, lane, unit, raw)
            } else {
                self.unit::<WEIGHTED, SMALL, false>(p, lane, unit, raw)
            }
        }
    }
}
