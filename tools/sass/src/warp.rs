//! A warp's registers, and how operands are read from them.

use std::sync::Arc;

use super::inst::{Arg, Part, RZ};

/// Lanes of a warp.
pub(super) const LANES: usize = 32;

/// Constant banks of a launch.
pub(super) type Banks = Vec<Vec<u8>>;

/// What a warp has.
pub(super) struct Warp {
    regs: Vec<[u32; LANES]>,
    uniform: [u32; 256],
    /// A bit a lane; number 7 is true.
    pub(super) preds: [u32; 8],
    pub(super) uniform_preds: [bool; 8],
    pub(super) banks: Arc<Banks>,
    /// The warp's number in its block, and the block's in the grid.
    pub(super) number: u32,
    pub(super) block: u32,
}

/// Lanes of a mask, in order.
pub(super) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 == 1)
}

impl Warp {
    pub(super) fn new(banks: Arc<Banks>, block: u32, number: u32) -> Self {
        let mut warp = Self {
            regs: vec![[0; LANES]; 256],
            uniform: [0; 256],
            preds: [0; 8],
            uniform_preds: [false; 8],
            banks,
            number,
            block,
        };
        (warp.preds[7], warp.uniform_preds[7]) = (!0, true);
        warp
    }

    /// A register of a lane.
    pub(super) fn reg(&self, number: u8, lane: usize) -> u32 {
        if number == RZ { 0 } else { self.regs[usize::from(number)][lane] }
    }

    /// A pair of them.
    pub(super) fn pair(&self, number: u8, lane: usize) -> u64 {
        if number == RZ { 0 } else { u64::from(self.reg(number, lane)) | u64::from(self.reg(number + 1, lane)) << 32 }
    }

    /// A register of the warp.
    pub(super) fn ureg(&self, number: u8) -> u32 {
        if number == RZ { 0 } else { self.uniform[usize::from(number)] }
    }

    pub(super) fn set_reg(&mut self, number: u8, lane: usize, value: u32) {
        if number != RZ {
            self.regs[usize::from(number)][lane] = value;
        }
    }

    pub(super) fn set_ureg(&mut self, number: u8, value: u32) {
        if number != RZ {
            self.uniform[usize::from(number)] = value;
        }
    }

    /// The lanes for which a predicate holds.
    pub(super) fn pred(&self, (number, uniform, inverted): (u8, bool, bool)) -> u32 {
        let mask = match uniform {
            true => 0u32.wrapping_sub(u32::from(self.uniform_preds[usize::from(number)])),
            false => self.preds[usize::from(number)],
        };
        if inverted { !mask } else { mask }
    }

    /// Writes a predicate for the lanes of a mask.
    pub(super) fn set_pred(&mut self, (number, uniform): (u8, bool), values: u32, mask: u32) {
        match (number, uniform) {
            (7, _) => {}
            (_, true) => self.uniform_preds[usize::from(number)] = values & mask != 0,
            (_, false) => {
                let old = &mut self.preds[usize::from(number)];
                *old = *old & !mask | values & mask;
            }
        }
    }

    fn constant(&self, bank: u32, at: usize) -> u32 {
        let bytes = self.banks.get(bank as usize).and_then(|bank| bank.get(at..at + 4));
        bytes.and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
    }
}

/// Where an operand's value is, read for one lane.
#[derive(Clone, Debug)]
pub(super) struct Source {
    place: Place,
    negative: bool,
    absolute: bool,
    inverted: bool,
    part: Part,
}

#[derive(Clone, Debug)]
enum Place {
    Lane(u8),
    Uniform(u8),
    Value(u32),
    Constant(u32, Option<(u8, bool)>, i32),
}

impl Source {
    /// Of an operand; none for what is no value.
    pub(super) fn of(arg: &Arg) -> Option<Self> {
        let plain = |place| Self { place, negative: false, absolute: false, inverted: false, part: Part::Whole };
        Some(match *arg {
            Arg::Reg { number, uniform, negative, absolute, inverted, part } => {
                let place = if uniform { Place::Uniform(number) } else { Place::Lane(number) };
                Self { place, negative, absolute, inverted, part }
            }
            Arg::Number(value) => plain(Place::Value(value)),
            Arg::Constant { bank, register, offset, negative, absolute } => {
                Self { negative, absolute, ..plain(Place::Constant(bank, register, offset)) }
            }
            _ => return None,
        })
    }

    pub(super) fn is_negative(&self) -> bool {
        self.negative
    }

    /// The bits, without the signs that are asked for.
    fn bits(&self, w: &Warp, lane: usize) -> u32 {
        let whole = match self.place {
            Place::Lane(number) => w.reg(number, lane),
            Place::Uniform(number) => w.ureg(number),
            Place::Value(value) => value,
            Place::Constant(bank, register, offset) => w.constant(bank, place(w, lane, register, offset)),
        };
        match self.part {
            Part::Whole => whole,
            Part::Half(number) => whole >> (16 * number) & 0xffff,
            Part::Byte(number) => whole >> (8 * number) & 0xff,
        }
    }

    /// As an integer.
    pub(super) fn int(&self, w: &Warp, lane: usize) -> u32 {
        let bits = self.bits(w, lane);
        let bits = if self.inverted { !bits } else { bits };
        if self.negative { bits.wrapping_neg() } else { bits }
    }

    /// As an integer that is added: a negative one as its complement and one, whose sum may be 2^32.
    pub(super) fn addend(&self, w: &Warp, lane: usize) -> u64 {
        let bits = self.bits(w, lane);
        let bits = if self.inverted { !bits } else { bits };
        if self.negative { u64::from(!bits) + 1 } else { u64::from(bits) }
    }

    /// As 64 bits of an integer.
    pub(super) fn long(&self, w: &Warp, lane: usize) -> u64 {
        let bits = match self.place {
            Place::Lane(number) => w.pair(number, lane),
            Place::Uniform(RZ) => 0,
            Place::Uniform(number) => u64::from(w.ureg(number)) | u64::from(w.ureg(number + 1)) << 32,
            Place::Value(value) => u64::from(value),
            Place::Constant(bank, register, offset) => {
                let at = place(w, lane, register, offset);
                u64::from(w.constant(bank, at)) | u64::from(w.constant(bank, at + 4)) << 32
            }
        };
        if self.negative { bits.wrapping_neg() } else { bits }
    }

    /// As 64 bits that are added: a negative number as its complement and one.
    pub(super) fn wide_addend(&self, w: &Warp, lane: usize) -> u128 {
        let bits = match self.place {
            // A number of the instruction's has 32 bits and a sign.
            Place::Value(value) => i64::from(value as i32) as u64,
            _ => Self { negative: false, ..self.clone() }.long(w, lane),
        };
        let bits = if self.inverted { !bits } else { bits };
        if self.negative { u128::from(!bits) + 1 } else { u128::from(bits) }
    }

    /// The constant so many bytes further on; none for what is no constant.
    pub(super) fn further(&self, bytes: i32) -> Option<Self> {
        match self.place {
            Place::Constant(bank, register, offset) => {
                Some(Self { place: Place::Constant(bank, register, offset + bytes), ..self.clone() })
            }
            _ => None,
        }
    }

    /// The bits of a binary32 with its sign.
    pub(super) fn signed(&self, w: &Warp, lane: usize) -> u32 {
        let bits = self.bits(w, lane);
        let bits = if self.absolute { bits & 0x7fff_ffff } else { bits };
        if self.negative { bits ^ 0x8000_0000 } else { bits }
    }

    /// As binary32.
    pub(super) fn float(&self, w: &Warp, lane: usize) -> f32 {
        f32::from_bits(self.signed(w, lane))
    }

    /// As binary16, of which a float is made.
    pub(super) fn half(&self, w: &Warp, lane: usize) -> f32 {
        let value = f32::from(half::f16::from_bits(self.bits(w, lane) as u16));
        let value = if self.absolute { value.abs() } else { value };
        if self.negative { -value } else { value }
    }

    /// As binary64. A number of the instruction's is its upper half.
    pub(super) fn double(&self, w: &Warp, lane: usize) -> f64 {
        let value = match self.place {
            Place::Value(value) => f64::from_bits(u64::from(value) << 32),
            _ => f64::from_bits(Self { negative: false, ..self.clone() }.long(w, lane)),
        };
        let value = if self.absolute { value.abs() } else { value };
        if self.negative { -value } else { value }
    }
}

/// Where in a constant bank a lane reads.
fn place(w: &Warp, lane: usize, register: Option<(u8, bool)>, offset: i32) -> usize {
    let base = register.map_or(0, |(number, uniform)| if uniform { w.ureg(number) } else { w.reg(number, lane) });
    base.wrapping_add_signed(offset) as usize
}
