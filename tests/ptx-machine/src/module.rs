//! A module made ready to run, a kernel at a time: kernels whose text was made ready before are not made ready again.
//!
//! A module of Gradwire's is some megabytes of text, which takes the better part of a second, and a test has many
//! machines. Those of one process share what was made of a kernel's text, whatever stands before it: the texts of
//! several targets differ by their heads alone, and a text with a planted fault by a few kernels.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::fault::Rejected;
use crate::kernel::Kernel;
use crate::parse::{Body, Parser};

/// A kernel and where it stands.
#[derive(Clone)]
pub(crate) struct Placed {
    /// With lines counted from the beginning of its own text.
    pub(crate) kernel: Arc<Kernel>,
    /// The module's lines before that.
    pub(crate) lines_before: u32,
}

/// A module.
pub(crate) struct Module {
    pub(crate) version: (u32, u32),
    pub(crate) target: u32,
    parts: Vec<(u32, Part)>,
}

/// What came of a part of a module's text.
enum Part {
    Ready(Ready),
    /// Kernels to be made ready, what to remember them by, and how many shared variables of the module were declared
    /// before.
    Parsed {
        kernels: Vec<Body>,
        key: Option<Key>,
        declared: Vec<(String, String)>,
    },
}

/// A part's text, after the shared variables that the module had declared before it.
type Key = (Vec<(String, String)>, String);

#[derive(Clone)]
struct Ready {
    kernels: Vec<Arc<Kernel>>,
    /// Shared variables of the module that are declared after its kernel.
    declared: Vec<(String, String)>,
}

/// Bytes of text beyond which what was remembered is forgotten.
const MOST: usize = 64 << 20;

#[derive(Default)]
struct Remembered {
    parts: HashMap<Key, Ready>,
    bytes: usize,
}

static REMEMBERED: Mutex<Option<Remembered>> = Mutex::new(None);

fn remembered<T>(with: impl FnOnce(&mut Remembered) -> T) -> T {
    with(REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// The parts of a text: what is before its first kernel, and each kernel with what follows it.
fn parts(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    // In a comment of several lines, what looks like a kernel may be none.
    while let Some(at) = rest.find("\n.visible .entry").filter(|_| !text.contains("/*")) {
        let (part, behind) = rest.split_at(at + 1);
        parts.push(part);
        rest = behind;
    }
    parts.push(rest);
    parts
}

impl Module {
    /// Reads a text. Its kernels are checked by [`Module::kernels`].
    pub(crate) fn parse(text: &str) -> Result<Self, Rejected> {
        let mut parser = Parser::default();
        let mut done = Vec::new();
        let mut lines_before = 0;
        for part in parts(text) {
            let key = part.starts_with(".visible").then(|| (parser.shared.clone(), part.to_owned()));
            let known = key.as_ref().and_then(|key| remembered(|r| r.parts.get(key).cloned()));
            let of_part = if let Some(ready) = known {
                parser.shared.extend_from_slice(&ready.declared);
                Part::Ready(ready)
            } else {
                let declared = parser.shared.len();
                parser.read(part).map_err(|rejected| rejected.behind(lines_before))?;
                let (kernels, declared) = (std::mem::take(&mut parser.kernels), parser.shared[declared..].to_vec());
                Part::Parsed { kernels, key, declared }
            };
            done.push((lines_before, of_part));
            lines_before += part.matches('\n').count() as u32;
        }
        let at_end = |why: &str| Rejected { line: text.lines().count() as u32, why: why.to_owned() };
        let version = parser.version.ok_or_else(|| at_end("there is no `.version`"))?;
        let target = parser.target.ok_or_else(|| at_end("there is no `.target`"))?;
        Ok(Self { version, target, parts: done })
    }

    /// Its kernels, in their order.
    pub(crate) fn kernels(self) -> Result<Vec<Placed>, Rejected> {
        let mut placed = Vec::new();
        for (lines_before, part) in self.parts {
            let ready = match part {
                Part::Ready(ready) => ready,
                Part::Parsed { kernels, key, declared } => {
                    let kernels = kernels.into_iter().map(|body| Kernel::new(body).map(Arc::new));
                    let kernels = kernels.collect::<Result<_, _>>().map_err(|r: Rejected| r.behind(lines_before))?;
                    let ready = Ready { kernels, declared };
                    if let Some(key) = key {
                        remembered(|r| {
                            if r.bytes + key.1.len() > MOST {
                                *r = Remembered::default();
                            }
                            r.bytes += key.1.len();
                            r.parts.insert(key, ready.clone());
                        });
                    }
                    ready
                }
            };
            placed.extend(ready.kernels.into_iter().map(|kernel| Placed { kernel, lines_before }));
        }
        Ok(placed)
    }
}
