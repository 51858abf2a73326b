//! An access to memory by the lanes of a warp.

use super::Launch;
use crate::count;
use crate::fault::{Space, Violation};
use crate::lower::{Access, AtomicOp, From, Into, Target};
use crate::memory::{BlockOrder, Buffer, Known, Who, window};
use crate::operand::Base;
use crate::warp::{LANES, Warp, lanes};

/// The memory of a block.
pub(super) struct Memory<'a> {
    pub(super) shared: &'a mut Buffer,
    pub(super) locals: &'a mut [Buffer],
    /// Barriers that the block has passed.
    pub(super) epoch: u32,
    /// What it knows of others.
    pub(super) order: &'a mut BlockOrder,
}

/// A fault, and the lane that is at it.
type Accessed = Result<(), (usize, Violation)>;

impl Launch<'_> {
    pub(super) fn access(
        &mut self,
        pc: usize,
        access: &Access,
        warp: &mut Warp,
        mask: u32,
        mut memory: Memory<'_>,
    ) -> Accessed {
        let bytes = access.bytes();
        if let Base::Param(index) = access.base {
            return self.param(index, access, warp, mask);
        }
        let mut at = [0; LANES];
        for lane in lanes(mask) {
            let base = match access.base {
                Base::Narrow(register) => u64::from(warp.narrow[register][lane]),
                Base::Wide(register) => warp.wide[register][lane],
                Base::Symbol(_, at) => at,
                Base::Param(_) => 0,
            };
            at[lane] = base.wrapping_add(access.offset as u64);
        }
        // The space of a generic address is that of its window; lanes need not agree.
        let mut left = mask;
        while left != 0 {
            let (space, group) = match access.space {
                Some(space) => (space, left),
                None => {
                    let first = window_of(at[left.trailing_zeros() as usize]).0;
                    let group = lanes(left).filter(|lane| window_of(at[*lane]).0 == first);
                    (first, group.fold(0, |mask, lane| mask | 1 << lane))
                }
            };
            if access.space.is_none() {
                lanes(group).for_each(|lane| at[lane] -= window_of(at[lane]).1);
            }
            if self.counting {
                self.count(pc, access, space, &at, group, bytes);
            }
            self.lanes(pc, access, space, &at, group, warp, &mut memory)?;
            left &= !group;
        }
        Ok(())
    }

    fn count(&mut self, pc: usize, access: &Access, space: Space, at: &[u64; LANES], mask: u32, bytes: u32) {
        match space {
            Space::Global => {
                let mut one = count::Traffic::default();
                count::global(&mut one, at, mask, bytes);
                self.sites[pc] += one;
                if access.waits() {
                    self.waited.extend(crate::warp::lanes(mask).map(|lane| at[lane]));
                }
                match access.target {
                    Target::Load(_) => self.counts.loads += one,
                    Target::Store(_) => self.counts.stores += one,
                    Target::Atomic { .. } => self.counts.atomics += one,
                }
            }
            Space::Shared => {
                self.counts.shared_requests += 1;
                self.counts.bank_conflicts += count::conflicts(at, mask, bytes);
            }
            Space::Local | Space::Param => {}
        }
    }

    fn param(&self, index: usize, access: &Access, warp: &mut Warp, mask: u32) -> Accessed {
        let param = &self.params[index];
        let (Target::Load(parts), bytes) = (&access.target, access.bytes()) else { return Ok(()) };
        let (space, address) = (Space::Param, access.offset as u64);
        let lane = mask.trailing_zeros() as usize;
        if address & u64::from(bytes - 1) != 0 {
            return Err((lane, Violation::Misaligned { space, address, bytes }));
        }
        let end = address.checked_add(bytes.into()).filter(|end| *end <= param.len() as u64);
        let Some(end) = end else {
            let found = format!("the parameter has {}", param.len());
            return Err((lane, Violation::OutOfBounds { space, address, bytes, found }));
        };
        // The same for all lanes.
        for (into, from) in parts.iter().zip(param[address as usize..end as usize].chunks_exact(access.part as usize)) {
            let value = value_in(access, from);
            match *into {
                Into::Narrow(register) => warp.set(register, [value as u32; LANES], mask),
                Into::Wide(register) => warp.set_wide(register, [value; LANES], mask),
                Into::Nothing => {}
            }
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the two halves of one function, parted for its length")]
    fn lanes(
        &mut self,
        pc: usize,
        access: &Access,
        space: Space,
        at: &[u64; LANES],
        mask: u32,
        warp: &mut Warp,
        memory: &mut Memory<'_>,
    ) -> Accessed {
        let bytes = access.bytes();
        let (reads, writes, atomic) = match access.target {
            Target::Load(_) => (true, false, access.strong),
            Target::Store(_) => (false, true, access.strong),
            Target::Atomic { .. } => (true, true, true),
        };
        let mut now = Who {
            launch: self.number,
            block: warp.place.block,
            epoch: memory.epoch,
            phase: warp.phase,
            line: self.lines_before + self.kernel.sources[pc].line,
            thread: 0,
            atomic,
        };
        let (races, fences) = (self.races, self.kernel.fences);
        if !matches!(access.target, Target::Atomic { .. }) {
            let buffer = match space {
                Space::Global => self.global.of_lanes(at, mask),
                Space::Shared => Some(&mut *memory.shared),
                _ => None,
            };
            // Where an access of a lane is wrong, the lanes go one by one below, which finds the first and what is
            // wrong.
            let checked =
                buffer.and_then(|b| b.check_lanes(at, mask, bytes, reads, writes).map(|offsets| (b, offsets)));
            if let Some((buffer, offsets)) = checked {
                if races {
                    let known = if fences { memory.order.known() } else { Known::NOTHING };
                    buffer.note_lanes(&offsets, mask, bytes, writes, warp.place.first, (now, known))?;
                }
                match &access.target {
                    Target::Load(parts) => load_lanes(access, parts, buffer.all(), &offsets, warp, mask),
                    Target::Store(parts) => store_lanes(access, parts, buffer.all_mut(), &offsets, warp, mask),
                    Target::Atomic { .. } => {}
                }
                if races && fences && matches!(space, Space::Global) && (writes || access.waits()) {
                    for lane in lanes(mask) {
                        let thread = (warp.place.first + lane as u32) as u16;
                        if writes {
                            self.words.write(memory.order, thread, at[lane], atomic, reads);
                        } else {
                            self.words.read(memory.order, thread, at[lane], atomic);
                        }
                    }
                }
                return Ok(());
            }
        }
        // Atomics of one instruction happen in no order that a kernel may count on.
        let first = if matches!(access.target, Target::Atomic { .. }) { self.random.below(LANES) as u32 } else { 0 };
        for lane in lanes(mask.rotate_right(first)).map(|lane| (lane + first as usize) % LANES) {
            now.thread = (warp.place.first + lane as u32) as u16;
            let fail = |what| (lane, what);
            let known = if fences { memory.order.known() } else { Known::NOTHING };
            let who = races.then_some((&now, known));
            let (buffer, who) = match space {
                Space::Global => (self.global.at(at[lane], bytes).map_err(fail)?, who),
                Space::Shared => (&mut *memory.shared, who),
                _ => match memory.locals.get_mut(usize::from(now.thread)) {
                    Some(local) => (local, None),
                    None => {
                        let found = "the kernel has no local memory".to_owned();
                        return Err((lane, Violation::OutOfBounds { space, address: at[lane], bytes, found }));
                    }
                },
            };
            let offset = buffer.check(at[lane], bytes, reads, writes, who).map_err(fail)?;
            if races && fences && matches!(space, Space::Global) {
                // No kernel waits by what an atomic operation reads, and to count it would order pieces of work by the
                // turn in which they happened to be taken.
                if access.waits() {
                    self.words.read(memory.order, now.thread, at[lane], atomic);
                }
                if writes {
                    self.words.write(memory.order, now.thread, at[lane], atomic, reads);
                }
            }
            match &access.target {
                Target::Load(parts) => load(access, parts, buffer.bytes(offset, bytes as usize), warp, lane),
                Target::Store(parts) => {
                    let part = access.part as usize;
                    for (value, to) in parts.iter().zip(buffer.bytes_mut(offset, bytes as usize).chunks_exact_mut(part))
                    {
                        to.copy_from_slice(&value_of(value, warp, lane).to_le_bytes()[..part]);
                    }
                }
                Target::Atomic { old, operands, op } => {
                    let cell = buffer.bytes_mut(offset, bytes as usize);
                    let mut word = [0; 8];
                    word[..cell.len()].copy_from_slice(cell);
                    let before = u64::from_le_bytes(word);
                    let value = |index: usize| operands.get(index).map_or(0, |o| value_of(o, warp, lane));
                    let after = match op {
                        AtomicOp::Fold32(fold) => u64::from(fold(before as u32, value(0) as u32)),
                        AtomicOp::Add64 => before.wrapping_add(value(0)),
                        AtomicOp::Exchange => value(0),
                        AtomicOp::CompareAndSwap => {
                            if before == value(0) {
                                value(1)
                            } else {
                                before
                            }
                        }
                    };
                    let width = cell.len();
                    cell.copy_from_slice(&after.to_le_bytes()[..width]);
                    put(*old, before, warp, lane);
                }
            }
        }
        Ok(())
    }
}

/// The space of a generic address, and where that begins.
fn window_of(address: u64) -> (Space, u64) {
    for (space, base) in [(Space::Shared, window::SHARED), (Space::Local, window::LOCAL)] {
        if address.wrapping_sub(base) < window::BYTES {
            return (space, base);
        }
    }
    (Space::Global, 0)
}

/// Loads each lane's parts, each part of all lanes at a time.
#[inline]
fn load_lanes(access: &Access, parts: &[Into], data: &[u8], offsets: &[usize; LANES], warp: &mut Warp, mask: u32) {
    for (index, into) in parts.iter().enumerate() {
        let within = index * access.part as usize;
        match (access.part, access.signed) {
            (4, _) => load_part(*into, offsets, warp, mask, |at| word::<4>(data, at + within)),
            (8, _) => load_part(*into, offsets, warp, mask, |at| word::<8>(data, at + within)),
            (2, false) => load_part(*into, offsets, warp, mask, |at| word::<2>(data, at + within)),
            (2, true) => load_part(*into, offsets, warp, mask, |at| word::<2>(data, at + within) as i16 as u64),
            (_, false) => load_part(*into, offsets, warp, mask, |at| word::<1>(data, at + within)),
            (_, true) => load_part(*into, offsets, warp, mask, |at| word::<1>(data, at + within) as i8 as u64),
        }
    }
}

#[inline(always)]
fn load_part(into: Into, offsets: &[usize; LANES], warp: &mut Warp, mask: u32, of: impl Fn(usize) -> u64) {
    match into {
        Into::Narrow(register) => {
            let to = &mut warp.narrow[register];
            lanes(mask).for_each(|lane| to[lane] = of(offsets[lane]) as u32);
        }
        Into::Wide(register) => {
            let to = &mut warp.wide[register];
            lanes(mask).for_each(|lane| to[lane] = of(offsets[lane]));
        }
        Into::Nothing => {}
    }
}

#[inline(always)]
fn word<const BYTES: usize>(data: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word[..BYTES].copy_from_slice(&data[at..at + BYTES]);
    u64::from_le_bytes(word)
}

/// Stores each lane's parts, each part of all lanes at a time. Accesses are aligned: those of two lanes are the same
/// bytes or none.
#[inline]
fn store_lanes(access: &Access, parts: &[From], data: &mut [u8], offsets: &[usize; LANES], warp: &Warp, mask: u32) {
    for (index, from) in parts.iter().enumerate() {
        let part = access.part as usize;
        let at = |lane: usize| offsets[lane] + index * part;
        match from {
            From::Narrow(source) => {
                let values = warp.get(*source);
                match part {
                    4 => lanes(mask).for_each(|l| data[at(l)..at(l) + 4].copy_from_slice(&values[l].to_le_bytes())),
                    2 => {
                        lanes(mask).for_each(|l| data[at(l)..at(l) + 2].copy_from_slice(&values[l].to_le_bytes()[..2]))
                    }
                    _ => lanes(mask).for_each(|l| data[at(l)] = values[l] as u8),
                }
            }
            From::Wide(source) => {
                let values = warp.get_wide(*source);
                lanes(mask).for_each(|l| data[at(l)..at(l) + part].copy_from_slice(&values[l].to_le_bytes()[..part]));
            }
        }
    }
}

fn load(access: &Access, parts: &[Into], bytes: &[u8], warp: &mut Warp, lane: usize) {
    for (into, from) in parts.iter().zip(bytes.chunks_exact(access.part as usize)) {
        put(*into, value_in(access, from), warp, lane);
    }
}

/// The value of a part.
fn value_in(access: &Access, bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    let value = u64::from_le_bytes(word);
    if access.signed && bytes.len() < 8 {
        let unused = 64 - 8 * bytes.len() as u32;
        return (((value << unused) as i64) >> unused) as u64;
    }
    value
}

#[inline(always)]
fn put(into: Into, value: u64, warp: &mut Warp, lane: usize) {
    match into {
        Into::Narrow(register) => warp.narrow[register][lane] = value as u32,
        Into::Wide(register) => warp.wide[register][lane] = value,
        Into::Nothing => {}
    }
}

#[inline(always)]
fn value_of(from: &From, warp: &Warp, lane: usize) -> u64 {
    match from {
        From::Narrow(crate::warp::Source::Register(register)) => u64::from(warp.narrow[*register][lane]),
        From::Narrow(source) => u64::from(warp.get(*source)[lane]),
        From::Wide(source) => warp.get_wide(*source)[lane],
    }
}
