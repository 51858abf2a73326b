//! A kernel made ready to run: checked as a whole, each instruction an action.

use crate::fault::Rejected;
use crate::flow::{self, Uses};
use crate::lower::{Action, lower};
use crate::operand::{Base, Class, Operand};
use crate::parse::{Body, Statement};
use crate::warp::{LANES, Warp};

/// An instruction. What only a fault or a count tells of it is elsewhere, so that few bytes are read to execute one.
pub(crate) struct Instruction {
    /// The predicate that it is executed under, if any.
    pub(crate) guard: Option<Guard>,
    /// Where lanes that a branch here parts meet again.
    pub(crate) join: u32,
    pub(crate) action: Action,
}

/// A predicate that some lanes are let through by.
#[derive(Clone, Copy)]
pub(crate) struct Guard {
    pub(crate) register: u32,
    /// All bits where lanes without it are let through.
    pub(crate) flip: u32,
}

/// Where an instruction stands.
pub(crate) struct Source {
    /// From 1, of the kernel's own text.
    pub(crate) line: u32,
    pub(crate) text: String,
}

/// A kernel.
pub(crate) struct Kernel {
    pub(crate) name: String,
    /// Bytes of each parameter.
    pub(crate) params: Vec<u32>,
    pub(crate) shared_bytes: u64,
    pub(crate) local_bytes: u64,
    /// Predicates, narrow registers, wide registers.
    pub(crate) registers: [usize; 3],
    /// Registers that a selection may pass on before anything has written to them, by the numbers of [`uses`].
    pub(crate) undefined: Vec<usize>,
    pub(crate) code: Vec<Instruction>,
    /// Where each of them stands.
    pub(crate) sources: Vec<Source>,
    /// Whether any of them may order two blocks.
    pub(crate) fences: bool,
    /// Whether any of them waits for the kernel before.
    pub(crate) waits: bool,
}

impl Kernel {
    pub(crate) fn new(body: Body) -> Result<Self, Rejected> {
        let statements = &body.statements;
        let end = statements.len();
        let mut actions = Vec::with_capacity(end);
        let mut successors = Vec::with_capacity(end);
        for (at, statement) in statements.iter().enumerate() {
            let label = |name: &str| body.labels.get(name).copied();
            let action = lower(statement, &label).map_err(|why| refuse(statement, &why))?;
            let mut next = match action {
                Action::Branch { target, .. } => vec![target],
                Action::Exit => vec![end],
                _ => vec![at + 1],
            };
            if statement.guard.is_some() && next[0] != at + 1 {
                next.push(at + 1);
            }
            successors.push(next);
            actions.push(action);
        }
        let uses: Vec<Uses> = statements.iter().map(|s| uses(s, body.registers)).collect();
        let mut undefined = Vec::new();
        for (at, register) in flow::read_before_written(&successors, &uses, body.registers.iter().sum::<usize>() + 1) {
            // A selection may be between a value and none, where the predicate never chooses the latter: LLVM writes a
            // loop's first turn so. Whatever else reads a register must find something in it.
            let values = statements[at].operands.get(1..3).unwrap_or_default();
            let mut of_values = Vec::new();
            values.iter().for_each(|operand| collect(operand, &mut of_values));
            let passed_on = of_values.into_iter().any(|(c, i)| number(body.registers, c, i) == register);
            if statements[at].opcode[0] != "selp" || !passed_on {
                return Err(refuse(&statements[at], "it may read a register that nothing has written"));
            }
            undefined.push(register);
        }
        let joins = flow::joins(&successors);
        let (mut code, mut sources) = (Vec::with_capacity(end), Vec::with_capacity(end));
        for ((statement, action), join) in body.statements.into_iter().zip(actions).zip(joins) {
            let Statement { line, text, guard, .. } = statement;
            let guard = guard
                .map(|(register, negated)| Guard { register: register as u32, flip: if negated { !0 } else { 0 } });
            code.push(Instruction { guard, join: join as u32, action });
            sources.push(Source { line, text });
        }
        let fences = code.iter().any(|i: &Instruction| matches!(i.action, Action::Fence { of_blocks: true }));
        let waits = code.iter().any(|i: &Instruction| matches!(i.action, Action::GridWait));
        let Body { name, params, shared_bytes, local_bytes, registers, .. } = body;
        Ok(Self { name, params, shared_bytes, local_bytes, registers, undefined, code, sources, fences, waits })
    }
}

impl Kernel {
    /// Puts garbage where a kernel finds garbage on a device, so that no earlier block's value passes for its own.
    pub(crate) fn spoil(&self, warp: &mut Warp) {
        let [preds, narrow, _] = self.registers;
        for &register in &self.undefined {
            if register < preds {
                warp.preds[register] = 0xaaaa_aaaa;
            } else if register < preds + narrow {
                warp.narrow[register - preds] = [0xdead_beef; LANES];
            } else {
                warp.wide[register - preds - narrow] = [0xdead_beef_dead_beef; LANES];
            }
        }
    }
}

fn refuse(statement: &Statement, why: &str) -> Rejected {
    Rejected { line: statement.line, why: format!("`{}`: {why}", statement.text) }
}

/// Registers by one number: predicates first, then narrow ones, then wide ones. The carry flag comes after them all.
fn number([preds, narrow, _]: [usize; 3], class: Class, index: usize) -> usize {
    match class {
        Class::Pred => index,
        Class::Narrow => preds + index,
        Class::Wide => preds + narrow + index,
    }
}

/// What a statement reads and writes.
fn uses(statement: &Statement, registers: [usize; 3]) -> Uses {
    let number = |class, index| number(registers, class, index);
    let carry = registers.iter().sum();
    let mut uses = Uses::default();
    let writes_nothing = matches!(statement.opcode[0].as_str(), "st" | "red" | "bar" | "barrier");
    for (position, operand) in statement.operands.iter().enumerate() {
        let written = position == 0 && !writes_nothing;
        let mut registers = Vec::new();
        collect(operand, &mut registers);
        let registers = registers.into_iter().map(|(class, index)| number(class, index));
        match (written, operand) {
            // What happens under a guard may not happen.
            (true, _) if statement.guard.is_some() => {}
            (true, _) => uses.writes.extend(registers),
            (false, _) => uses.reads.extend(registers),
        }
    }
    if statement.opcode[0] == "addc" {
        uses.reads.push(carry);
    }
    if statement.opcode.iter().any(|word| word == "cc") && statement.guard.is_none() {
        uses.writes.push(carry);
    }
    uses.reads.extend(statement.guard.map(|(pred, _)| number(Class::Pred, pred)));
    uses
}

fn collect(operand: &Operand, registers: &mut Vec<(Class, usize)>) {
    match operand {
        Operand::Register(class, index) => registers.push((*class, *index)),
        Operand::Address(Base::Narrow(index), _) => registers.push((Class::Narrow, *index)),
        Operand::Address(Base::Wide(index), _) => registers.push((Class::Wide, *index)),
        Operand::Vector(parts) => parts.iter().for_each(|part| collect(part, registers)),
        Operand::Pair(pair) => pair.iter().for_each(|part| collect(part, registers)),
        Operand::Constant(_) | Operand::Special(_) | Operand::Symbol(..) | Operand::Sink | Operand::Address(..) => {}
    }
}
