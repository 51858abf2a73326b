//! One multiprocessor that issues what its warps executed: in order, as the scheduling bits say, with waits for memory.

use std::collections::VecDeque;

use super::inst::Inst;
use super::kernel::{Does, Flow};
use super::machine::Launched;
use super::memory::SECTOR;
use super::pipe::Pipe;
use super::run::{Step, Trace};

/// A GPU as the replay has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gpu {
    /// Bytes a second of a copy, those read and those written.
    pub(super) copy: f64,
    /// Cycles a second.
    pub(super) clock: f64,
    pub(super) multiprocessors: u32,
}

/// The H100 of `docs/h100.md`: its copies and clock as `benches/results/h100.json` has them.
pub(super) const H100: Gpu = Gpu { copy: 3.0e12, clock: 1.98e9, multiprocessors: 132 };
/// An H200: 4.3 TB/s was measured for a copy.
pub(super) const H200: Gpu = Gpu { copy: 4.3e12, ..H100 };

// The constants below. What NVIDIA or a paper says is marked so. The others were chosen once, as round numbers, so that
// the replay comes near to the H100's times: they are what the page's errors are the errors of.

/// Seconds that a launch adds to the one before: chosen; launches with nothing to do follow one another in 3.3 to 3.8
/// us there.
pub(super) const LAUNCH: f64 = 2.5e-6;
/// Seconds from a load that misses every cache to its value, when nobody else uses the memory, and when it is as busy
/// as can be: chosen; 0.25 us were measured of a lone pointer (Luo et al., arXiv 2501.12084), 0.6 to 0.7 us are said of
/// busy ones.
const IDLE: f64 = 400e-9;
const BUSY: f64 = 750e-9;
/// Cycles over which the use of the memory is averaged: chosen.
const LATELY: f64 = 4000.0;
/// Cycles of the memory's work that a multiprocessor may have missed and get at once later, as the others are not at
/// the same place: chosen.
const CREDIT: f64 = 1000.0;
/// Cycles of loads that the second-level cache has, that the first-level cache has, and from shared memory: Luo et al.
const L2: u64 = 270;
const L1: u64 = 38;
const SHARED: u64 = 29;
/// Cycles of an atomic operation on global memory that gives the old value: chosen.
const ATOMIC: u64 = 600;
/// Cycles of every other result that the scheduling bits do not time, shuffles, conversions, special registers: as Luo
/// et al. have shuffles.
const VARIABLE: u64 = 24;
/// Cycles until the instruction at a branch's target is there, beyond the branch's own stall: chosen.
const TAKEN: u64 = 8;
/// Slots that a scheduler loses for each that it uses, to banks of registers and to instructions that are not there
/// yet: chosen.
const LOST: f64 = 0.1;
/// Cycles from the end of a block until the next one's warps are there: chosen.
const BLOCK: u64 = 200;
/// Instructions that wait for the memory unit before a scheduler stops: chosen.
const QUEUE: f64 = 24.0;

/// Schedulers of a multiprocessor.
const SCHEDULERS: usize = 4;

/// What a replay found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Replayed {
    /// Cycles from the first instruction to the last byte.
    pub(super) cycles: f64,
    /// The part of the cycles in which a scheduler issued.
    pub(super) issued: f64,
}

/// What an instruction needs, looked up once.
#[derive(Clone, Copy)]
struct Need {
    pipe: Pipe,
    stall: u64,
    on_write: u8,
    on_read: u8,
    wait: u8,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Load,
    Store,
    Atomic,
    Shared,
    Barrier,
}

impl Need {
    fn of(inst: &Inst, does: &Does) -> Self {
        let kind = match does {
            Does::Memory(access) if access.is_shared() => Kind::Shared,
            Does::Memory(access) if access.is_load() => Kind::Load,
            Does::Memory(_) if inst.name.starts_with('S') => Kind::Store,
            Does::Memory(_) => Kind::Atomic,
            Does::Flow(Flow::Block) => Kind::Barrier,
            _ => Kind::Plain,
        };
        let control = inst.control;
        // A stall of zero lets two be issued at once on no scheduler that is known.
        let stall = u64::from(control.stall.max(1));
        Self {
            pipe: Pipe::of(inst),
            stall,
            on_write: control.on_write,
            on_read: control.on_read,
            wait: control.wait,
            kind,
        }
    }
}

/// A warp that is there.
struct Resident<'a> {
    steps: &'a [Step],
    at: usize,
    /// The cycle from which it may issue, as far as its own stalls say.
    ready: u64,
    /// The cycle at which each scoreboard is free.
    boards: [u64; 6],
    block: usize,
    at_barrier: bool,
    /// When its last load from memory is there.
    filled: u64,
}

/// The multiprocessor.
struct Sm<'a> {
    needs: Vec<Need>,
    gpu: Gpu,
    /// Warps of each scheduler, oldest first.
    warps: Vec<Vec<Resident<'a>>>,
    /// When each pipe of each scheduler is free: integer, both halves of multiply-add, special, double, uniform.
    free: [[u64; 6]; SCHEDULERS],
    /// When the units that all schedulers share are free.
    memory: f64,
    dram: f64,
    /// Bytes of late, each counted less the longer ago it was, and when that was brought up to date.
    /// What each scheduler has lost, and until when it loses a slot.
    lost: [f64; SCHEDULERS],
    blocked: [u64; SCHEDULERS],
    lately: f64,
    updated: u64,
    last: u64,
    issued: u64,
}

/// Replays `blocks` blocks, of which `resident` are there together. Each executes what one of the traces says, from the
/// trace `first` on.
pub(super) fn replay(launched: &Launched, gpu: Gpu, resident: u32, first: usize, blocks: u32) -> Replayed {
    let kernel = &launched.kernel;
    let needs = kernel.code.insts.iter().zip(&kernel.does).map(|(inst, does)| Need::of(inst, does)).collect();
    if launched.traces.is_empty() {
        return Replayed::default();
    }
    let traces: Vec<&Trace> = launched.traces.iter().cycle().skip(first).take(launched.traces.len()).collect();
    let mut sm = Sm {
        needs,
        gpu,
        warps: (0..SCHEDULERS).map(|_| Vec::new()).collect(),
        free: [[0; 6]; SCHEDULERS],
        memory: 0.0,
        dram: 0.0,
        lost: [0.0; SCHEDULERS],
        blocked: [0; SCHEDULERS],
        lately: 0.0,
        updated: 0,
        last: 0,
        issued: 0,
    };
    let mut queue: VecDeque<usize> = (0..blocks as usize).collect();
    // Warps of each block that have not come to their end, and that have not come to its barrier.
    let mut left: Vec<usize> = vec![0; blocks as usize];
    let mut waiting: Vec<usize> = vec![0; blocks as usize];
    let mut now = 0;
    let mut running = 0;
    for _ in 0..resident.min(blocks) {
        running += u32::from(sm.start(&traces, &mut queue, &mut left, 0));
    }
    while running > 0 {
        let mut next = u64::MAX;
        let (mut any, mut check) = (false, false);
        for scheduler in 0..SCHEDULERS {
            match sm.issue(scheduler, now) {
                Issue::None(when) => next = next.min(when),
                Issue::One => any = true,
                Issue::Arrived(block) => {
                    (any, check) = (true, true);
                    waiting[block] += 1;
                }
                Issue::Ended(block) => {
                    (any, check) = (true, true);
                    left[block] -= 1;
                    if left[block] == 0 {
                        running -= 1;
                        running += u32::from(sm.start(&traces, &mut queue, &mut left, now + BLOCK));
                    }
                }
            }
        }
        if check {
            for scheduler in &mut sm.warps {
                for warp in scheduler.iter_mut().filter(|w| w.at_barrier && waiting[w.block] >= left[w.block]) {
                    warp.at_barrier = false;
                    warp.ready = warp.ready.max(now + 20);
                }
            }
            for block in 0..waiting.len() {
                if waiting[block] > 0 && waiting[block] >= left[block] {
                    waiting[block] = 0;
                }
            }
        }
        if any {
            now += 1;
        } else if next == u64::MAX {
            break;
        } else {
            now = next.max(now + 1);
        }
    }
    let cycles = (now.max(sm.last) as f64).max(sm.dram);
    Replayed { cycles, issued: sm.issued as f64 / (SCHEDULERS as f64 * cycles) }
}

enum Issue {
    /// Nothing, and nothing before that cycle.
    None(u64),
    One,
    /// A warp of the block came to a barrier, or to its end.
    Arrived(usize),
    Ended(usize),
}

impl<'a> Sm<'a> {
    /// Places the next block, if there is one, at a cycle.
    fn start(&mut self, traces: &[&'a Trace], queue: &mut VecDeque<usize>, left: &mut [usize], at: u64) -> bool {
        let Some(block) = queue.pop_front() else { return false };
        let trace = traces[block % traces.len()];
        left[block] = trace.len();
        for (number, steps) in trace.iter().enumerate() {
            let ready = at + number as u64;
            let warp = Resident { steps, at: 0, ready, boards: [0; 6], block, at_barrier: false, filled: 0 };
            self.warps[number % SCHEDULERS].push(warp);
        }
        true
    }

    /// The oldest warp of a scheduler that can, issues.
    fn issue(&mut self, scheduler: usize, now: u64) -> Issue {
        let mut soonest = u64::MAX;
        if self.blocked[scheduler] > now {
            return Issue::None(self.blocked[scheduler]);
        }
        for index in 0..self.warps[scheduler].len() {
            let warp = &self.warps[scheduler][index];
            if warp.at_barrier {
                continue;
            }
            let Some(step) = warp.steps.get(warp.at) else { continue };
            let need = self.needs[step.inst as usize];
            let mut when = warp.ready;
            for (board, free) in warp.boards.iter().enumerate() {
                if need.wait >> board & 1 == 1 {
                    when = when.max(*free);
                }
            }
            when = when.max(self.unit(scheduler, need.pipe));
            if when > now {
                soonest = soonest.min(when);
                continue;
            }
            return self.execute(scheduler, index, now, need, *step);
        }
        Issue::None(soonest)
    }

    /// When the unit can take another instruction.
    fn unit(&self, scheduler: usize, pipe: Pipe) -> u64 {
        let free = &self.free[scheduler];
        match pipe {
            Pipe::Integer => free[0],
            Pipe::MultiplyAdd => free[1],
            Pipe::Float => free[1].min(free[2]),
            Pipe::Special => free[3],
            Pipe::Double | Pipe::Matrix => free[4],
            Pipe::Uniform => free[5],
            Pipe::Shuffle | Pipe::Memory => (self.memory - QUEUE).max(0.0) as u64,
            Pipe::Control => 0,
        }
    }

    fn execute(&mut self, scheduler: usize, index: usize, now: u64, need: Need, step: Step) -> Issue {
        self.issued += 1;
        let free = &mut self.free[scheduler];
        match need.pipe {
            Pipe::Integer => free[0] = now + 2,
            Pipe::MultiplyAdd => free[1] = now + 2,
            Pipe::Float if free[2] <= now => free[2] = now + 2,
            Pipe::Float => free[1] = now + 2,
            Pipe::Special => free[3] = now + 8,
            Pipe::Double => free[4] = now + 2,
            Pipe::Matrix => free[4] = now + 8,
            Pipe::Uniform => free[5] = now + 2,
            Pipe::Shuffle | Pipe::Memory | Pipe::Control => {}
        }
        let (done, read) = self.finish(scheduler, index, now, need, step);
        let warp = &mut self.warps[scheduler][index];
        if let Some(board) = warp.boards.get_mut(usize::from(need.on_write)) {
            *board = (*board).max(done);
        }
        if let Some(board) = warp.boards.get_mut(usize::from(need.on_read)) {
            *board = (*board).max(read);
        }
        warp.ready = now + need.stall;
        warp.at += 1;
        let follows = warp.steps.get(warp.at).is_none_or(|next| next.inst == step.inst + 1);
        if !follows {
            warp.ready += TAKEN;
        }
        self.lost[scheduler] += LOST;
        if self.lost[scheduler] >= 1.0 {
            self.lost[scheduler] -= 1.0;
            self.blocked[scheduler] = now + 2;
        }
        let block = warp.block;
        if warp.at == warp.steps.len() {
            self.last = self.last.max(done);
            self.warps[scheduler].remove(index);
            return Issue::Ended(block);
        }
        if need.kind == Kind::Barrier {
            warp.at_barrier = true;
            return Issue::Arrived(block);
        }
        Issue::One
    }

    /// When the result is there, and when the operands have been read.
    fn finish(&mut self, scheduler: usize, index: usize, now: u64, need: Need, step: Step) -> (u64, u64) {
        let takes_memory = matches!(need.pipe, Pipe::Shuffle | Pipe::Memory);
        if !takes_memory {
            return (now + VARIABLE, now + 4);
        }
        // The unit takes 32 lanes of four bytes a cycle.
        let passes = u32::from(step.touched.passes).max(u32::from(step.touched.sectors).div_ceil(4)).max(1);
        self.memory = self.memory.max(now as f64) + f64::from(passes);
        let (begun, read) = (self.memory as u64, self.memory as u64 + 6);
        if step.lanes == 0 {
            return (begun + 6, read);
        }
        let done = match need.kind {
            Kind::Shared => begun + SHARED,
            Kind::Load if step.touched.first > 0 => {
                let done = self.transfer(begun, step.touched.first) + self.latency();
                self.warps[scheduler][index].filled = done;
                done
            }
            Kind::Load if step.touched.others > 0 => begun + L2,
            // What is under way is waited for.
            Kind::Load => (begun + L1).max(self.warps[scheduler][index].filled),
            Kind::Store => self.transfer(begun, step.touched.first),
            Kind::Atomic => begun + ATOMIC,
            Kind::Plain | Kind::Barrier => begun + VARIABLE,
        };
        (done, read)
    }

    /// The multiprocessor's share of the memory, in bytes a cycle.
    fn rate(&self) -> f64 {
        self.gpu.copy / self.gpu.clock / f64::from(self.gpu.multiprocessors)
    }

    /// The cycle at which the multiprocessor's share of the memory has brought so many sectors.
    fn transfer(&mut self, from: u64, sectors: u8) -> u64 {
        let bytes = f64::from(sectors) * SECTOR as f64;
        let ago = from.saturating_sub(self.updated) as f64;
        self.lately = self.lately * (-ago / LATELY).exp() + bytes;
        self.updated = self.updated.max(from);
        self.dram = self.dram.max(from as f64 - CREDIT) + bytes / self.rate();
        self.dram.max(from as f64) as u64
    }

    /// Cycles from a load to its value: more, the busier the memory was of late.
    fn latency(&self) -> u64 {
        let used = (self.lately / LATELY / self.rate()).min(1.0);
        ((IDLE + (BUSY - IDLE) * used.powi(3)) * self.gpu.clock) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::inst::Control;
    use super::super::kernel::tests::kernel;
    use super::super::memory::Touched;
    use super::*;

    const NONE: Control = Control { stall: 1, on_write: 7, on_read: 7, wait: 0 };

    /// A launch whose warps each load `batches` times `loads` rows of 128 bytes, and wait for each batch.
    fn loading(loads: u32, batches: u32) -> Launched {
        let kernel = kernel(&[
            ("LDG.E R0,[R2.64]", Control { on_write: 0, ..NONE }),
            ("IADD3 R0,R0,R0,RZ", Control { wait: 1, ..NONE }),
        ]);
        let cold = Touched { first: 4, sectors: 4, ..Touched::default() };
        let load = Step { inst: 0, touched: cold, lanes: 32 };
        let wait = Step { inst: 1, touched: Touched::default(), lanes: 32 };
        let batch = std::iter::repeat_n(load, loads as usize).chain([wait]);
        let steps: Vec<Step> = std::iter::repeat_n(batch, batches as usize).flatten().collect();
        let (traces, sites) = (vec![vec![steps; 8]], Vec::new());
        Launched { kernel: Arc::new(kernel), grid: 1, threads: 256, early: false, traces, sites }
    }

    /// Bytes a second of all multiprocessors, as a part of the copy rate.
    fn share(loads: u32, resident: u32) -> f64 {
        let batches = 256 / loads;
        let cycles = replay(&loading(loads, batches), H200, resident, 0, 16).cycles;
        let bytes = f64::from(16 * 8 * loads * batches * 128 * H200.multiprocessors);
        bytes / (cycles / H200.clock) / H200.copy
    }

    #[test]
    fn bytes_in_flight_decide_how_much_memory_gives() {
        assert!(share(16, 4) > 0.95, "64 KB are enough: {}", share(16, 4));
        assert!(share(1, 1) < 0.1, "1 KB is not: {}", share(1, 1));
        let shares = [1, 2, 4, 8].map(|loads| share(loads, 2));
        assert!(shares.is_sorted() && shares[0] < 0.5 * shares[2], "{shares:?}");
        assert!(share(4, 1) < share(4, 2) && share(4, 2) < share(4, 4), "more blocks, more bytes");
    }

    #[test]
    fn the_integer_pipe_takes_an_instruction_every_other_cycle() {
        let issue = |text: &str| {
            let kernel = Arc::new(kernel(&[(text, NONE); 4000]));
            let steps: Vec<Step> =
                (0..4000).map(|inst| Step { inst, touched: Touched::default(), lanes: 32 }).collect();
            let (traces, sites) = (vec![vec![steps; 8]], Vec::new());
            let launched = Launched { kernel, grid: 1, threads: 256, early: false, traces, sites };
            replay(&launched, H100, 1, 0, 1).issued
        };
        let near = |a: f64, b: f64| (a - b).abs() < 0.02;
        assert!(near(issue("IADD3 R0,R0,R0,RZ"), 0.5), "{}", issue("IADD3 R0,R0,R0,RZ"));
        assert!(near(issue("MUFU.RCP R0,R0"), 0.125));
        let floats = issue("FADD R0,R0,R0");
        assert!(near(floats, 1.0 / (1.0 + LOST)), "{floats}");
    }
}
