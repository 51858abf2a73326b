//! What a warp of an encode kernel works on: four units, 32 values a lane, in registers.

use crate::arith::float::bf16_to_f32;
use crate::arith::pack::{LANES, SLOTS, UNIT};
use crate::device;
use crate::params::{EncodeParams, SPAN, dtype, encode_flags, item};

/// Units of a warp.
pub(super) const UNITS: usize = 4;
/// Elements of a warp.
pub(super) const WARP_SPAN: u32 = (UNITS * UNIT) as u32;

/// The bits of a lane's values: `tile[u][j]` is slot `j` of unit `u` of the warp.
pub(super) type Tile = [[u32; SLOTS]; UNITS];

/// The buffers of the scan, statistics, combine and encode kernels, in the order in which kernels take them.
#[derive(Clone, Copy)]
pub(super) struct Buffers {
    /// The gradient, in its own type.
    pub(super) input: *const u8,
    /// The residual.
    pub(super) residual: *mut f32,
    /// The wire's scalars.
    pub(super) scalars: *mut u32,
    /// The wire's codes.
    pub(super) codes: *mut u8,
    /// Scratch between passes.
    pub(super) workspace: *mut u32,
    /// What went wrong.
    pub(super) status: *mut u32,
}

/// Where a thread of an encode kernel stands.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Lane of the warp.
    pub(super) lane: u32,
    /// Warp of the block.
    pub(super) warp: u32,
    /// Index, in the launch, of the warp's first element.
    pub(super) first: u32,
}

impl Place {
    /// This thread's.
    #[inline(always)]
    pub(super) fn here() -> Self {
        Self::in_span(device::block())
    }

    /// This thread's, of a block that works on that span of what it is given.
    #[inline(always)]
    pub(super) fn in_span(span: u32) -> Self {
        let (lane, warp) = (device::thread() % device::WARP, device::thread() / device::WARP);
        Self { lane, warp, first: span * SPAN + warp * WARP_SPAN }
    }

    /// Index, in the launch, of the first element of a unit of the warp.
    #[inline(always)]
    pub(super) fn unit(&self, unit: usize) -> u32 {
        self.first + (unit * UNIT) as u32
    }

    /// Index, in the launch, of this lane's element in a slot of a unit of the warp.
    #[inline(always)]
    pub(super) fn element(&self, unit: usize, slot: usize) -> u32 {
        self.unit(unit) + (slot * LANES) as u32 + self.lane
    }

    /// What is left of the launch from this lane's first element of a unit on, if no more than the unit; a slot whose
    /// elements lie `32 * slot` after it is there if that is less.
    #[inline(always)]
    pub(super) fn left(&self, unit: usize, n: u32) -> i32 {
        n.saturating_sub(self.unit(unit)).min(UNIT as u32) as i32 - self.lane as i32
    }

    /// Whether all elements of the warp are there. The same in all lanes.
    #[inline(always)]
    pub(super) fn is_full(&self, n: u32) -> bool {
        // No sum that could wrap: `n` goes up to 2^31, and so does `first`.
        self.first + WARP_SPAN <= n
    }

    /// Whether no element of the warp is there. The same in all lanes.
    #[inline(always)]
    pub(super) fn is_empty(&self, n: u32) -> bool {
        self.first >= n
    }
}

/// What this block of a segments kernel works on: the parameters and the buffers of a launch over its item alone.
///
/// # Safety
/// `b.workspace` is the table, with an item for each block of the launch; the other buffers hold what the item says.
#[inline(always)]
pub(super) unsafe fn of_item(p: &EncodeParams, b: &Buffers) -> (EncodeParams, Buffers) {
    // SAFETY: the caller has an item for each block, and the words in front.
    let word = |index: u32| unsafe { *b.workspace.add(index as usize) };
    let at = item::HEADER + (p.partials + device::block()) * item::WORDS;
    let start = word(at + item::START) as usize;
    let (low, carry) = p.step[0].overflowing_add(word(item::STEP));
    let p = EncodeParams {
        n: word(at + item::ELEMENTS),
        first_unit: word(at + item::FIRST_UNIT),
        tensor: p.tensor.wrapping_add(word(at + item::TENSOR)),
        step: [low, p.step[1].wrapping_add(word(item::STEP + 1)).wrapping_add(carry.into())],
        beta: word(at + item::BETA),
        base: p.base + start as u32,
        ..*p
    };
    let size = if p.dtype == dtype::F32 { 4 } else { 2 };
    let b = Buffers {
        // Some of them are null where the launch does not use them, and then no element of them is looked at.
        input: b.input.wrapping_add(start * size),
        residual: b.residual.wrapping_add(start),
        scalars: b.scalars.wrapping_add(word(at + item::SCALARS) as usize),
        codes: b.codes.wrapping_add(word(at + item::CODES) as usize * 4),
        ..*b
    };
    (p, b)
}

/// The warp's values: gradient, or gradient + residual, as f32.
///
/// After the last element of the launch lie zeros, or, with `PAD_WITH_LAST` and in the warp that has it, copies of the
/// last element: values that lie in the last bucket's range.
///
/// # Safety
/// `input` and, with feedback, `residual` hold `p.n` elements, at least one, each aligned to its type's size. All lanes
/// of the warp arrive together.
#[inline(always)]
pub(super) unsafe fn load<const PAD_WITH_LAST: bool>(p: &EncodeParams, b: &Buffers, place: Place) -> Tile {
    let start = place.element(0, 0);
    if place.is_full(p.n) {
        // SAFETY: every element of a full warp is below `p.n`.
        return unsafe { gather(p, b, start, |start, k| start as usize + k) };
    }
    let last = p.n - 1;
    let mut tile = [[0; SLOTS]; UNITS];
    if start <= last {
        // A lane reads no element but its own: with feedback, whoever has the element writes its residual meanwhile.
        let own_last = last - (last - start) % LANES as u32;
        // SAFETY: no index passes the last element's.
        tile = unsafe { gather(p, b, start, |start, k| (start + k as u32).min(own_last) as usize) };
    }
    let mut pad = 0;
    if PAD_WITH_LAST {
        // The lane that has the last element has it in its last slot as well.
        // SAFETY: whether a warp is full is the same in all lanes, so all are here.
        pad = unsafe { device::shuffle(tile[UNITS - 1][SLOTS - 1], last.wrapping_sub(place.first)) };
    }
    for unit in 0..UNITS {
        for slot in 0..SLOTS {
            if place.element(unit, slot) > last {
                tile[unit][slot] = pad;
            }
        }
    }
    tile
}

/// The values at `index(start, k)`, where `start` is this lane's first element and `k` what another lies after it.
///
/// # Safety
/// As [`load`], and every index is below `p.n`.
#[inline(always)]
unsafe fn gather(p: &EncodeParams, b: &Buffers, start: u32, index: impl Fn(u32, usize) -> usize) -> Tile {
    // All loads of the gradient stand before the first use of one, so that they are in flight together.
    let mut tile = if p.dtype == dtype::F32 {
        // SAFETY: the caller keeps the indices below the length.
        map_tile(|k| unsafe { *b.input.cast::<u32>().add(index(start, k)) })
    } else {
        // SAFETY: the caller keeps the indices below the length.
        let raw = map_tile(|k| u32::from(unsafe { *b.input.cast::<u16>().add(index(start, k)) }));
        if p.dtype == dtype::F16 {
            map(raw, |h| device::half_to_f32(h as u16).to_bits())
        } else {
            map(raw, |h| bf16_to_f32(h as u16).to_bits())
        }
    };
    if p.has(encode_flags::FEEDBACK) {
        // Indices are made anew: 32 of them would wait in registers for the gradient.
        let start = device::opaque(start);
        for unit in 0..UNITS {
            let mut residual = [0.0; SLOTS];
            for slot in 0..SLOTS {
                // SAFETY: the caller keeps the indices below the length.
                residual[slot] = unsafe { *b.residual.add(index(start, unit * UNIT + slot * LANES)) };
            }
            for slot in 0..SLOTS {
                tile[unit][slot] = (f32::from_bits(tile[unit][slot]) + residual[slot]).to_bits();
            }
        }
    }
    tile
}

#[inline(always)]
fn map_tile(of: impl Fn(usize) -> u32) -> Tile {
    let mut tile = [[0; SLOTS]; UNITS];
    for unit in 0..UNITS {
        for slot in 0..SLOTS {
            tile[unit][slot] = of(unit * UNIT + slot * LANES);
        }
    }
    tile
}

#[inline(always)]
fn map(mut tile: Tile, of: impl Fn(u32) -> u32) -> Tile {
    for row in &mut tile {
        for value in row {
            *value = of(*value);
        }
    }
    tile
}
