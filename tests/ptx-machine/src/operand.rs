//! Operands of instructions, and the registers and symbols that they name.

use std::collections::HashMap;

use crate::fault::Space;
use crate::text::list;
use crate::warp::{Source, Special, WideSource};

/// The class of a register; 16- and 32-bit registers are of one class, and never share a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Pred,
    Narrow,
    Wide,
}

/// An operand, its names resolved.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    Register(Class, usize),
    /// A literal; of a float its bits.
    Constant(u64),
    Special(Special),
    /// The address of a variable in its space.
    Symbol(Space, u64),
    Address(Base, i64),
    Vector(Vec<Operand>),
    /// `a|b`.
    Pair(Box<[Operand; 2]>),
    /// `_`, or a scratch that nothing reads.
    Sink,
}

/// What an address starts from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Base {
    Narrow(usize),
    Wide(usize),
    Symbol(Space, u64),
    /// The parameter of that index.
    Param(usize),
}

/// One `.reg` directive.
#[derive(Clone, Debug)]
pub(crate) struct Registers {
    class: Class,
    first: usize,
    /// `%r<7>` declares `%r0` to `%r6`; without it, the name is one register's.
    count: Option<usize>,
}

/// The names that a statement can use.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub(crate) scopes: Vec<HashMap<String, Registers>>,
    pub(crate) symbols: HashMap<String, (Space, u64)>,
    pub(crate) params: Vec<(String, u32)>,
    /// Registers declared so far, of each class.
    pub(crate) preds: usize,
    pub(crate) narrow: usize,
    pub(crate) wide: usize,
}

impl Names {
    pub(crate) fn enter(&mut self) {
        self.scopes.push(HashMap::new());
    }

    pub(crate) fn leave(&mut self) {
        self.scopes.pop();
    }

    /// `.reg .b32 %r<7>` or `.reg .b32 a, b`, without the `.reg`.
    pub(crate) fn declare(&mut self, declaration: &str) -> Result<(), String> {
        let (kind, names) = declaration.split_once(' ').ok_or("a `.reg` without a name")?;
        let class = match kind.trim_start_matches('.') {
            "pred" => Class::Pred,
            "b16" | "u16" | "s16" | "f16" | "bf16" | "b32" | "u32" | "s32" | "f32" => Class::Narrow,
            "b64" | "u64" | "s64" | "f64" => Class::Wide,
            _ => return Err(format!("registers of type {kind} are not known")),
        };
        for name in list(names) {
            let (name, count) = match name.split_once('<') {
                None => (name, None),
                Some((name, count)) => {
                    let count = count.trim_end_matches('>').parse().ok().filter(|count| *count <= 1 << 20);
                    (name, Some(count.ok_or_else(|| format!("`{declaration}` is of no count up to 2^20"))?))
                }
            };
            let total = match class {
                Class::Pred => &mut self.preds,
                Class::Narrow => &mut self.narrow,
                Class::Wide => &mut self.wide,
            };
            let registers = Registers { class, first: *total, count };
            *total += count.unwrap_or(1);
            self.scopes.last_mut().ok_or("a `.reg` outside of a body")?.insert(name.to_owned(), registers);
        }
        Ok(())
    }

    fn register(&self, name: &str) -> Option<(Class, usize)> {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        self.scopes.iter().rev().find_map(|scope| {
            if let Some(Registers { class, first, count: None }) = scope.get(name) {
                return Some((*class, *first));
            }
            let Registers { class, first, count } = scope.get(stem)?;
            let number: usize = name[stem.len()..].parse().ok()?;
            (Some(number) < *count).then_some((*class, first + number))
        })
    }

    /// Resolves an operand.
    pub(crate) fn operand(&self, text: &str) -> Result<Operand, String> {
        // Vectors of vectors and the like are nothing, and are not followed down.
        if text.matches(['[', '{', '|']).count() > 1 {
            return Err(format!("`{text}` is no operand"));
        }
        if let Some(inner) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
            return self.address(inner.trim());
        }
        if let Some(inner) = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
            return list(inner).into_iter().map(|t| self.operand(t)).collect::<Result<_, _>>().map(Operand::Vector);
        }
        if let Some((a, b)) = text.split_once('|') {
            return Ok(Operand::Pair(Box::new([self.operand(a.trim())?, self.operand(b.trim())?])));
        }
        if text == "_" {
            return Ok(Operand::Sink);
        }
        if let Some((class, index)) = self.register(text) {
            return Ok(Operand::Register(class, index));
        }
        if let Some((space, at)) = self.symbols.get(text) {
            return Ok(Operand::Symbol(*space, *at));
        }
        if let Some(special) = special(text) {
            return Ok(special);
        }
        constant(text).map(Operand::Constant).ok_or_else(|| format!("`{text}` is neither declared nor a number"))
    }

    fn address(&self, text: &str) -> Result<Operand, String> {
        let (base, offset) = match text.split_once('+') {
            Some((base, offset)) => (base.trim(), offset.trim()),
            None => (text, "0"),
        };
        let offset: i64 = offset.parse().map_err(|_| format!("`{offset}` is no offset"))?;
        let base = if let Some(index) = self.params.iter().position(|(name, _)| name == base) {
            Base::Param(index)
        } else {
            match self.operand(base)? {
                Operand::Register(Class::Narrow, index) => Base::Narrow(index),
                Operand::Register(Class::Wide, index) => Base::Wide(index),
                Operand::Symbol(space, at) => Base::Symbol(space, at),
                _ => return Err(format!("`{base}` is no address")),
            }
        };
        Ok(Operand::Address(base, offset))
    }
}

fn special(text: &str) -> Option<Operand> {
    Some(match text {
        "%tid.x" => Operand::Special(Special::Thread),
        "%ntid.x" => Operand::Special(Special::Threads),
        "%ctaid.x" => Operand::Special(Special::Block),
        "%nctaid.x" => Operand::Special(Special::Blocks),
        "%laneid" => Operand::Special(Special::Lane),
        "%warpid" => Operand::Special(Special::WarpIndex),
        "%tid.y" | "%tid.z" | "%ctaid.y" | "%ctaid.z" => Operand::Constant(0),
        "%ntid.y" | "%ntid.z" | "%nctaid.y" | "%nctaid.z" => Operand::Constant(1),
        "WARP_SZ" => Operand::Constant(32),
        _ => return None,
    })
}

/// A literal: decimal, hexadecimal, or a float as `0f` or `0d` and its bits.
fn constant(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches('U');
    // A zero in front would make it octal.
    if digits.len() > 1 && digits.bytes().all(|b| b.is_ascii_digit()) && digits.starts_with('0') {
        return None;
    }
    if let Some(bits) = digits.strip_prefix("0f").or(digits.strip_prefix("0F")) {
        return (bits.len() == 8).then(|| u64::from_str_radix(bits, 16).ok())?;
    }
    if let Some(bits) = digits.strip_prefix("0d").or(digits.strip_prefix("0D")) {
        return (bits.len() == 16).then(|| u64::from_str_radix(bits, 16).ok())?;
    }
    if let Some(hex) = digits.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    digits.parse::<u64>().ok().or_else(|| digits.parse::<i64>().ok().map(|v| v as u64))
}

impl Operand {
    pub(crate) fn pred(&self) -> Result<usize, String> {
        match self {
            Self::Register(Class::Pred, index) => Ok(*index),
            _ => Err("a predicate is wanted here".to_owned()),
        }
    }

    pub(crate) fn narrow(&self) -> Result<usize, String> {
        match self {
            Self::Register(Class::Narrow, index) => Ok(*index),
            _ => Err("a 16- or 32-bit register is wanted here".to_owned()),
        }
    }

    pub(crate) fn wide(&self) -> Result<usize, String> {
        match self {
            Self::Register(Class::Wide, index) => Ok(*index),
            _ => Err("a 64-bit register is wanted here".to_owned()),
        }
    }

    pub(crate) fn source(&self) -> Result<Source, String> {
        match self {
            Self::Register(Class::Narrow, index) => Ok(Source::Register(*index)),
            // A literal is cut to the type's width, as the ISA has it.
            Self::Constant(value) => Ok(Source::Constant(*value as u32)),
            Self::Symbol(_, at) => Ok(Source::Constant(*at as u32)),
            Self::Special(special) => Ok(Source::Special(*special)),
            _ => Err("a value of 16 or 32 bits is wanted here".to_owned()),
        }
    }

    pub(crate) fn wide_source(&self) -> Result<WideSource, String> {
        match self {
            Self::Register(Class::Wide, index) => Ok(WideSource::Register(*index)),
            Self::Constant(value) | Self::Symbol(_, value) => Ok(WideSource::Constant(*value)),
            _ => Err("a value of 64 bits is wanted here".to_owned()),
        }
    }
}
