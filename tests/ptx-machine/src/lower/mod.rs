//! From instructions to actions. What is not listed here is refused by name, with its line.

mod bitwise;
mod compare;
mod convert;
mod exchange;
mod float;
pub(crate) mod half;
mod integer;
mod maps;
mod matrix;
mod memory;
mod types;

pub(crate) use memory::{Access, AtomicOp, From, Into, Target};
pub(crate) use types::{Compute, Exchange};

use crate::parse::Statement;

/// What an instruction does.
pub(crate) enum Action {
    Compute(Compute),
    Exchange(Exchange),
    Memory(Box<Access>),
    /// To the statement of that index; `uniform` where all lanes that are there must take it or none.
    Branch {
        target: usize,
        uniform: bool,
    },
    /// `bar.sync`, with the barrier's number.
    Barrier(u32),
    /// `bar.warp.sync` of all lanes.
    WarpBarrier,
    /// A fence: the machine executes memory operations in order, and notes what is ordered by it of two blocks, if it
    /// is for more than one.
    Fence {
        of_blocks: bool,
    },
    /// `griddepcontrol.wait`: for the kernel before, which on this machine is done. It notes who has waited.
    GridWait,
    /// `griddepcontrol.launch_dependents`: nothing to do.
    GridLaunch,
    Exit,
}

/// An action for a statement; `labels` gives the statement after a label.
pub(crate) fn lower(statement: &Statement, labels: &dyn Fn(&str) -> Option<usize>) -> Result<Action, String> {
    let name: Vec<&str> = statement.opcode.iter().map(String::as_str).collect();
    let operands = &statement.operands;
    if let Some(target) = &statement.target {
        let index = labels(target).ok_or_else(|| format!("the label {target} is nowhere"))?;
        return match name[..] {
            ["bra"] => Ok(Action::Branch { target: index, uniform: false }),
            ["bra", "uni"] => Ok(Action::Branch { target: index, uniform: true }),
            _ => Err("a branch that this machine does not know".to_owned()),
        };
    }
    match name[..] {
        ["ret"] | ["exit"] => return Ok(Action::Exit),
        ["bar" | "barrier", "sync"] | ["barrier", "sync", "aligned"] | ["bar", "cta", "sync"] => {
            return match operands[..] {
                [crate::operand::Operand::Constant(number @ 0..16)] => Ok(Action::Barrier(number as u32)),
                _ => Err("a barrier of some of the threads is not known".to_owned()),
            };
        }
        ["griddepcontrol", "wait"] => return Ok(Action::GridWait),
        ["griddepcontrol", "launch_dependents"] => return Ok(Action::GridLaunch),
        ["bar", "warp", "sync"] => {
            return match operands[..] {
                [crate::operand::Operand::Constant(members)] if members as u32 == !0 => Ok(Action::WarpBarrier),
                _ => Err("a barrier of some of the lanes is not known".to_owned()),
            };
        }
        ["membar", "cta"] | ["fence", _, "cta"] => return Ok(Action::Fence { of_blocks: false }),
        ["membar", "gl" | "sys"] | ["fence", "acq_rel" | "sc", "gpu" | "sys"] => {
            return Ok(Action::Fence { of_blocks: true });
        }
        ["ld" | "st" | "atom" | "red", ..] => {
            return memory::lower(&name, operands).map(|access| Action::Memory(Box::new(access)));
        }
        ["shfl" | "vote" | "redux" | "activemask", ..] => {
            return exchange::lower(&name, operands).map(Action::Exchange);
        }
        ["mma", ..] => return matrix::lower(&name, operands).map(Action::Exchange),
        _ => {}
    }
    let families: [maps::Family; 5] = [bitwise::lower, integer::lower, float::lower, compare::lower, convert::lower];
    for family in families {
        if let Some(compute) = family(&name, operands)? {
            return Ok(Action::Compute(compute));
        }
    }
    Err("an instruction that this machine does not know".to_owned())
}
