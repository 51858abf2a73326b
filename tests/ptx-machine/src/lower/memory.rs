//! Loads, stores and atomics: what is accessed, and how wide.

use super::exchange::folded;
use super::types::Type;
use crate::fault::Space;
use crate::operand::{Base, Class, Operand};
use crate::warp::{Source, WideSource};

/// An access of every active lane.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// Where; `None` for a generic address, which tells by itself.
    pub(crate) space: Option<Space>,
    pub(crate) base: Base,
    pub(crate) offset: i64,
    /// Bytes of one part.
    pub(crate) part: u32,
    /// Whether it is strong, and so does not race with atomics.
    pub(crate) strong: bool,
    /// Whether a part that is loaded into more bits takes its sign along.
    pub(crate) signed: bool,
    pub(crate) target: Target,
}

impl Access {
    /// Bytes of the whole access.
    pub(crate) fn bytes(&self) -> u32 {
        match &self.target {
            Target::Load(parts) => self.part * parts.len() as u32,
            Target::Store(parts) => self.part * parts.len() as u32,
            Target::Atomic { .. } => self.part,
        }
    }

    /// Whether it may be what a thread waits by for another.
    pub(crate) fn waits(&self) -> bool {
        self.strong && matches!(self.target, Target::Load(_))
    }
}

/// A register that a part is loaded into.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Into {
    Narrow(usize),
    Wide(usize),
    Nothing,
}

/// Where a part that is stored comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum From {
    Narrow(Source),
    Wide(WideSource),
}

#[derive(Clone, Debug)]
pub(crate) enum Target {
    Load(Vec<Into>),
    Store(Vec<From>),
    Atomic { old: Into, operands: Vec<From>, op: AtomicOp },
}

/// What an atomic leaves behind, from what was there and its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AtomicOp {
    Fold32(fn(u32, u32) -> u32),
    Add64,
    Exchange,
    CompareAndSwap,
}

/// Modifiers that say how to cache, or for whom to order; the machine caches nothing and executes in order.
const HINTS: [&str; 17] = [
    "ca",
    "cg",
    "cs",
    "cv",
    "lu",
    "wb",
    "wt",
    "weak",
    "cta",
    "gpu",
    "sys",
    "L1::no_allocate",
    "L1::evict_first",
    "L1::evict_last",
    "L2::64B",
    "L2::128B",
    "L2::256B",
];

pub(super) fn lower(name: &[&str], o: &[Operand]) -> Result<Access, String> {
    let mut space = None;
    let mut parts = 1u32;
    let mut strong = false;
    let mut words = Vec::new();
    for word in &name[1..] {
        match *word {
            "global" => space = Some(Space::Global),
            "shared" | "shared::cta" => space = Some(Space::Shared),
            "local" => space = Some(Space::Local),
            "param" => space = Some(Space::Param),
            "v2" => parts = 2,
            "v4" => parts = 4,
            // Strong operations, which do not race with atomics.
            "volatile" | "relaxed" | "acquire" | "release" | "acq_rel" => strong = true,
            // Not coherent with writes of the same launch, which the machine could not show.
            "nc" => return Err("a load that is not coherent is not known".to_owned()),
            hint if HINTS.contains(&hint) => {}
            word => words.push(word),
        }
    }
    let (Some(of), rest) = (words.last().and_then(|t| Type::parse(t)), &words[..words.len().saturating_sub(1)]) else {
        return Err("an access of a type that is not known".to_owned());
    };
    // What is of a block alone orders no other, and this machine does not keep the two apart.
    let is_strong = strong || matches!(name[0], "atom" | "red");
    if is_strong && name.contains(&"cta") && space != Some(Space::Shared) {
        return Err("a strong access to global memory for one block alone is not known".to_owned());
    }
    let part = of.bits() / 8;
    if part * parts > 16 || part == 0 {
        return Err("an access of more than 16 bytes, or of none".to_owned());
    }
    let (address, target) = match (name[0], rest, o) {
        ("ld", [], [to, address]) => {
            (address, Target::Load(vector(to, parts as usize)?.into_iter().map(into).collect::<Result<_, _>>()?))
        }
        ("st", [], [address, value]) => (
            address,
            Target::Store(
                vector(value, parts as usize)?.into_iter().map(|v| stored(v, part)).collect::<Result<_, _>>()?,
            ),
        ),
        ("atom", [op], [old, address, operands @ ..]) => (address, atomic(into(old)?, op, of, operands)?),
        ("red", [op], [address, operands @ ..]) => (address, atomic(Into::Nothing, op, of, operands)?),
        _ => return Err("an access that this machine does not know".to_owned()),
    };
    let &Operand::Address(base, offset) = address else { return Err("an address is wanted here".to_owned()) };
    if matches!(base, Base::Param(_)) != (space == Some(Space::Param)) {
        return Err("a parameter is read by `ld.param`, and by nothing else".to_owned());
    }
    if space == Some(Space::Param) && !matches!(target, Target::Load(_)) {
        return Err("parameters are not written".to_owned());
    }
    Ok(Access { space, base, offset, part, strong, signed: matches!(of, Type::S(_)), target })
}

fn vector(operand: &Operand, parts: usize) -> Result<Vec<&Operand>, String> {
    match operand {
        Operand::Vector(found) if found.len() == parts && parts > 1 => Ok(found.iter().collect()),
        Operand::Vector(found) => Err(format!("a vector of {parts} is wanted, and one of {} is here", found.len())),
        operand if parts == 1 => Ok(vec![operand]),
        _ => Err(format!("a vector of {parts} is wanted")),
    }
}

fn into(operand: &Operand) -> Result<Into, String> {
    match operand {
        Operand::Register(Class::Narrow, index) => Ok(Into::Narrow(*index)),
        Operand::Register(Class::Wide, index) => Ok(Into::Wide(*index)),
        Operand::Sink => Ok(Into::Nothing),
        _ => Err("a register is wanted here".to_owned()),
    }
}

/// What a store takes: a register wider than the type gives its low bytes, as the ISA has it.
fn stored(operand: &Operand, part: u32) -> Result<From, String> {
    if matches!(operand, Operand::Register(Class::Wide, _)) {
        return operand.wide_source().map(From::Wide);
    }
    from(operand, part)
}

fn from(operand: &Operand, part: u32) -> Result<From, String> {
    if part == 8 { operand.wide_source().map(From::Wide) } else { operand.source().map(From::Narrow) }
}

fn atomic(old: Into, op: &str, of: Type, operands: &[Operand]) -> Result<Target, String> {
    let (op, count) = match (op, of) {
        ("exch", Type::B(32 | 64)) => (AtomicOp::Exchange, 1),
        ("cas", Type::B(32 | 64)) => (AtomicOp::CompareAndSwap, 2),
        ("add", Type::U(64)) => (AtomicOp::Add64, 1),
        _ => (AtomicOp::Fold32(folded(op, Some(of))?), 1),
    };
    if operands.len() != count {
        return Err(format!("{count} values are wanted, and {} are here", operands.len()));
    }
    let operands = operands.iter().map(|o| from(o, of.bits() / 8)).collect::<Result<_, _>>()?;
    Ok(Target::Atomic { old, operands, op })
}
