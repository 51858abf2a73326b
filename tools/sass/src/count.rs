//! What a launch's machine code costs per element.

use super::inst::Inst;
use super::kernel::{Does, Flow};
use super::machine::Launched;
use super::memory::SECTOR;
use super::pipe::{PIPES, Pipe};
use super::run::Step;

/// What one launch cost.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cost {
    /// Instructions of a thread per element, in the order of [`PIPES`].
    pub(super) by_pipe: [f64; PIPES.len()],
    /// Bytes per element that are touched for the first time, in whole sectors.
    pub(super) bytes: f64,
    /// Loads of a thread that are under way before the first of them is waited for, and their bytes: the mean, weighted
    /// by bytes.
    pub(super) loads: f64,
    pub(super) in_flight: f64,
    /// Barriers that a block comes to.
    pub(super) barriers: f64,
    /// The instructions of the loop that is executed most, and those among them that are about the flow of control.
    /// None if nothing loops.
    pub(super) inner: Option<(usize, usize)>,
}

impl Cost {
    /// Of a launch over `n` elements.
    pub(super) fn of(launched: &Launched, n: usize) -> Self {
        let insts = &launched.kernel.code.insts;
        let mut by_pipe = [0.0; PIPES.len()];
        let mut bytes = 0;
        for (inst, site) in insts.iter().zip(&launched.sites) {
            if let Some(at) = PIPES.iter().position(|pipe| *pipe == Pipe::of(inst)) {
                by_pipe[at] += (site.warps * 32) as f64 / n as f64;
            }
            bytes += site.first * SECTOR;
        }
        let (loads, in_flight) = in_flight(launched);
        let is_barrier = |does: &Does| matches!(does, Does::Flow(Flow::Block));
        let barriers: u64 = launched
            .kernel
            .does
            .iter()
            .zip(&launched.sites)
            .filter(|(does, _)| is_barrier(does))
            .map(|(_, s)| s.warps)
            .sum();
        let warps = u64::from(launched.threads.div_ceil(32)) * u64::from(launched.grid);
        let inner = inner_loop(launched);
        let inner = inner.map(|inner| {
            let flow = inner.clone().filter(|at| matches!(launched.kernel.does.get(*at), Some(Does::Flow(_))));
            (inner.len(), flow.count())
        });
        Self {
            by_pipe,
            bytes: bytes as f64 / n as f64,
            loads,
            in_flight,
            barriers: barriers as f64 / warps as f64,
            inner,
        }
    }

    /// All instructions.
    pub(super) fn instructions(&self) -> f64 {
        self.by_pipe.iter().sum()
    }

    /// Those of one unit.
    pub(super) fn pipe(&self, pipe: Pipe) -> f64 {
        PIPES.iter().zip(self.by_pipe).find(|(p, _)| **p == pipe).map_or(0.0, |(_, count)| count)
    }
}

/// Global loads that are under way together, and their bytes of a thread, of which the means are weighted by the bytes.
fn in_flight(launched: &Launched) -> (f64, f64) {
    let (mut all, mut loads, mut squares) = (0.0, 0.0, 0.0);
    for steps in launched.traces.iter().flatten() {
        for (count, bytes) in batches(&launched.kernel.code.insts, &launched.kernel.does, steps) {
            all += bytes;
            loads += f64::from(count) * bytes;
            squares += bytes * bytes;
        }
    }
    if all == 0.0 { (0.0, 0.0) } else { (loads / all, squares / all) }
}

/// The loads of a warp that are issued until one of them is waited for: how many, and their bytes per thread.
fn batches(insts: &[Inst], does: &[Does], steps: &[Step]) -> Vec<(u32, f64)> {
    let (mut all, mut pending, mut count, mut bytes) = (Vec::new(), 0u8, 0, 0.0);
    for step in steps {
        let inst = &insts[step.inst as usize];
        if inst.control.wait & pending != 0 {
            all.push((count, bytes));
            (pending, count, bytes) = (0, 0, 0.0);
        }
        if let Does::Memory(access) = &does[step.inst as usize]
            && access.is_load()
            && !access.is_shared()
            && step.lanes > 0
        {
            // Scoreboard 7 is none.
            pending |= (1u16 << inst.control.on_write.min(8)) as u8 & 0x3f;
            count += 1;
            bytes += f64::from(access.bytes()) * f64::from(step.lanes) / 32.0;
        }
    }
    if count > 0 {
        all.push((count, bytes));
    }
    all
}

/// The instructions from the target of a branch back to the branch, of the backward branch that is taken most; of two,
/// the shorter. None if nothing loops.
pub(super) fn inner_loop(launched: &Launched) -> Option<std::ops::Range<usize>> {
    let mut best: Option<(u64, usize, usize)> = None;
    for (at, (does, site)) in launched.kernel.does.iter().zip(&launched.sites).enumerate() {
        if let Does::Flow(Flow::Branch { to, .. }) = does
            && (*to as usize) < at
        {
            let (from, length) = (*to as usize, at - *to as usize);
            let taken = site.warps * length as u64;
            // A loop that most warps leave at once, as one that waits, is none.
            let start = launched.sites.get(from).map_or(0, |s| s.warps);
            if site.warps > 0 && site.warps * 2 > start && best.is_none_or(|(most, _, _)| taken > most) {
                best = Some((taken, from, at));
            }
        }
    }
    best.map(|(_, from, at)| from..at + 1)
}
