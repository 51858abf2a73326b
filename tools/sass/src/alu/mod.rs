//! What an instruction does to registers: everything but memory and the flow of control.

mod exchange;
mod float;
mod integer;
mod maps;
mod matrix;
mod predicate;

use super::inst::{Arg, Inst};
use super::warp::{Source, Warp, lanes};

/// What an instruction does for the lanes of a mask.
pub(super) type Action = Box<dyn Fn(&mut Warp, u32) + Send + Sync>;

/// The action of an instruction; none for one that is not known here.
pub(super) fn lower(inst: &Inst) -> Option<Action> {
    // The uniform datapath has the same instructions under names that begin with U.
    let name = match inst.name.as_str() {
        "UPRMT" | "UMOV" | "ULEA" | "USEL" | "UIADD3" | "UIMAD" | "USHF" | "ULOP3" | "UPOPC" | "UFLO" | "UISETP"
        | "UPLOP3" | "USGXT" | "UIMNMX" | "UVIMNMX" | "UVIADD" | "UBREV" | "USETP" | "UFFMA" | "UFMUL" | "UFADD"
        | "UFSEL" | "UFSETP" | "UI2FP" | "UF2I" | "UIADD" => &inst.name[1..],
        name => name,
    };
    let args = || Args { rest: &inst.args };
    integer::lower(name, inst, args())
        .or_else(|| predicate::lower(name, inst, args()))
        .or_else(|| float::lower(name, inst, args()))
        .or_else(|| exchange::lower(name, inst, args()))
        .or_else(|| matrix::lower(name, inst, args()))
}

/// Operands that are taken one after another.
pub(super) struct Args<'a> {
    rest: &'a [Arg],
}

/// A register that is written: its number, and whether it is the warp's.
pub(super) type Target = (u8, bool);

impl<'a> Args<'a> {
    fn next(&mut self) -> Option<&'a Arg> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    fn left(&self) -> usize {
        self.rest.len()
    }

    /// A register that is written.
    fn target(&mut self) -> Option<Target> {
        match self.next()? {
            Arg::Reg { number, uniform, .. } => Some((*number, *uniform)),
            _ => None,
        }
    }

    fn source(&mut self) -> Option<Source> {
        Source::of(self.next()?)
    }

    /// A predicate that is read.
    fn pred(&mut self) -> Option<(u8, bool, bool)> {
        match self.next()? {
            Arg::Pred { number, uniform, inverted } => Some((*number, *uniform, *inverted)),
            _ => None,
        }
    }

    /// A predicate that is written.
    fn pred_out(&mut self) -> Option<(u8, bool)> {
        self.pred().filter(|(_, _, inverted)| !inverted).map(|(number, uniform, _)| (number, uniform))
    }

    /// Predicates, as long as there are any.
    fn preds(&mut self) -> Vec<(u8, bool, bool)> {
        let mut all = Vec::new();
        while let Some(Arg::Pred { number, uniform, inverted }) = self.rest.first() {
            all.push((*number, *uniform, *inverted));
            self.rest = &self.rest[1..];
        }
        all
    }

    fn number(&mut self) -> Option<u32> {
        match self.next()? {
            Arg::Number(value) => Some(*value),
            _ => None,
        }
    }

    fn name(&mut self) -> Option<&'a str> {
        match self.next()? {
            Arg::Name(name) => Some(name),
            _ => None,
        }
    }
}

/// Writes what a function of a lane gives: for each lane of the mask, or once for the warp.
fn write(w: &mut Warp, (number, uniform): Target, mask: u32, value: impl Fn(&Warp, usize) -> u32) {
    if uniform {
        let value = value(w, mask.trailing_zeros() as usize % 32);
        w.set_ureg(number, value);
        return;
    }
    for lane in lanes(mask) {
        let value = value(w, lane);
        w.set_reg(number, lane, value);
    }
}

/// The same for a pair of registers.
fn write_pair(w: &mut Warp, (number, uniform): Target, mask: u32, value: impl Fn(&Warp, usize) -> u64) {
    let high = if number == super::inst::RZ { number } else { number + 1 };
    if uniform {
        let value = value(w, mask.trailing_zeros() as usize % 32);
        w.set_ureg(number, value as u32);
        w.set_ureg(high, (value >> 32) as u32);
        return;
    }
    for lane in lanes(mask) {
        let value = value(w, lane);
        w.set_reg(number, lane, value as u32);
        w.set_reg(high, lane, (value >> 32) as u32);
    }
}

/// The lanes of a mask for which something holds.
fn which(mask: u32, of: impl Fn(usize) -> bool) -> u32 {
    lanes(mask).filter(|lane| of(*lane)).fold(0, |all, lane| all | 1 << lane)
}

/// One register from each lane's.
fn map(target: Target, f: impl Fn(&Warp, usize) -> u32 + Send + Sync + 'static) -> Option<Action> {
    Some(Box::new(move |w, mask| write(w, target, mask, &f)))
}
