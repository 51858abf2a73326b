//! What a multiprocessor has to give to each kernel: registers, shared memory, and so how many blocks are there
//! together.

use std::fmt::Write as _;

use gradwire_ptx::{FAMILIES, Family, family_of};
use gradwire_tools::side_by_side::side_by_side;

use super::chip::{TARGETS, limits};
use super::error::SassError;
use super::tools::{Resources, Tools};

/// Threads of every block of every kernel: `host/src/plan/pass.rs`.
pub(super) const THREADS: u32 = 256;

/// One kernel for one target.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Of {
    pub(super) used: Resources,
    /// Blocks of a multiprocessor.
    pub(super) blocks: u32,
    /// Bytes of its code.
    pub(super) code: usize,
}

/// One kernel for each of [`TARGETS`].
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) kernel: String,
    pub(super) of: Vec<Of>,
}

/// The text that a device of a capability is given first: that of the highest target that it runs.
pub(super) fn text(family: &Family, sm: u32) -> Result<String, SassError> {
    let artifact = family.artifacts.iter().rfind(|artifact| artifact.target <= sm);
    artifact.map(|a| [a.head, a.instructions()].concat()).ok_or(SassError::UnknownTarget { sm })
}

/// Assembles families for every target, and keeps the kernels whose names have `filter` in them. `wanted` chooses among
/// the families by number.
pub(super) fn all(tools: &Tools, filter: &str, wanted: impl Fn(usize) -> bool) -> Result<Vec<Row>, SassError> {
    let matching = |family: &&Family| {
        let names = |f: &Family| {
            f.artifacts[0].instructions().lines().any(|line| entry(line).is_some_and(|n| n.contains(filter)))
        };
        names(family)
    };
    let families: Vec<&Family> = FAMILIES
        .iter()
        .filter(matching)
        .enumerate()
        .filter(|(index, _)| wanted(*index))
        .map(|(_, family)| family)
        .collect();
    let jobs: Vec<(usize, usize)> = (0..families.len()).flat_map(|f| (0..TARGETS.len()).map(move |t| (f, t))).collect();
    let done = side_by_side(&jobs, || (), |(), (f, t)| of_family(tools, families[*f], TARGETS[*t], filter));
    let mut rows: Vec<Row> = Vec::new();
    for result in done {
        for (kernel, of) in result? {
            match rows.iter_mut().find(|row| row.kernel == kernel) {
                Some(row) => row.of.push(of),
                None => rows.push(Row { kernel, of: vec![of] }),
            }
        }
    }
    Ok(rows)
}

/// The name of the entry point that a line of PTX begins.
fn entry(line: &str) -> Option<&str> {
    line.strip_prefix(".visible .entry ")?.split('(').next()
}

fn of_family(tools: &Tools, family: &Family, sm: u32, filter: &str) -> Result<Vec<(String, Of)>, SassError> {
    let limits = limits(sm).ok_or(SassError::UnknownTarget { sm })?;
    let assembled = tools.assemble(&text(family, sm)?, sm)?;
    let row = |(kernel, used): &(String, Resources)| {
        let blocks = limits.resident(used.registers, used.shared, THREADS);
        (kernel.clone(), Of { used: *used, blocks, code: assembled.cubin.code(kernel).len() })
    };
    let mut rows: Vec<_> = assembled.resources.iter().filter(|(kernel, _)| kernel.contains(filter)).map(row).collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(rows)
}

/// Blocks of one kernel on a multiprocessor of a target, and what it uses.
pub(super) fn of_kernel(tools: &Tools, kernel: &str, sm: u32) -> Result<(u32, Resources), SassError> {
    let family = family_of(kernel).ok_or_else(|| SassError::UnknownKernel { kernel: kernel.to_owned() })?;
    let of = of_family(tools, family, sm, kernel)?.into_iter().find(|(name, _)| name == kernel);
    of.map(|(_, of)| (of.blocks, of.used)).ok_or_else(|| SassError::UnknownKernel { kernel: kernel.to_owned() })
}

/// The table as Markdown.
pub(super) fn table(rows: &[Row]) -> String {
    let mut text = String::from("| kernel |");
    for sm in TARGETS {
        let _ = write!(text, " sm_{sm} |");
    }
    let _ = write!(text, " shared | code |\n|{}\n", " --- |".repeat(TARGETS.len() + 3));
    for row in rows {
        let _ = write!(text, "| `{}` |", row.kernel);
        for of in &row.of {
            let spills = if of.used.stack == 0 { String::new() } else { format!(", stack {}", of.used.stack) };
            let _ = write!(text, " {} / {}{spills} |", of.used.registers, of.blocks);
        }
        let hopper = TARGETS.iter().position(|sm| *sm == 90).and_then(|at| row.of.get(at));
        let (shared, code) = hopper.map_or((0, 0), |of| (of.used.shared, of.code));
        let _ = writeln!(text, " {shared} | {:.1} |", code as f64 / 1024.0);
    }
    text
}
