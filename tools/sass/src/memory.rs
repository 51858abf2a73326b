//! Memory: what the host allocated, and a block's own; loads, stores and atomic operations.

use super::error::SassError;
use super::inst::{Arg, Inst, RZ};
use super::warp::{LANES, Warp, lanes};

/// Address bits within an allocation, so that an address tells which one it is in.
const BITS: u32 = 34;
/// Bytes in which DRAM is read.
pub(super) const SECTOR: u64 = 32;

/// Device memory.
#[derive(Default)]
pub(super) struct Global {
    buffers: Vec<Option<Buffer>>,
    /// The launch that runs, and the block's number and one, by which a sector that was touched is known.
    pub(super) launch: u32,
    pub(super) block: u32,
}

struct Buffer {
    bytes: Vec<u8>,
    /// The last launch and block that touched each sector.
    touched: Vec<(u32, u32)>,
    /// The last launch that wrote each sector.
    written: Vec<u32>,
}

impl Global {
    pub(super) fn allocate(&mut self, bytes: usize) -> u64 {
        if self.buffers.is_empty() {
            // Address zero is no memory.
            self.buffers.push(None);
        }
        let sectors = bytes.div_ceil(SECTOR as usize);
        let (touched, written) = (vec![(0, 0); sectors], vec![0; sectors]);
        self.buffers.push(Some(Buffer { bytes: vec![0; bytes], touched, written }));
        (self.buffers.len() as u64 - 1) << BITS
    }

    pub(super) fn free(&mut self, address: u64) {
        if let Some(buffer) = self.buffers.get_mut((address >> BITS) as usize) {
            *buffer = None;
        }
    }

    /// The allocation that an address is in, and the offset there.
    fn at(&mut self, address: u64) -> Option<(&mut Buffer, usize)> {
        let buffer = self.buffers.get_mut(usize::try_from(address >> BITS).ok()?)?.as_mut()?;
        Some((buffer, (address & ((1 << BITS) - 1)) as usize))
    }

    /// Bytes from an address on.
    pub(super) fn bytes(&mut self, address: u64, count: usize) -> Option<&mut [u8]> {
        let (buffer, offset) = self.at(address)?;
        buffer.bytes.get_mut(offset..offset.checked_add(count)?)
    }

    /// Bytes from an address to the end of its allocation.
    pub(super) fn left(&mut self, address: u64) -> Option<usize> {
        let (buffer, offset) = self.at(address)?;
        buffer.bytes.len().checked_sub(offset)
    }

    /// Marks a sector as touched, and tells which launch and block touched it before; of one that is written, which
    /// launch wrote it.
    fn touch(&mut self, sector: u64, writes: bool) -> (u32, u32) {
        let now = (self.launch, self.block);
        let Some((buffer, offset)) = self.at(sector * SECTOR) else { return now };
        let at = offset / SECTOR as usize;
        let (Some(touched), Some(written)) = (buffer.touched.get_mut(at), buffer.written.get_mut(at)) else {
            return now;
        };
        let before = std::mem::replace(touched, now);
        if writes { (std::mem::replace(written, now.0), before.1) } else { before }
    }
}

/// What an instruction does with memory.
#[derive(Clone, Debug)]
pub(super) struct Access {
    shared: bool,
    kind: Kind,
    /// Bytes of a lane.
    bytes: u8,
    signed: bool,
    address: (Option<u8>, Option<u8>, i32),
    /// What the lane's register is multiplied by.
    scale: u8,
    /// What is loaded into, or the value from before.
    target: u8,
    /// What is stored.
    value: Option<u8>,
    /// What is compared with.
    other: Option<u8>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Load,
    Store,
    Atomic(fn(u64, u64, u64) -> u64),
}

/// What an access touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Touched {
    /// Sectors of global memory that this launch touched for the first time; of a store, that it wrote for the first
    /// time.
    pub(super) first: u8,
    /// Sectors that another block of the launch touched last.
    pub(super) others: u8,
    /// All sectors of global memory.
    pub(super) sectors: u8,
    /// Passes over shared memory: one, and one for each further word of a bank.
    pub(super) passes: u8,
}

impl Access {
    /// The access of an instruction; none for one that is none, or that is not known.
    pub(super) fn of(inst: &Inst) -> Option<Self> {
        let (shared, atomic, store) = match inst.name.as_str() {
            "LDG" | "LD" => (false, false, false),
            "LDS" => (true, false, false),
            "STG" | "ST" => (false, false, true),
            "STS" => (true, false, true),
            "ATOMG" | "ATOM" | "REDG" | "RED" => (false, true, false),
            "ATOMS" => (true, true, false),
            _ => return None,
        };
        let sized = |name: &str| match name {
            "U8" | "S8" => Some(1),
            "U16" | "S16" => Some(2),
            "64" => Some(8),
            "128" => Some(16),
            _ => None,
        };
        let bytes = inst.modifiers.iter().find_map(|m| sized(m)).unwrap_or(4);
        let signed = inst.has("S8") || inst.has("S16");
        let address = inst.args.iter().position(|arg| matches!(arg, Arg::Address { .. }))?;
        let Arg::Address { register, scale, uniform, offset } = inst.args[address] else { return None };
        let number = |arg: &Arg| match arg {
            Arg::Reg { number, uniform: false, .. } => Some(*number),
            _ => None,
        };
        let before: Vec<u8> = inst.args[..address].iter().filter_map(number).collect();
        let behind: Vec<u8> = inst.args[address + 1..].iter().filter_map(number).collect();
        let kind = match (atomic, store) {
            (false, false) => Kind::Load,
            (false, true) => Kind::Store,
            _ => Kind::Atomic(operation(inst)?),
        };
        let (value, other) = match (inst.has("CAS"), behind.as_slice()) {
            (true, [expected, value]) => (Some(*value), Some(*expected)),
            (false, [value]) => (Some(*value), None),
            (false, []) if matches!(kind, Kind::Load) || inst.has("POPC") => (None, None),
            _ => return None,
        };
        let target = before.first().copied().unwrap_or(RZ);
        Some(Self { shared, kind, bytes, signed, address: (register, uniform, offset), scale, target, value, other })
    }

    pub(super) fn is_load(&self) -> bool {
        matches!(self.kind, Kind::Load)
    }

    pub(super) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Bytes of a lane.
    pub(super) fn bytes(&self) -> u32 {
        u32::from(self.bytes)
    }

    fn address(&self, w: &Warp, lane: usize) -> u64 {
        let (register, uniform, offset) = self.address;
        if self.shared {
            let of_lane = register.map_or(0, |r| w.reg(r, lane)).wrapping_mul(self.scale.into());
            let base = of_lane.wrapping_add(uniform.map_or(0, |r| w.ureg(r)));
            return u64::from(base.wrapping_add_signed(offset));
        }
        let of_warp = |r: u8| u64::from(w.ureg(r)) | if r == RZ { 0 } else { u64::from(w.ureg(r + 1)) << 32 };
        let base = register.map_or(0, |r| w.pair(r, lane)).wrapping_add(uniform.map_or(0, of_warp));
        base.wrapping_add_signed(i64::from(offset))
    }

    /// Does it for the lanes of a mask.
    pub(super) fn run(
        &self,
        w: &mut Warp,
        mask: u32,
        shared: &mut [u8],
        global: &mut Global,
    ) -> Result<Touched, SassError> {
        let mut addresses = [0u64; LANES];
        for lane in lanes(mask) {
            addresses[lane] = self.address(w, lane);
        }
        for lane in lanes(mask) {
            let (address, count) = (addresses[lane], usize::from(self.bytes));
            let place = match self.shared {
                true => shared.get_mut(address as usize..address as usize + count),
                false => global.bytes(address, count),
            };
            let outside = SassError::OutOfBounds { address, bytes: self.bytes.into(), shared: self.shared };
            let place = place.filter(|_| address.is_multiple_of(count as u64)).ok_or(outside)?;
            self.run_lane(w, lane, place);
        }
        Ok(if self.shared { passes(mask, &addresses, self.bytes) } else { sectors(mask, &addresses, self, global) })
    }

    fn run_lane(&self, w: &mut Warp, lane: usize, place: &mut [u8]) {
        let register = |r: u8, i: u8| if r == RZ { RZ } else { r + i };
        let words = self.bytes.div_ceil(4);
        let value = |w: &Warp, r: Option<u8>| {
            let r = r.unwrap_or(RZ);
            u64::from(w.reg(r, lane)) | if words == 2 { u64::from(w.reg(register(r, 1), lane)) << 32 } else { 0 }
        };
        match self.kind {
            Kind::Store => {
                for (i, part) in (0..).zip(place.chunks_mut(4)) {
                    let word = w.reg(register(self.value.unwrap_or(RZ), i), lane).to_le_bytes();
                    part.copy_from_slice(&word[..part.len()]);
                }
            }
            Kind::Load => {
                for (i, part) in (0..words).zip(place.chunks(4)) {
                    let mut word = [0; 4];
                    word[..part.len()].copy_from_slice(part);
                    let word = u32::from_le_bytes(word);
                    let word = match (self.signed, self.bytes) {
                        (true, 1) => word as u8 as i8 as u32,
                        (true, 2) => word as u16 as i16 as u32,
                        _ => word,
                    };
                    w.set_reg(register(self.target, i), lane, word);
                }
            }
            Kind::Atomic(operation) => {
                let old = place.iter().rev().fold(0, |old, byte| old << 8 | u64::from(*byte));
                let new = operation(old, value(w, self.value), value(w, self.other));
                place.copy_from_slice(&new.to_le_bytes()[..place.len()]);
                for i in 0..words {
                    w.set_reg(register(self.target, i), lane, (old >> (32 * i)) as u32);
                }
            }
        }
    }
}

/// What an atomic operation makes of what is there, of a value, and of what is compared with.
fn operation(inst: &Inst) -> Option<fn(u64, u64, u64) -> u64> {
    let signed = inst.has("S32");
    Some(
        match inst
            .modifiers
            .iter()
            .find(|m| ["ADD", "MAX", "MIN", "OR", "AND", "XOR", "EXCH", "CAS", "POPC"].contains(&m.as_str()))?
            .as_str()
        {
            "ADD" if inst.has("F32") || inst.has("F16x2") => return None,
            "ADD" => |old, value, _| old.wrapping_add(value),
            "MAX" if !signed => |old, value, _| old.max(value),
            "MIN" if !signed => |old, value, _| old.min(value),
            "OR" => |old, value, _| old | value,
            "AND" => |old, value, _| old & value,
            "XOR" => |old, value, _| old ^ value,
            "EXCH" => |_, value, _| value,
            "CAS" => |old, value, expected| if old == expected { value } else { old },
            // Each lane adds one to its address.
            "POPC" => |old, _, _| old.wrapping_add(1),
            _ => return None,
        },
    )
}

/// The sectors that the lanes of an access touch.
fn sectors(mask: u32, addresses: &[u64; LANES], access: &Access, global: &mut Global) -> Touched {
    let mut all: Vec<u64> = lanes(mask)
        .flat_map(|lane| {
            let first = addresses[lane] / SECTOR;
            first..=(addresses[lane] + u64::from(access.bytes) - 1) / SECTOR
        })
        .collect();
    all.sort_unstable();
    all.dedup();
    let now = (global.launch, global.block);
    let mut touched = Touched { sectors: all.len().min(255) as u8, ..Touched::default() };
    for before in all.into_iter().map(|sector| global.touch(sector, !access.is_load())) {
        touched.first += u8::from(before.0 != now.0);
        touched.others += u8::from(before.0 == now.0 && before.1 != now.1);
    }
    touched
}

/// How often shared memory has to be passed over: 32 banks of four bytes, a word of each at a time. Wide accesses are
/// of half or a quarter of the lanes at a time.
fn passes(mask: u32, addresses: &[u64; LANES], bytes: u8) -> Touched {
    let groups = (usize::from(bytes) / 4).max(1);
    let mut passes = 0;
    for group in 0..groups {
        let mut of_bank = [const { Vec::new() }; 32];
        for lane in lanes(mask).filter(|lane| lane * groups / LANES == group) {
            for word in 0..u64::from(bytes.div_ceil(4)) {
                let word = addresses[lane] / 4 + word;
                let bank: &mut Vec<u64> = &mut of_bank[(word % 32) as usize];
                if !bank.contains(&word) {
                    bank.push(word);
                }
            }
        }
        passes += of_bank.iter().map(Vec::len).max().unwrap_or(0);
    }
    Touched { passes: passes.min(255) as u8, ..Touched::default() }
}
