//! Warps that run: where their lanes are, and for whom they wait.

use std::sync::Arc;

use super::error::SassError;
use super::kernel::{Does, Flow, Kernel};
use super::memory::{Global, Touched};
use super::warp::{Banks, LANES, Warp, lanes};

/// One instruction that a warp executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Its number in the kernel.
    pub(super) inst: u32,
    pub(super) touched: Touched,
    /// Lanes that executed it.
    pub(super) lanes: u8,
}

/// What one instruction cost in a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Site {
    /// Warps that executed it, and lanes.
    pub(super) warps: u64,
    pub(super) lanes: u64,
    /// Sectors of global memory: touched for the first time, and all.
    pub(super) first: u64,
    pub(super) sectors: u64,
}

/// What a turn works on beside the block.
pub(super) struct Context<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) global: &'a mut Global,
    pub(super) sites: &'a mut [Site],
    pub(super) tracing: bool,
}

/// What each warp of a block executed.
pub(super) type Trace = Vec<Vec<Step>>;

/// Instructions of a warp before another block has its turn, so that blocks may wait for one another.
const TURN: usize = 20_000;
/// Instructions of a warp after which it is taken to wait for ever.
const MOST: usize = 50_000_000;

/// A warp with its place in the kernel.
struct Runner {
    warp: Warp,
    pcs: [u32; LANES],
    /// Lanes that have not exited.
    live: u32,
    /// Lanes that wait for the block.
    at_block: u32,
    /// Lanes that wait for lanes of the warp, and for which.
    at_together: u32,
    needed: u32,
    /// Who meets at each convergence barrier, and who is there.
    members: [u32; 16],
    arrived: [u32; 16],
    steps: Vec<Step>,
    executed: usize,
}

/// A block with its shared memory.
pub(super) struct Block {
    runners: Vec<Runner>,
    shared: Vec<u8>,
    pub(super) number: u32,
}

impl Block {
    pub(super) fn new(kernel: &Kernel, banks: &Arc<Banks>, number: u32, threads: u32) -> Self {
        let runner = |warp: u32| Runner {
            warp: Warp::new(banks.clone(), number, warp),
            pcs: [0; LANES],
            live: if threads - warp * 32 >= 32 { !0 } else { (1 << (threads % 32)) - 1 },
            at_block: 0,
            at_together: 0,
            needed: 0,
            members: [0; 16],
            arrived: [0; 16],
            steps: Vec::new(),
            executed: 0,
        };
        let runners = (0..threads.div_ceil(32)).map(runner).collect();
        Self { runners, shared: vec![0; kernel.shared.max(1024)], number }
    }

    /// Runs each warp for its turn; true when all have come to their end.
    pub(super) fn turn(&mut self, context: &mut Context<'_>) -> Result<bool, SassError> {
        context.global.block = self.number + 1;
        for runner in &mut self.runners {
            runner.run(&mut self.shared, context)?;
        }
        if self.runners.iter().all(|r| r.live == r.at_block) {
            self.runners.iter_mut().for_each(|r| r.at_block = 0);
        }
        Ok(self.runners.iter().all(|r| r.live == 0))
    }

    /// What it executed.
    pub(super) fn trace(self) -> Trace {
        self.runners.into_iter().map(|r| r.steps).collect()
    }
}

impl Runner {
    fn running(&self) -> u32 {
        let at_barriers = self.arrived.iter().fold(0, |all, mask| all | mask);
        self.live & !self.at_block & !self.at_together & !at_barriers
    }

    fn run(&mut self, shared: &mut [u8], context: &mut Context<'_>) -> Result<(), SassError> {
        for _ in 0..TURN {
            let running = self.running();
            if running == 0 {
                if self.live & !self.at_block != 0 {
                    return Err(SassError::Stuck { kernel: context.kernel.code.name.clone() });
                }
                return Ok(());
            }
            // The lanes that are least far go first, so that the others meet them.
            let at = lanes(running).map(|lane| self.pcs[lane]).min().unwrap_or(0);
            let group = lanes(running).filter(|lane| self.pcs[*lane] == at).fold(0, |all, lane| all | 1 << lane);
            self.step(at, group, group == running, shared, context)?;
        }
        Ok(())
    }

    /// Runs one group of lanes from an instruction on: that one, and where no other lanes run, all up to the next that
    /// is about the flow.
    fn step(
        &mut self,
        mut at: u32,
        group: u32,
        alone: bool,
        shared: &mut [u8],
        context: &mut Context<'_>,
    ) -> Result<(), SassError> {
        let kernel = context.kernel;
        loop {
            let index = at as usize;
            let (Some(inst), Some(does)) = (kernel.code.insts.get(index), kernel.does.get(index)) else {
                return Err(SassError::Stuck { kernel: kernel.code.name.clone() });
            };
            let fault = |e: SassError| SassError::At {
                kernel: kernel.code.name.clone(),
                at: at * 16,
                text: inst.text.clone(),
                why: Box::new(e),
            };
            let mask = inst.guard.map_or(group, |guard| self.warp.pred(guard) & group);
            let mut touched = Touched::default();
            match does {
                Does::Nothing => {}
                Does::Alu(action) if mask != 0 => action(&mut self.warp, mask),
                Does::Memory(access) if mask != 0 => {
                    touched = access.run(&mut self.warp, mask, shared, context.global).map_err(fault)?;
                }
                Does::Alu(_) | Does::Memory(_) => {}
                Does::Unknown => return Err(fault(SassError::Unknown)),
                Does::Flow(_) => {}
            }
            self.executed += 1;
            let site = &mut context.sites[index];
            site.warps += 1;
            site.lanes += u64::from(mask.count_ones());
            site.first += u64::from(touched.first);
            site.sectors += u64::from(touched.sectors);
            if context.tracing {
                self.steps.push(Step { inst: at, touched, lanes: mask.count_ones() as u8 });
            }
            if self.executed > MOST {
                return Err(SassError::Stuck { kernel: kernel.code.name.clone() });
            }
            at += 1;
            if let Does::Flow(flow) = does {
                lanes(group).for_each(|lane| self.pcs[lane] = at);
                self.flow(flow, mask);
                return Ok(());
            }
            if !alone {
                lanes(group).for_each(|lane| self.pcs[lane] = at);
                return Ok(());
            }
        }
    }

    fn flow(&mut self, flow: &Flow, mask: u32) {
        let first = mask.trailing_zeros() as usize % LANES;
        match flow {
            _ if mask == 0 => {}
            Flow::Branch { when, to } => {
                let taken = when.map_or(mask, |when| self.warp.pred(when) & mask);
                lanes(taken).for_each(|lane| self.pcs[lane] = *to);
            }
            Flow::BranchDivided { lanes: all, to } => {
                if all.int(&self.warp, first) & self.live != mask {
                    lanes(mask).for_each(|lane| self.pcs[lane] = *to);
                }
            }
            Flow::Indirect { from, offset } => {
                for lane in lanes(mask) {
                    let to = i64::from(from.int(&self.warp, lane) as i32) + offset;
                    self.pcs[lane] = u32::try_from(to / 16).unwrap_or(u32::MAX);
                }
            }
            Flow::Exit => {
                self.live &= !mask;
                self.release();
            }
            Flow::Gather(number) => self.members[usize::from(*number) % 16] = mask,
            Flow::Meet(number) => {
                let number = usize::from(*number) % 16;
                self.arrived[number] |= mask & self.members[number];
                self.release();
            }
            Flow::Leave(number) => {
                self.members[usize::from(*number) % 16] &= !mask;
                self.release();
            }
            Flow::Together(of) => {
                self.needed = of.as_ref().map_or(!0, |of| of.int(&self.warp, first));
                self.at_together |= mask;
                self.release();
            }
            Flow::Block => self.at_block |= mask,
        }
    }

    /// Lets go on who waits for nobody any more.
    fn release(&mut self) {
        for (members, arrived) in self.members.iter_mut().zip(&mut self.arrived) {
            *arrived &= self.live;
            if *members & self.live & !*arrived == 0 {
                *arrived = 0;
            }
        }
        if self.needed & self.live & !self.at_together == 0 {
            self.at_together = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::inst::Control;
    use super::super::kernel::tests::kernel;
    use super::*;

    fn run(insts: &[&str], threads: u32) -> Result<(Vec<u8>, Vec<Site>), SassError> {
        let insts: Vec<(&str, Control)> = insts.iter().map(|text| (*text, Control::default())).collect();
        let (kernel, mut global) = (kernel(&insts), Global::default());
        let address = global.allocate(1024);
        global.launch = 1;
        let mut sites = vec![Site::default(); kernel.does.len()];
        let mut banks = vec![0; 0x220];
        banks[0x210..0x218].copy_from_slice(&address.to_le_bytes());
        let mut block = Block::new(&kernel, &Arc::new(vec![banks]), 0, threads);
        let mut context = Context { kernel: &kernel, global: &mut global, sites: &mut sites, tracing: true };
        for _ in 0..8 {
            if block.turn(&mut context)? {
                return Ok((global.bytes(address, 1024).unwrap().to_vec(), sites));
            }
        }
        Err(SassError::Stuck { kernel: "planted".to_owned() })
    }

    fn words(bytes: &[u8]) -> Vec<u32> {
        bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    #[test]
    fn divided_lanes_meet_again() {
        // Lane i stores i where i is odd and 100 where it is even, and then all store what a vote says at their
        // meeting.
        let code = [
            "S2R R0,SR_LANEID",
            "LDC.64 R2,c[0x0][0x210]",
            "IMAD.WIDE.U32 R2,R0,0x4,R2",
            "LOP3.LUT P0,RZ,R0,0x1,RZ,0xc0,!PT",
            "BSSY B0,0x90",
            "BRA P0,0x80",
            "IMAD.MOV.U32 R0,RZ,RZ,0x64",
            "BRA 0x80",
            "BSYNC B0",
            "VOTE.ANY R4,PT,PT",
            "STG.E [R2.64],R0",
            "STG.E [R2.64+0x80],R4",
            "EXIT",
        ];
        let (bytes, sites) = run(&code, 32).unwrap();
        let words = words(&bytes);
        let expected: Vec<u32> = (0..32).map(|i| if i % 2 == 1 { i } else { 100 }).collect();
        assert_eq!(words[..32], expected);
        assert_eq!(words[32..64], [u32::MAX; 32], "they met");
        assert_eq!((sites[6].warps, sites[6].lanes, sites[9].warps), (1, 16, 1));
        assert_eq!((sites[10].first, sites[10].sectors), (4, 4), "128 bytes in four sectors");
    }

    #[test]
    fn warps_wait_for_the_block() {
        let code = [
            "S2R R0,SR_TID.X",
            "IMAD.SHL.U32 R1,R0,0x4,RZ",
            "STS [R1],R0",
            "BAR.SYNC 0x0",
            // The other warp's word.
            "LOP3.LUT R1,R1,0x80,RZ,0x3c,!PT",
            "LDS R2,[R1]",
            "LDC.64 R4,c[0x0][0x210]",
            "IMAD.WIDE.U32 R4,R0,0x4,R4",
            "STG.E [R4.64],R2",
            "EXIT",
        ];
        let (bytes, _) = run(&code, 64).unwrap();
        assert_eq!(words(&bytes)[..64], (0..64).map(|i| i ^ 32).collect::<Vec<u32>>());
    }

    #[test]
    fn a_fault_names_the_instruction() {
        let error = run(&["LDG.E R0,[RZ.64+0x4]", "EXIT"], 32).unwrap_err().to_string();
        assert!(error.contains("planted at 0x0000, LDG.E R0") && error.contains("outside"), "{error}");
        let error = run(&["FROB R0,R1"], 32).unwrap_err().to_string();
        assert!(error.contains("FROB R0,R1") && error.contains("does not know"), "{error}");
        assert!(run(&["BRA 0x0"], 32).is_err(), "it runs for ever");
    }
}
