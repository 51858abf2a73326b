//! The page that is made of it all: `docs/sass.md`.

use std::fmt::Write as _;

use gradwire_tools::checkout::root;
use serde_json::Value;

use super::error::SassError;
use super::pipe::Pipe;
use super::predict::{Part, Predicted};
use super::replay::{H100, H200};
use super::resources;
use super::why;

/// Where it is committed.
pub(super) const PAGE: &str = "docs/sass.md";
/// What the H100 said.
const REPORT: &str = "benches/results/h100-2026-11-26/report.json";

/// Seconds that the H100 took for an operation; none if it was not asked.
pub(super) fn measured(report: &Value, predicted: &Predicted) -> Option<f64> {
    let [codec, setting, op, dtype] = predicted.reported.as_ref()?;
    // Feedback of a codec that has to shrink what it sends is named so in the report.
    let shrunk = format!("{op}, contractive");
    let is = |row: &Value| {
        [("codec", codec), ("setting", setting), ("dtype", dtype)].iter().all(|(key, value)| row[key] == ***value)
            && (row["op"] == **op || row["op"] == *shrunk)
            && row["elements"].as_u64() == Some(predicted.of)
    };
    report["devices"].as_array()?.first()?["rows"].as_array()?.iter().find(|row| is(row))?["seconds"].as_f64()
}

/// The report of the H100.
pub(super) fn report() -> Result<Value, SassError> {
    let path = root().join(REPORT);
    let bytes = std::fs::read(&path).map_err(|e| SassError::file(&path, &e))?;
    serde_json::from_slice(&bytes).map_err(|e| SassError::File { path, why: e.to_string() })
}

/// The whole page.
///
/// # Errors
/// [`SassError::NotThere`] where the reasons are about what is not in the tables.
pub(super) fn page(all: &[Predicted], rows: &[resources::Row], report: &Value) -> Result<String, SassError> {
    let (beside, mean, worst) = beside(all, report);
    let head = HEAD.replace("{mean}", &format!("{mean:.0}")).replace("{worst}", &format!("{worst:.0}"));
    let (operations, why, kernels) = (operations(all), why::why(all)?, kernels(all));
    Ok(format!("{head}{operations}{why}{KERNELS}{kernels}{BESIDE}{beside}{RESOURCES}{}", resources::table(rows)))
}

/// Lines of the page that speak of these operations, and of these kernels' registers.
pub(super) fn part(all: &[Predicted], rows: &[resources::Row], report: &Value) -> String {
    let (beside, ..) = beside(all, report);
    [operations(all), kernels(all), beside, resources::table(rows)]
        .concat()
        .lines()
        .filter(|l| speaks_of(l, all, rows))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// [`part`] of the committed page. Its reasons are about all operations together, and are left out.
pub(super) fn part_of(page: &str, all: &[Predicted], rows: &[resources::Row]) -> String {
    let begin = page.find(why::HEADING).unwrap_or(page.len());
    let end = page.find(KERNELS).unwrap_or(page.len()).max(begin);
    page[..begin]
        .lines()
        .chain(page[end..].lines())
        .filter(|l| speaks_of(l, all, rows))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// Whether a line is a row of one of these operations, or of one of these kernels.
fn speaks_of(line: &str, all: &[Predicted], rows: &[resources::Row]) -> bool {
    all.iter().any(|p| line.starts_with(&format!("| {} | {} |", p.codec, p.op)))
        || rows.iter().any(|row| line.starts_with(&format!("| `{}` |", row.kernel)))
}

/// Operations: time and share on an H200.
pub(super) fn operations(all: &[Predicted]) -> String {
    let mut text = String::from("| codec | operation | us | of the copy rate | longest launch |\n|");
    let _ = writeln!(text, "{}", " --- |".repeat(5));
    for p in all {
        let longest = p.parts.iter().max_by(|a, b| a.seconds[1].total_cmp(&b.seconds[1]));
        let longest = longest.map_or(String::new(), |part| format!("`{}` {:.0}", part.kernel, part.seconds[1] * 1e6));
        let (us, share) = (p.seconds(1) * 1e6, 100.0 * p.share(1, &H200));
        let _ = writeln!(text, "| {} | {} | {us:.0} | {share:.0} % | {longest} |", p.codec, p.op);
    }
    text
}

/// Launches: what they cost per element.
pub(super) fn kernels(all: &[Predicted]) -> String {
    let mut text = String::from(
        "| codec | operation | kernel | registers | blocks | instructions | integer | multiply-add | float | special, double, \
         matrix | shuffle | memory | uniform | control | loads | KB in flight | barriers | inner loop | us | issue |\n|",
    );
    let _ = writeln!(text, "{}", " --- |".repeat(20));
    for p in all {
        // One that costs nothing per element is of no matter here.
        for part in p.parts.iter().filter(|part| part.cost.instructions() >= 0.05) {
            let _ = writeln!(text, "| {} | {} | {}", p.codec, p.op, kernel(part));
        }
    }
    text
}

fn kernel(part: &Part) -> String {
    let cost = &part.cost;
    let of = |pipe| cost.pipe(pipe);
    let rare = of(Pipe::Special) + of(Pipe::Double) + of(Pipe::Matrix);
    let inner = cost.inner.map_or("-".to_owned(), |(length, flow)| format!("{length}, {flow}"));
    let (us, issue) = match (part.seconds.get(1), part.issued.get(1)) {
        (Some(seconds), Some(issued)) => (format!("{:.0}", seconds * 1e6), format!("{:.0} %", issued * 100.0)),
        _ => ("-".to_owned(), "-".to_owned()),
    };
    let kilobytes = cost.in_flight * f64::from(part.blocks * resources::THREADS) / 1024.0;
    let pipes = [of(Pipe::Integer), of(Pipe::MultiplyAdd), of(Pipe::Float), rare];
    let others = [Pipe::Shuffle, Pipe::Memory, Pipe::Uniform, Pipe::Control].map(of);
    let counts: String = pipes.into_iter().chain(others).map(|count| format!("{count:.1} | ")).collect();
    format!(
        "`{}` | {} | {} | {:.1} | {counts}{:.1} | {kilobytes:.1} | {:.1} | {inner} | {us} | {issue} |",
        part.kernel,
        part.used.registers,
        part.blocks,
        cost.instructions(),
        cost.loads,
        cost.barriers,
    )
}

/// The replay of an H100 beside what it took: the table, and by how much they differ, on average and at most, in per
/// cent.
fn beside(all: &[Predicted], report: &Value) -> (String, f64, f64) {
    let mut text = String::from("| codec | operation | replay, us | measured, us | off by |\n|");
    let _ = writeln!(text, "{}", " --- |".repeat(5));
    let mut errors: Vec<f64> = Vec::new();
    for p in all {
        let Some(took) = measured(report, p) else { continue };
        let error = 100.0 * (p.seconds(0) / took - 1.0);
        errors.push(error.abs());
        let _ = writeln!(
            text,
            "| {} | {} | {:.0} | {:.0} | {error:+.0} % |",
            p.codec,
            p.op,
            p.seconds(0) * 1e6,
            took * 1e6
        );
    }
    let mean = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
    (text, mean, errors.into_iter().fold(0.0, f64::max))
}

/// One operation in a line, with the H100's time if there is one.
pub(super) fn line(p: &Predicted, report: &Value) -> String {
    let us = |gpu: usize| p.seconds(gpu) * 1e6;
    let took = measured(report, p).map_or(String::new(), |took| format!(", measured {:.1}", took * 1e6));
    format!(
        "{}, {}: H100 {:.1} us, {:.0} % of the copy rate{took}; H200 {:.1} us, {:.0} %",
        p.codec,
        p.op,
        us(0),
        100.0 * p.share(0, &H100),
        us(1),
        100.0 * p.share(1, &H200)
    )
}

const HEAD: &str = "\
# Machine code

What NVIDIA's assembler makes of the committed PTX, read and run without a GPU. `cargo xtask sass --write` makes this page, and
a test fails where a kernel no longer is what it says. `cargo xtask sass --kernel qsgd_encode --listing` shows one kernel.

ptxas 13.5 assembles the text that a device is given (12.9 below sm_75), nvdisasm 13.5 takes the code apart, and a machine in
`tools/sass` executes it instruction by instruction behind the CUDA backend's driver seam. **The code for sm_90 gives the CPU's bytes**
in every operation below; PowerSGD is within the tolerance between backends. `--target 80` and `--target 120` show the same of theirs. An instruction that the machine does
not know is an error that names it.

From what the warps executed, one multiprocessor is replayed: four schedulers issue in order, one instruction a cycle at the most, as the
stall counts and scoreboards in the encoding say; the integer pipe and the integer half of the multiply-add pipe take 16 lanes
a cycle, a launch has its blocks by registers and shared memory, loads wait for the memory, which brings the multiprocessor's share of
the copy rate. `tools/sass/src/replay.rs` has the constants, each with where it is from.

**How far off it is:** {mean} % on average beside an H100, {worst} % at the most ([below](#beside-an-h100)). Not in it: what blocks
of one launch wait for one another, clocks that fall, what the L2 cache keeps from one launch to the next, the order in which
blocks come to their end. A share that is off by as much as that is no difference.

Operations are run over 2^18 elements, PowerSGD over 1024 x 1024, and replayed at 2^26 elements or the size that is
named, with as many times the blocks. Top-k is run over 2^26 normal values, because how many tiles a warp takes depends
on their number. PowerSGD's kernels of factors are replayed from matrices with as many rows, or as many columns, and 64
of the other.

## Predicted for an H200

Of the copy rate: the part of the time that the operation's floor of bytes would take at 4.3 TB/s, as in [traffic.md](traffic.md).

";

const KERNELS: &str = "\
## Kernels on sm_90

- registers, blocks: of a thread; on a multiprocessor together.
- instructions, and by pipe: of a thread per element.
- loads, KB in flight: global loads that a thread issues before it waits for one of them, and the bytes of all threads of a
  multiprocessor that are then under way. Weighted by bytes. An H200 needs some 23 KB.
- barriers: that a block comes to. inner loop: instructions of the loop that is executed most, and those among them that
  are about the flow of control.
- us, issue: on an H200, and in which part of the schedulers' cycles they issue.

";

const BESIDE: &str = "
## Beside an H100

Times of an H100 ([h100.md](h100.md)), of the size that the operation names or 2^26 elements, from
[its report of 26 November](../benches/results/h100-2026-11-26/report.json). The driver assembled there, for CUDA 13.0. The kernels are
those of this page but for `powersgd_products` and `powersgd_factor`, which were one. An operation that the run did not reach is not here.

";

const RESOURCES: &str = "
## Registers and blocks

Registers of a thread / blocks of a multiprocessor, for blocks of 256 threads; bytes of shared memory and KB of code for sm_90.
No kernel has a stack or spills where none is named.

";
