//! Instructions as the disassembler prints them, with the scheduling bits that it does not print.

use serde::Deserialize;

use super::cubin::Cubin;
use super::error::SassError;

/// The register that is always zero.
pub(super) const RZ: u8 = 255;
/// Bytes of an instruction from sm_70 on.
pub(super) const BYTES: u32 = 16;

/// Which half or byte of a register an operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    /// A half, in both places of a packed pair.
    Half(u8),
    Byte(u8),
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Arg {
    /// A register of each lane; `uniform`: one of the warp's.
    Reg { number: u8, uniform: bool, negative: bool, absolute: bool, inverted: bool, part: Part },
    /// A predicate; 7 is always true.
    Pred { number: u8, uniform: bool, inverted: bool },
    /// An integer, or the bits of a 32-bit float, or the upper half of a 64-bit one.
    Number(u32),
    /// A constant: the bank, the register that is added, the offset.
    Constant { bank: u32, register: Option<(u8, bool)>, offset: i32, negative: bool, absolute: bool },
    /// An address: register, uniform register, offset.
    Address { register: Option<u8>, scale: u8, uniform: Option<u8>, offset: i32 },
    /// A convergence barrier.
    Barrier(u8),
    /// A special register, a function or whatever else is a name.
    Name(String),
}

/// What the scheduler is told with each instruction: bits 105 to 125 of it, from sm_70 on, as Jia, Maggioni, Staiger
/// and Scarpazza found them (arXiv 1804.06826, section 2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Control {
    /// Cycles until the warp's next instruction.
    pub(super) stall: u8,
    /// The scoreboard that is released when the result is there; 7 for none.
    pub(super) on_write: u8,
    /// The scoreboard that is released when the operands have been read; 7 for none.
    pub(super) on_read: u8,
    /// Scoreboards that have to be free before.
    pub(super) wait: u8,
}

impl Control {
    fn of(code: &[u8]) -> Self {
        let word = code.iter().rev().fold(0u128, |value, byte| value << 8 | u128::from(*byte));
        let bits = |at: u32, count: u32| (word >> at) as u8 & ((1 << count) - 1);
        Self { stall: bits(105, 4), on_write: bits(110, 3), on_read: bits(113, 3), wait: bits(116, 6) }
    }
}

/// One instruction.
#[derive(Clone, Debug)]
pub(super) struct Inst {
    /// The name without modifiers.
    pub(super) name: String,
    /// What is after the name, `U32`, `GE` and the like.
    pub(super) modifiers: Vec<String>,
    /// The predicate that guards it.
    pub(super) guard: Option<(u8, bool, bool)>,
    pub(super) args: Vec<Arg>,
    pub(super) control: Control,
    /// As it was printed.
    pub(super) text: String,
}

impl Inst {
    pub(super) fn has(&self, modifier: &str) -> bool {
        self.modifiers.iter().any(|m| m == modifier)
    }
}

/// A kernel's code.
#[derive(Clone, Debug)]
pub(super) struct Code {
    pub(super) name: String,
    pub(super) insts: Vec<Inst>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Printout {
    Functions(Vec<Function>),
    Head(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
struct Function {
    #[serde(rename = "function-name")]
    name: String,
    #[serde(rename = "sass-instructions")]
    instructions: Vec<Printed>,
}

#[derive(Deserialize)]
struct Printed {
    #[serde(default)]
    predicate: String,
    opcode: String,
    #[serde(default)]
    operands: String,
}

/// Reads what `nvdisasm -json` prints of a cubin.
///
/// # Errors
/// [`SassError::NotRead`] for a text or an operand that is written otherwise.
pub(super) fn read(json: &[u8], cubin: &Cubin) -> Result<Vec<Code>, SassError> {
    let parts: Vec<Printout> = serde_json::from_slice(json).map_err(|e| SassError::NotRead { text: e.to_string() })?;
    let functions = parts.into_iter().filter_map(|part| match part {
        Printout::Functions(functions) => Some(functions),
        Printout::Head(_) => None,
    });
    functions.flatten().map(|function| code(function, cubin)).collect()
}

fn code(function: Function, cubin: &Cubin) -> Result<Code, SassError> {
    let bytes = cubin.code(&function.name);
    let mut insts = Vec::with_capacity(function.instructions.len());
    for (printed, code) in function.instructions.into_iter().zip(bytes.chunks_exact(BYTES as usize)) {
        let guard = if printed.predicate.is_empty() { String::new() } else { format!("{} ", printed.predicate) };
        let text = format!("{guard}{} {}", printed.opcode, printed.operands).trim_end().to_owned();
        let unread = || SassError::NotRead { text: text.clone() };
        let mut words = printed.opcode.split('.').map(str::to_owned);
        let name = words.next().unwrap_or_default();
        let modifiers = words.collect();
        let low = code.get(4..8).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
        let mut args = Vec::new();
        for operand in split(&printed.operands) {
            // A function's name is its address; what is printed after it is the same for all.
            let start = cubin.symbol(&function.name, operand).map(|value| Arg::Number(value as u32));
            args.push(start.or_else(|| arg(operand, low)).ok_or_else(unread)?);
        }
        let guard = match printed.predicate.strip_prefix('@') {
            None => None,
            Some(predicate) => match arg(predicate, low) {
                Some(Arg::Pred { number, uniform, inverted }) => Some((number, uniform, inverted)),
                _ => return Err(unread()),
            },
        };
        insts.push(Inst { name, modifiers, guard, args, control: Control::of(code), text });
    }
    Ok(Code { name: function.name, insts })
}

/// Operands, between commas that are in no brackets.
fn split(operands: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, byte) in operands.bytes().enumerate() {
        match byte {
            b'[' | b'(' => depth += 1,
            b']' | b')' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(operands[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    let last = operands[start..].trim();
    if !last.is_empty() {
        parts.push(last);
    }
    parts
}

/// `R12`, `RZ`, `UR4`, `URZ`.
fn register(text: &str) -> Option<(u8, bool)> {
    let (rest, uniform) = match text.strip_prefix('U') {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let rest = rest.strip_prefix('R')?;
    if rest == "Z" { Some((RZ, uniform)) } else { Some((rest.parse().ok()?, uniform)) }
}

/// `P0`, `PT`, `UP0`, `UPT`.
fn predicate(text: &str) -> Option<(u8, bool)> {
    let (rest, uniform) = match text.strip_prefix('U') {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let rest = rest.strip_prefix('P')?;
    if rest == "T" { Some((7, uniform)) } else { Some((rest.parse().ok().filter(|n| *n < 7)?, uniform)) }
}

/// `0x10`, `-0x10`.
fn integer(text: &str) -> Option<i64> {
    let (negative, rest) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let value = i64::from_str_radix(rest.strip_prefix("0x")?, 16).ok()?;
    Some(if negative { -value } else { value })
}

/// An operand; `immediate` is where an instruction has a number, which is printed in decimals for floats.
fn arg(operand: &str, immediate: u32) -> Option<Arg> {
    let operand = operand.replace(".reuse", "");
    let operand =
        operand.strip_prefix("desc").map_or(operand.as_str(), |rest| rest.split_once(']').map_or("", |r| r.1));
    if let Some(value) = integer(operand) {
        return Some(Arg::Number(value as u32));
    }
    if let Some(inside) = operand.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return address(inside);
    }
    let (inverted, rest) = operand.strip_prefix(['!', '~']).map_or((false, operand), |rest| (true, rest));
    let (negative, rest) = rest.strip_prefix('-').map_or((false, rest), |rest| (true, rest));
    // `|R1|.B0` has its bars around the register alone.
    let (absolute, unbarred) = match rest.strip_prefix('|').and_then(|rest| rest.split_once('|')) {
        Some((inside, behind)) => (true, format!("{inside}{behind}")),
        None => (false, rest.to_owned()),
    };
    if let Some((number, uniform)) = predicate(&unbarred) {
        return Some(Arg::Pred { number, uniform, inverted });
    }
    if let Some(rest) = unbarred.strip_prefix("c[") {
        let (bank, rest) = rest.split_once("][")?;
        return match address(rest.strip_suffix(']')?)? {
            Arg::Address { register, scale: 1, uniform, offset } => Some(Arg::Constant {
                bank: integer(bank)? as u32,
                register: register.map(|r| (r, false)).or(uniform.map(|r| (r, true))),
                offset,
                negative,
                absolute,
            }),
            _ => None,
        };
    }
    if let Some(rest) = unbarred.strip_prefix('B')
        && let Ok(number) = rest.parse()
    {
        return Some(Arg::Barrier(number));
    }
    let (name, suffix) = unbarred.split_once('.').unwrap_or((&unbarred, ""));
    if let Some((number, uniform)) = register(name) {
        let part = match suffix {
            "" | "64" | "H1_H0" => Part::Whole,
            "H0_H0" | "H0" => Part::Half(0),
            "H1_H1" | "H1" => Part::Half(1),
            "B0" | "B1" | "B2" | "B3" => Part::Byte(suffix.as_bytes()[1] - b'0'),
            _ => return None,
        };
        return Some(Arg::Reg { number, uniform, negative, absolute, inverted, part });
    }
    let starts_a_number = |c: char| c.is_ascii_digit() || c == '.' || c == '+';
    if unbarred.starts_with(starts_a_number) || unbarred == "INF" || unbarred.ends_with("NAN") {
        return Some(Arg::Number(immediate));
    }
    let is_name = unbarred.chars().all(|c| c.is_ascii_alphanumeric() || "_.$".contains(c));
    is_name.then_some(Arg::Name(unbarred))
}

/// `R2.64+UR4+-0x18`.
fn address(inside: &str) -> Option<Arg> {
    let (mut of_lane, mut of_warp, mut offset, mut scale) = (None, None, 0, 1);
    for term in inside.split('+') {
        let (term, suffix) = term.split_once('.').unwrap_or((term, ""));
        scale = match suffix {
            "" | "64" | "U32" => scale,
            _ => suffix.strip_prefix('X')?.parse().ok()?,
        };
        match (integer(term), register(term)) {
            (Some(value), _) => offset = i32::try_from(value).ok()?,
            (None, Some((number, true))) => of_warp = Some(number),
            (None, Some((number, false))) => of_lane = Some(number),
            _ => return None,
        }
    }
    Some(Arg::Address { register: of_lane, scale, uniform: of_warp, offset })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An instruction as it is printed, with scheduling bits.
    pub(in super::super) fn written(text: &str, control: Control) -> Inst {
        let (opcode, operands) = text.split_once(' ').unwrap_or((text, ""));
        let mut words = opcode.split('.').map(str::to_owned);
        Inst {
            name: words.next().unwrap(),
            modifiers: words.collect(),
            guard: None,
            args: split(operands).into_iter().map(|operand| arg(operand, 0).unwrap()).collect(),
            control,
            text: text.to_owned(),
        }
    }

    fn reg(number: u8) -> Arg {
        let part = Part::Whole;
        Arg::Reg { number, uniform: false, negative: false, absolute: false, inverted: false, part }
    }

    #[test]
    fn operands_are_read() {
        let read = |text: &str| split(text).into_iter().map(|part| arg(part, 0x1234).unwrap()).collect::<Vec<_>>();
        assert_eq!(read("R3,RZ,0x5,R18.reuse"), [reg(3), reg(RZ), Arg::Number(5), reg(18)]);
        let pred = |number, uniform, inverted| Arg::Pred { number, uniform, inverted };
        assert_eq!(
            read("P1,PT,UP0,!PT"),
            [pred(1, false, false), pred(7, false, false), pred(0, true, false), pred(7, false, true)]
        );
        let address = Arg::Address { register: Some(8), scale: 1, uniform: None, offset: -0x18 };
        assert_eq!(read("desc[UR6][R8.64+-0x18]"), [address]);
        let constant =
            Arg::Constant { bank: 2, register: Some((26, false)), offset: 12, negative: false, absolute: false };
        assert_eq!(read("c[0x2][R26+0xc]"), [constant]);
        let half = |number| match reg(number) {
            Arg::Reg { number, uniform, negative, absolute, inverted, .. } => {
                Arg::Reg { number, uniform, negative, absolute, inverted, part: Part::Half(1) }
            }
            other => other,
        };
        assert_eq!(
            read("R4.H1_H1,+INF ,0.5,B3,SR_TID.X"),
            [half(4), Arg::Number(0x1234), Arg::Number(0x1234), Arg::Barrier(3), Arg::Name("SR_TID.X".to_owned())]
        );
        let Arg::Reg { negative, absolute, .. } = &read("-|R5|")[0] else { panic!("it is a register") };
        assert!(*negative && *absolute);
        assert_eq!(arg("?!", 0), None);
    }

    #[test]
    fn scheduling_bits_are_where_they_were_found() {
        // FADD of a listing: stall 5, no scoreboards, waits for none.
        let code = [0x04, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x00, 0xca, 0x4f, 0x00];
        assert_eq!(Control::of(&code), Control { stall: 5, on_write: 7, on_read: 7, wait: 4 });
    }
}
