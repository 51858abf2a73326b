//! A launch: blocks of warps, in an order that a seed decides.
//!
//! A few blocks are on the machine at a time. Again and again one of their warps is drawn, and executes some
//! instructions, until it waits or its turn is over. So two warps, two blocks and the two sides of a branch meet in
//! another order with every seed, and an answer that depends on the order shows.

mod access;

use std::collections::BTreeSet;

use crate::count::{Counts, Site, Traffic};
use crate::fault::{Fault, Space, Violation};
use crate::kernel::{Guard, Kernel, Source};
use crate::lower::Action;
use crate::memory::{BlockOrder, Buffer, Global, Words};
use crate::warp::{Frame, LANES, Place, Warp, lanes};

/// Blocks that are on the machine at a time.
const RESIDENT: usize = 3;
/// A warp's turn is a power of two of instructions, up to 2 to this: as often short as long.
const TURN_LOG2: u64 = 8;
/// Beyond this many instructions, a warp is taken not to end.
const ENDLESS: u64 = 1 << 32;

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// Below `bound`. That some numbers come up more often, by one in 2^32 for a grid, is of no account here.
    fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }
}

/// What a warp is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Ready,
    /// At a barrier: its number and the instruction.
    Waiting(u32, usize),
    Done,
}

/// A block's memory and registers. The machine keeps it for the blocks of later launches, since to make its registers
/// anew takes longer than most launches.
pub(crate) struct Block {
    shared: Buffer,
    /// One a thread; none if the kernel has no local memory.
    locals: Vec<Buffer>,
    warps: Vec<(Warp, Status)>,
    /// Barriers passed.
    epoch: u32,
    /// What it knows of other blocks.
    order: BlockOrder,
}

/// A launch.
pub(crate) struct Launch<'a> {
    pub(crate) kernel: &'a Kernel,
    /// Lines of the module before the kernel's own.
    pub(crate) lines_before: u32,
    pub(crate) grid: u32,
    pub(crate) threads: u32,
    pub(crate) params: &'a [Vec<u8>],
    pub(crate) global: &'a mut Global,
    /// The launch's number, from 1.
    pub(crate) number: u32,
    pub(crate) random: Random,
    /// Blocks that have come to their end.
    pub(crate) spare: &'a mut Vec<Block>,
    pub(crate) counts: Counts,
    /// Whether accesses are counted.
    pub(crate) counting: bool,
    /// Whether it begins before the kernel before it is done.
    pub(crate) dependent: bool,
    /// Whether races are looked for.
    pub(crate) races: bool,
    /// What each instruction moved, by its index.
    pub(crate) sites: Vec<Traffic>,
    /// What words tell blocks of one another.
    pub(crate) words: Words,
    /// Those that were read strongly.
    pub(crate) waited: BTreeSet<u64>,
}

impl Launch<'_> {
    /// Runs all blocks, and returns what it cost.
    pub(crate) fn run(mut self) -> Result<Counts, Fault> {
        let mut waiting: Vec<u32> = (0..self.grid).collect();
        let mut resident: Vec<Block> = Vec::new();
        loop {
            while resident.len() < RESIDENT && !waiting.is_empty() {
                let next = self.random.below(waiting.len());
                let index = waiting.swap_remove(next);
                let spare = self.spare.pop();
                let block = self.begin(index, spare);
                resident.push(block);
            }
            if resident.is_empty() {
                break;
            }
            let drawn = self.random.below(resident.len());
            if self.turn(&mut resident[drawn])? {
                self.spare.push(resident.swap_remove(drawn));
            }
        }
        let executed = self.kernel.sources.iter().zip(&self.sites).filter(|(_, traffic)| traffic.requests > 0);
        self.counts.waited = self.waited.len() as u64;
        let site = |(source, t): (&Source, &Traffic)| Site {
            line: self.lines_before + source.line,
            text: source.text.clone(),
            traffic: *t,
        };
        self.counts.sites = executed.map(site).collect();
        Ok(self.counts)
    }

    fn begin(&self, index: u32, spare: Option<Block>) -> Block {
        let mut block = spare.unwrap_or_else(|| Block {
            shared: Buffer::new(Space::Shared, 0, 0),
            locals: Vec::new(),
            warps: Vec::new(),
            epoch: 0,
            order: BlockOrder::default(),
        });
        block.epoch = 0;
        block.order = BlockOrder::default();
        let shared = self.kernel.shared_bytes as usize;
        if block.shared.len() == shared {
            block.shared.forget();
        } else {
            block.shared = Buffer::new(Space::Shared, 0, shared);
        }
        let (threads, local) = (self.threads as usize, self.kernel.local_bytes as usize);
        let locals = if local == 0 { 0 } else { threads };
        if block.locals.len() == locals && block.locals.iter().all(|buffer| buffer.len() == local) {
            block.locals.iter_mut().for_each(Buffer::forget);
        } else {
            block.locals = (0..locals).map(|_| Buffer::new(Space::Local, 0, local)).collect();
        }
        block.warps.resize_with(threads.div_ceil(LANES), || (Warp::default(), Status::Ready));
        for (number, (warp, status)) in block.warps.iter_mut().enumerate() {
            let first = number * LANES;
            let started = if threads - first >= LANES { !0 } else { (1 << (threads - first)) - 1 };
            let place = Place { block: index, grid: self.grid, threads: self.threads, first: first as u32 };
            warp.start(self.kernel.registers, place, started);
            // A kernel that waits at all is held to it in every launch.
            warp.waited = if self.dependent || self.kernel.waits { 0 } else { !0 };
            self.kernel.spoil(warp);
            *status = Status::Ready;
        }
        block
    }

    /// Gives one warp of the block a turn; whether the block has come to its end.
    fn turn(&mut self, block: &mut Block) -> Result<bool, Fault> {
        let ready = block.warps.iter().filter(|(_, status)| *status == Status::Ready).count();
        if ready == 0 {
            return self.release(block);
        }
        let drawn = self.random.below(ready);
        let mut of_ready = block.warps.iter().enumerate().filter(|(_, (_, status))| *status == Status::Ready);
        let Some(index) = of_ready.nth(drawn).map(|(index, _)| index) else { return Ok(false) };
        let turn = 1 << (self.random.bits() % (TURN_LOG2 + 1));
        block.warps[index].1 = self.execute(block, index, turn)?;
        Ok(false)
    }

    /// Lets the warps of a block pass a barrier that all of them have come to.
    fn release(&mut self, block: &mut Block) -> Result<bool, Fault> {
        let first = block.warps[0].1;
        if block.warps.iter().all(|(_, status)| *status == Status::Done) {
            return Ok(true);
        }
        if let Some((other, status)) = block.warps.iter().find(|(_, status)| *status != first) {
            // One of the two waits, and its barrier is where the fault shows.
            let (waits, at, what, of) = match (first, *status) {
                (Status::Waiting(_, at), Status::Done) => (&block.warps[0].0, at, "has come to its end", other),
                (Status::Waiting(_, at), _) => (&block.warps[0].0, at, "is at another barrier", other),
                (_, Status::Waiting(_, at)) => (other, at, "has come to its end", &block.warps[0].0),
                _ => return Ok(false),
            };
            let violation = Violation::SplitBarrier { other: of.place.first, what };
            return Err(self.fault(at, waits, 0, violation));
        }
        block.warps.iter_mut().for_each(|(_, status)| *status = Status::Ready);
        block.epoch += 1;
        block.order.barrier();
        self.counts.barriers += 1;
        Ok(false)
    }

    #[cold]
    fn fault(&self, at: usize, warp: &Warp, lane: usize, what: Violation) -> Fault {
        let Source { line, text } = &self.kernel.sources[at];
        Fault {
            kernel: self.kernel.name.clone(),
            line: self.lines_before + line,
            text: text.clone(),
            block: warp.place.block,
            thread: warp.place.first + lane as u32,
            what,
        }
    }

    #[cold]
    fn before_wait(&self, at: usize, warp: &Warp, mask: u32, what: &'static str) -> Fault {
        self.fault(at, warp, (mask & !warp.waited).trailing_zeros() as usize, Violation::BeforeWait { what })
    }

    /// Executes up to `turn` instructions of a warp.
    fn execute(&mut self, block: &mut Block, index: usize, turn: u64) -> Result<Status, Fault> {
        let kernel = self.kernel;
        let Block { shared, locals, warps, epoch, order } = block;
        let warp = &mut warps[index].0;
        let mut left = turn;
        loop {
            let Some(&Frame { pc, mask: all, join }) = warp.stack.last() else {
                return Ok(Status::Done);
            };
            if all == 0 || pc == join || pc >= kernel.code.len() {
                warp.stack.pop();
                continue;
            }
            if left == 0 {
                return Ok(Status::Ready);
            }
            left -= 1;
            self.counts.instructions += 1;
            warp.executed += 1;
            let instruction = &kernel.code[pc];
            let mask = match instruction.guard {
                None => all,
                Some(Guard { register, flip }) => all & (warp.preds[register as usize] ^ flip),
            };
            let go_to = |warp: &mut Warp, pc: usize| {
                if let Some(top) = warp.stack.last_mut() {
                    top.pc = pc;
                }
            };
            if warp.executed > ENDLESS {
                let what = Violation::Endless { executed: warp.executed };
                return Err(self.fault(pc, warp, 0, what));
            }
            if mask == 0 {
                go_to(warp, pc + 1);
                continue;
            }
            match &instruction.action {
                Action::Compute(compute) => {
                    compute(warp, mask);
                    go_to(warp, pc + 1);
                }
                Action::Exchange(exchange) => {
                    exchange(warp, mask).map_err(|what| self.fault(pc, warp, mask.trailing_zeros() as usize, what))?;
                    go_to(warp, pc + 1);
                }
                Action::Memory(access) => {
                    // Arguments are there from the beginning.
                    if mask & !warp.waited != 0 && access.space != Some(Space::Param) {
                        return Err(self.before_wait(pc, warp, mask, "it touches memory"));
                    }
                    let memory = access::Memory { shared, locals, epoch: *epoch, order };
                    self.access(pc, access, warp, mask, memory)
                        .map_err(|(lane, what)| self.fault(pc, warp, lane, what))?;
                    go_to(warp, pc + 1);
                    // Most often it waits for a word: what it waits for should come before it asks again.
                    if access.waits() {
                        left = 0;
                    }
                }
                Action::Branch { target, .. } if mask == all => go_to(warp, *target),
                Action::Branch { uniform: true, .. } => {
                    let what = Violation::DivergentBranch { taking: mask, of: all };
                    return Err(self.fault(pc, warp, mask.trailing_zeros() as usize, what));
                }
                Action::Branch { target, .. } => {
                    let join = instruction.join as usize;
                    go_to(warp, join);
                    let mut sides = [Frame { pc: *target, mask, join }, Frame { pc: pc + 1, mask: all & !mask, join }];
                    if self.random.bits() & 1 == 1 {
                        sides.reverse();
                    }
                    warp.stack.extend(sides);
                }
                Action::Barrier(number) => {
                    if mask != warp.started {
                        let what = Violation::DivergentBarrier { arrived: mask, started: warp.started };
                        return Err(self.fault(pc, warp, mask.trailing_zeros() as usize, what));
                    }
                    go_to(warp, pc + 1);
                    return Ok(Status::Waiting(*number, pc));
                }
                Action::WarpBarrier => {
                    if mask != warp.started {
                        let what = Violation::DivergentExchange { members: !0, active: mask };
                        return Err(self.fault(pc, warp, mask.trailing_zeros() as usize, what));
                    }
                    warp.phase += 1;
                    go_to(warp, pc + 1);
                }
                Action::Fence { of_blocks } => {
                    if *of_blocks && self.races {
                        let Place { block, first, .. } = warp.place;
                        lanes(mask).for_each(|lane| order.fence(block, *epoch, (first as usize + lane) as u16));
                    }
                    go_to(warp, pc + 1);
                }
                Action::GridWait => {
                    warp.waited |= mask;
                    go_to(warp, pc + 1);
                }
                Action::GridLaunch => go_to(warp, pc + 1),
                Action::Exit => {
                    // Whoever waits for this kernel counts on it to end after the one before it.
                    if mask & !warp.waited != 0 {
                        return Err(self.before_wait(pc, warp, mask, "it ends"));
                    }
                    go_to(warp, pc + 1);
                    warp.stack.iter_mut().for_each(|frame| frame.mask &= !mask);
                }
            }
        }
    }
}
