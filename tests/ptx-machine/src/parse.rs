//! A PTX module: its version, its variables and its kernels, as far as they are text.

use std::collections::HashMap;

use crate::fault::{Rejected, Space};
use crate::operand::{Names, Operand};
use crate::text::{Piece, list, split};

/// A kernel's text, taken apart.
#[derive(Debug, Default)]
pub(crate) struct Body {
    pub(crate) name: String,
    /// Bytes of each parameter.
    pub(crate) params: Vec<u32>,
    pub(crate) shared_bytes: u64,
    pub(crate) local_bytes: u64,
    /// How many registers there are: predicates, narrow ones, wide ones.
    pub(crate) registers: [usize; 3],
    pub(crate) statements: Vec<Statement>,
    /// The statement after each label.
    pub(crate) labels: HashMap<String, usize>,
}

/// An instruction.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub(crate) line: u32,
    pub(crate) text: String,
    /// The predicate it is executed under, and whether that is negated.
    pub(crate) guard: Option<(usize, bool)>,
    /// The name and its suffixes: `add`, `rn`, `f32`.
    pub(crate) opcode: Vec<String>,
    pub(crate) operands: Vec<Operand>,
    /// Of a branch.
    pub(crate) target: Option<String>,
}

/// What is known of a module, as far as its text was read.
#[derive(Default)]
pub(crate) struct Parser {
    pub(crate) version: Option<(u32, u32)>,
    pub(crate) target: Option<u32>,
    pub(crate) kernels: Vec<Body>,
    /// Module-scope shared variables, by name, and their declarations.
    pub(crate) shared: Vec<(String, String)>,
    open: Option<(Body, Names)>,
    depth: u32,
}

impl Parser {
    /// Reads on in a module's text. What is read must end outside of any kernel.
    pub(crate) fn read(&mut self, text: &str) -> Result<(), Rejected> {
        let pieces = split(text).map_err(|(line, why)| Rejected { line, why })?;
        for (line, piece) in pieces {
            self.piece(line, piece).map_err(|why| Rejected { line, why })?;
        }
        match self.open {
            None => Ok(()),
            Some(_) => {
                Err(Rejected { line: text.lines().count() as u32, why: "the last body is not closed".to_owned() })
            }
        }
    }

    fn piece(&mut self, line: u32, piece: Piece) -> Result<(), String> {
        if self.open.is_some() && self.depth == 0 && piece != Piece::Open {
            return Err("a kernel without a body".to_owned());
        }
        match (piece, &mut self.open) {
            (Piece::Open, Some((_, names))) => {
                names.enter();
                self.depth += 1;
            }
            (Piece::Close, Some((_, names))) => {
                names.leave();
                self.depth -= 1;
                if self.depth == 0 {
                    self.close();
                }
            }
            (Piece::Label(name), Some((body, _))) => {
                if body.labels.insert(name.clone(), body.statements.len()).is_some() {
                    return Err(format!("the label {name} is there twice"));
                }
            }
            (Piece::Statement(text), Some(_)) => self.statement(line, &text)?,
            (Piece::Statement(text), None) => self.directive(&text)?,
            (piece, None) => return Err(format!("{piece:?} outside of a kernel")),
        }
        Ok(())
    }

    fn close(&mut self) {
        if let Some((mut body, names)) = self.open.take() {
            body.registers = [names.preds, names.narrow, names.wide];
            self.kernels.push(body);
        }
    }

    fn directive(&mut self, text: &str) -> Result<(), String> {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        match word {
            ".version" => {
                let parts = rest.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.trim().parse().ok()?)));
                self.version = Some(parts.ok_or_else(|| format!("`{rest}` is no version"))?);
            }
            ".target" => {
                let target = rest.split(',').next().unwrap_or("").trim().strip_prefix("sm_");
                let target = target.and_then(|t| t.parse().ok());
                self.target = Some(target.ok_or_else(|| format!("`{rest}` is no target"))?);
            }
            ".address_size" if rest == "64" => {}
            ".shared" => {
                let mut alone = HashMap::new();
                variable(rest, Space::Shared, 0, &mut alone)?;
                self.shared.extend(alone.into_keys().map(|name| (name, rest.to_owned())));
            }
            ".visible" | ".entry" => self.entry(text)?,
            _ => return Err(format!("`{text}` is a directive that this machine does not know")),
        }
        Ok(())
    }

    /// `.visible .entry name ( params )`, and directives that only steer the compiler.
    fn entry(&mut self, text: &str) -> Result<(), String> {
        let text = text.trim_start_matches(".visible").trim();
        let text = text.strip_prefix(".entry").ok_or_else(|| format!("`{text}` is no kernel"))?;
        let (name, rest) = text.split_once('(').ok_or_else(|| format!("`{text}` has no parameters"))?;
        let (params, tail) = rest.split_once(')').ok_or_else(|| format!("`{text}` does not close"))?;
        let known = [".maxntid", ".reqntid", ".minnctapersm", ".maxnreg", ".noreturn"];
        for word in tail.split_whitespace().filter(|w| w.starts_with('.')) {
            if !known.contains(&word) {
                return Err(format!("`{word}` behind a kernel's parameters is not known"));
            }
        }
        let mut names = Names::default();
        for param in list(params) {
            names.params.push(parameter(param)?);
        }
        let body = Body {
            name: name.trim().to_owned(),
            params: names.params.iter().map(|(_, bytes)| *bytes).collect(),
            ..Body::default()
        };
        self.open = Some((body, names));
        Ok(())
    }

    fn statement(&mut self, line: u32, text: &str) -> Result<(), String> {
        let Some((body, names)) = &mut self.open else { return Ok(()) };
        let say = |why: String| format!("`{text}`: {why}");
        if let Some(rest) = text.strip_prefix('.') {
            let (word, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            return match word {
                "reg" => names.declare(rest),
                "local" => {
                    variable(rest, Space::Local, body.local_bytes, &mut names.symbols).map(|at| body.local_bytes = at)
                }
                "shared" => variable(rest, Space::Shared, body.shared_bytes, &mut names.symbols)
                    .map(|at| body.shared_bytes = at),
                // Line tables, and hints on unrolling.
                "loc" | "file" | "pragma" => Ok(()),
                _ => Err("a directive that this machine does not know".to_owned()),
            }
            .map_err(say);
        }
        let mut rest = text;
        let mut guard = None;
        if let Some(guarded) = text.strip_prefix('@') {
            let (pred, instruction) = guarded.split_once(' ').ok_or_else(|| say("a guard of nothing".to_owned()))?;
            let pred = names.operand(pred.trim_start_matches('!')).and_then(|p| p.pred()).map_err(say)?;
            guard = Some((pred, guarded.starts_with('!')));
            rest = instruction;
        }
        let (opcode, operands) = rest.split_once(' ').unwrap_or((rest, ""));
        // A kernel has those of the module's variables that it names.
        for (name, declaration) in self.shared.iter().filter(|(name, _)| operands.contains(name.as_str())) {
            if !names.symbols.contains_key(name) {
                let end = variable(declaration, Space::Shared, body.shared_bytes, &mut names.symbols).map_err(say)?;
                body.shared_bytes = end;
            }
        }
        let opcode: Vec<String> = opcode.split('.').map(str::to_owned).collect();
        let (target, operands) = if opcode[0] == "bra" {
            (Some(operands.trim().to_owned()), Vec::new())
        } else {
            let operands: Result<_, _> = list(operands).into_iter().map(|t| names.operand(t)).collect();
            (None, operands.map_err(say)?)
        };
        body.statements.push(Statement { line, text: text.to_owned(), guard, opcode, operands, target });
        Ok(())
    }
}

/// Bytes of static shared memory that every device has; a thread's local memory is held to the same.
const LARGEST: u64 = 48 << 10;

/// `.align 4 .b8 name[192]`: puts the name where the next aligned byte is, and returns the end.
fn variable(text: &str, space: Space, end: u64, symbols: &mut HashMap<String, (Space, u64)>) -> Result<u64, String> {
    let mut words = text.split_whitespace();
    let mut align = None;
    let mut word = words.next();
    if word == Some(".align") {
        align = words.next().and_then(|w| w.parse::<u64>().ok());
        word = words.next();
    }
    let size = word.and_then(size_of).ok_or_else(|| format!("`{text}` has no type that is known"))?;
    let name = words.next().ok_or_else(|| format!("`{text}` has no name"))?;
    let (name, count) = match name.split_once('[') {
        None => (name, Some(1)),
        Some((name, count)) => (name, count.trim_end_matches(']').parse::<u64>().ok()),
    };
    let align = align.unwrap_or(u64::from(size));
    let (Some(count @ 0..=LARGEST), None, true) = (count, words.next(), align.is_power_of_two() && align <= LARGEST)
    else {
        return Err(format!("`{text}` cannot be laid out"));
    };
    let at = end.next_multiple_of(align);
    symbols.insert(name.to_owned(), (space, at));
    match at + count * u64::from(size) {
        end @ 0..=LARGEST => Ok(end),
        end => Err(format!("`{text}` makes {end} bytes of {space} memory, and {LARGEST} are what every device has")),
    }
}

/// `.param .align 4 .b8 name[64]` or `.param .u64 .ptr .align 1 name`: the name and the bytes.
fn parameter(text: &str) -> Result<(String, u32), String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let size = words.iter().find_map(|w| size_of(w));
    let (Some(&".param"), Some(size), Some(name)) = (words.first(), size, words.last()) else {
        return Err(format!("`{text}` is a parameter of no type that is known"));
    };
    match name.split_once('[') {
        None => Ok(((*name).to_owned(), size)),
        Some((name, count)) => match count.trim_end_matches(']').parse::<u32>() {
            Ok(count @ 0..=4096) => Ok((name.to_owned(), count * size)),
            _ => Err(format!("`{text}` is of no known size")),
        },
    }
}

fn size_of(word: &str) -> Option<u32> {
    match word {
        ".b8" | ".u8" | ".s8" => Some(1),
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => Some(2),
        ".b32" | ".u32" | ".s32" | ".f32" => Some(4),
        ".b64" | ".u64" | ".s64" | ".f64" => Some(8),
        _ => None,
    }
}
