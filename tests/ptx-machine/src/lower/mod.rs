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

pub(crate) use memory::{Access, AtomicOp, From, Into, Target};

use crate::fault::Violation;
use crate::parse::Statement;
use crate::warp::Warp;

/// What changes registers and cannot fail.
pub(crate) type Compute = Box<dyn Fn(&mut Warp, u32) + Send + Sync>;
/// What passes values between lanes.
pub(crate) type Exchange = Box<dyn Fn(&mut Warp, u32) -> Result<(), Violation> + Send + Sync>;

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

/// The type that ends an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Pred,
    /// Bits without a meaning, of that many.
    B(u32),
    U(u32),
    S(u32),
    F(u32),
    Bf16,
}

impl Type {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "pred" => Self::Pred,
            "bf16" => Self::Bf16,
            _ => {
                let bits = text.get(1..)?.parse().ok().filter(|b| [8, 16, 32, 64].contains(b))?;
                match text.as_bytes()[0] {
                    b'b' => Self::B(bits),
                    b'u' => Self::U(bits),
                    b's' => Self::S(bits),
                    b'f' if bits > 8 => Self::F(bits),
                    _ => return None,
                }
            }
        })
    }

    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::Pred => 1,
            Self::B(bits) | Self::U(bits) | Self::S(bits) | Self::F(bits) => bits,
            Self::Bf16 => 16,
        }
    }
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
