//! A kernel that is ready to run: each instruction as what it does.

use std::sync::Arc;

use super::alu::{self, Action};
use super::cubin::Cubin;
use super::error::SassError;
use super::inst::{Arg, BYTES, Code, Inst};
use super::memory::Access;
use super::warp::{Banks, Source};

/// What an instruction does to the flow of control.
pub(super) enum Flow {
    /// To an instruction, for lanes whose predicate holds.
    Branch {
        when: Option<(u8, bool, bool)>,
        to: u32,
    },
    /// The same, where not all lanes of a mask are there.
    BranchDivided {
        lanes: Source,
        to: u32,
    },
    /// To an address from a register, in bytes.
    Indirect {
        from: Source,
        offset: i64,
    },
    Exit,
    /// Names the lanes that wait for one another at a barrier.
    Gather(u8),
    /// Waits for them.
    Meet(u8),
    /// Takes lanes out of them.
    Leave(u8),
    /// Waits for lanes of a mask; `None` for all.
    Together(Option<Source>),
    /// Waits for the block.
    Block,
}

/// What an instruction does.
pub(super) enum Does {
    Nothing,
    Alu(Action),
    Memory(Access),
    Flow(Flow),
    /// It is not known.
    Unknown,
}

/// A kernel of a device.
pub(super) struct Kernel {
    pub(super) code: Code,
    pub(super) does: Vec<Does>,
    /// Where parameters begin in constant bank 0, and their bytes.
    pub(super) parameters: (usize, usize),
    /// Bytes of shared memory of a block.
    pub(super) shared: usize,
    /// Constant banks without parameters.
    banks: Banks,
}

impl Kernel {
    pub(super) fn new(code: Code, cubin: &Cubin) -> Result<Self, SassError> {
        let name = &code.name;
        let unread = || SassError::NotRead { text: format!("{name} has no parameters that are described") };
        let parameters = cubin.parameters(name).ok_or_else(unread)?;
        let banks = (0..6).map(|bank| cubin.constants(bank, name).to_vec()).collect();
        let does = code.insts.iter().enumerate().map(|(at, inst)| lower(inst, at as u32)).collect();
        Ok(Self { does, parameters, shared: cubin.shared(name), banks, code })
    }

    /// Whether it waits for the launch before it, and neither branches nor touches memory before: `ACQBULK` is what
    /// `griddepcontrol.wait` comes to.
    pub(super) fn waits_first(&self) -> bool {
        let wait = self.code.insts.iter().position(|inst| inst.name == "ACQBULK" && inst.guard.is_none());
        let is_plain = |does: &Does| matches!(does, Does::Nothing | Does::Alu(_));
        wait.is_some_and(|at| self.does[..at].iter().all(is_plain))
    }

    /// The constant banks of a launch.
    pub(super) fn banks(&self, parameters: &[u8]) -> Arc<Banks> {
        let mut banks = self.banks.clone();
        let (start, size) = self.parameters;
        let first = &mut banks[0];
        first.resize(first.len().max(start + size), 0);
        first[start..start + size].copy_from_slice(&parameters[..size]);
        Arc::new(banks)
    }
}

fn lower(inst: &Inst, at: u32) -> Does {
    if let Some(flow) = flow(inst, at) {
        return Does::Flow(flow);
    }
    // What orders memory or tells a cache orders nothing here: every access is done when it is made.
    let nothing = [
        "NOP",
        "MEMBAR",
        "ERRBAR",
        "CGAERRBAR",
        "CCTL",
        "YIELD",
        "ENDCOLLECTIVE",
        "DEPBAR",
        "FENCE",
        "NANOSLEEP",
        "PREEXIT",
        "ACQBULK",
        "BPT",
    ];
    if nothing.contains(&inst.name.as_str()) {
        return Does::Nothing;
    }
    if let Some(access) = Access::of(inst) {
        return Does::Memory(access);
    }
    alu::lower(inst).map_or(Does::Unknown, Does::Alu)
}

fn flow(inst: &Inst, at: u32) -> Option<Flow> {
    let barrier = || match inst.args.first() {
        Some(Arg::Barrier(number)) => Some(*number),
        _ => None,
    };
    let to = || match inst.args.last() {
        Some(Arg::Number(bytes)) => Some(bytes / BYTES),
        _ => None,
    };
    let source = || inst.args.first().and_then(Source::of);
    Some(match inst.name.as_str() {
        "BRA" if inst.has("DIV") => Flow::BranchDivided { lanes: source()?, to: to()? },
        "BRA" | "CALL" => {
            let when = match inst.args.first()? {
                Arg::Pred { number, uniform, inverted } => Some((*number, *uniform, *inverted)),
                _ => None,
            };
            Flow::Branch { when, to: to()? }
        }
        "RET" => Flow::Indirect { from: source()?, offset: 0 },
        "BRX" | "BRXU" => {
            let offset = match inst.args.get(1)? {
                Arg::Number(offset) => i64::from(*offset as i32),
                _ => return None,
            };
            Flow::Indirect { from: source()?, offset: offset + i64::from((at + 1) * BYTES) }
        }
        "EXIT" => Flow::Exit,
        "BSSY" => Flow::Gather(barrier()?),
        "BSYNC" => Flow::Meet(barrier()?),
        "BREAK" => Flow::Leave(barrier()?),
        "WARPSYNC" if inst.has("ALL") => Flow::Together(None),
        "WARPSYNC" => Flow::Together(Some(source()?)),
        "BAR" if inst.has("SYNC") => match inst.args.as_slice() {
            [Arg::Number(0)] => Flow::Block,
            _ => return None,
        },
        _ => return None,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::inst::Control;
    use super::super::inst::tests::written;
    use super::*;

    /// A kernel of these instructions, without parameters.
    pub(in super::super) fn kernel(insts: &[(&str, Control)]) -> Kernel {
        let insts: Vec<Inst> = insts.iter().map(|(text, control)| written(text, *control)).collect();
        let does = insts.iter().enumerate().map(|(at, inst)| lower(inst, at as u32)).collect();
        let code = Code { name: "planted".to_owned(), insts };
        Kernel { code, does, parameters: (0, 0), shared: 0, banks: vec![Vec::new()] }
    }

    #[test]
    fn a_wait_is_before_branches_and_memory() {
        let control = Control::default();
        let of = |texts: &[&str]| kernel(&texts.iter().map(|text| (*text, control)).collect::<Vec<_>>()).waits_first();
        assert!(of(&["IADD3 R1,R2,R3,RZ", "PREEXIT", "ACQBULK", "LDS R1,[R2]", "EXIT"]));
        assert!(!of(&["PREEXIT", "LDS R1,[R2]", "EXIT"]));
        assert!(!of(&["LDS R1,[R2]", "ACQBULK", "EXIT"]));
        assert!(!of(&["BAR.SYNC 0x0", "ACQBULK", "EXIT"]));
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        let control = Control::default();
        let known = kernel(&[("IADD3 R1,R2,R3,RZ", control), ("BAR.SYNC 0x0", control), ("LDS R1,[R2]", control)]);
        assert!(known.does.iter().all(|does| !matches!(does, Does::Unknown)));
        let unknown = [
            "IADD4 R1,R2,R3,RZ",
            "BAR.ARV 0x0,0x20",
            "IADD3.X R1,R2,R3,RZ",
            "SHF.L.U32 R1,R2",
            "ATOMG.E.FADD R1,[R2],R3",
        ];
        for text in unknown {
            assert!(matches!(kernel(&[(text, control)]).does[..], [Does::Unknown]), "{text}");
        }
    }
}
