//! `cargo xtask sass`: the machine code of the kernels, without a GPU. `cargo xtask traffic`: their traffic, counted.

mod alu;
mod chip;
mod count;
mod cubin;
mod error;
mod inst;
mod jobs;
mod kernel;
mod listing;
mod machine;
mod memory;
mod page;
mod pipe;
mod predict;
mod replay;
mod resources;
mod run;
mod tools;
mod traffic;
mod warp;
mod why;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use gradwire_tools::checkout::root;
use gradwire_tools::ending::ending;
use gradwire_tools::repository::drawn;
use gradwire_tools::side_by_side::side_by_side;

use self::error::SassError;
use self::jobs::Ran;
use self::predict::Predicted;
use self::replay::Gpu;
use self::tools::Tools;

/// Read the machine code, run it beside the CPU, and replay it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only kernels whose names have this in them.
    #[arg(long)]
    kernel: Option<String>,
    /// The target that is run: 90, or 80 and 120, of which there is no replay.
    #[arg(long, default_value_t = REPLAYED)]
    target: u32,
    /// With the instructions that are executed most.
    #[arg(long, requires = "kernel")]
    listing: bool,
    /// Only registers, shared memory and blocks, on all targets: runs nothing.
    #[arg(long)]
    registers: bool,
    /// Write docs/sass.md.
    #[arg(long, conflicts_with_all = ["kernel", "target", "listing", "registers", "check"])]
    write: bool,
    /// Fail where docs/sass.md is not what the code comes to.
    #[arg(long, conflicts_with_all = ["kernel", "target", "listing", "registers"])]
    check: bool,
    /// An eighth of the operations, and of the families of kernels, which the tree of the commit draws.
    #[arg(long, requires = "check")]
    drawn: bool,
}

/// Into as many parts operations and families are dealt, of which [`Args::drawn`] runs one.
const PARTS: usize = 8;

/// The target whose replay is calibrated.
const REPLAYED: u32 = 90;

/// Reads the machine code, and prints, writes or checks what it is asked for.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    read(args).map_err(|e| e.to_string())
}

fn read(args: &Args) -> Result<(), SassError> {
    let tools = Arc::new(Tools::find()?);
    let filter = args.kernel.as_deref().unwrap_or("");
    if args.registers {
        print!("{}", resources::table(&resources::all(&tools, filter, |_| true)?));
        return Ok(());
    }
    let gpus: &[Gpu] = if args.target == REPLAYED { &[replay::H100, replay::H200] } else { &[] };
    // Where git does not answer, all of it is checked.
    let part = if args.drawn { drawn(&root(), PARTS) } else { None };
    if args.write || args.check {
        tools.require_the_pages()?;
    }
    let wanted = |index| part.is_none_or(|part| index % PARTS == part);
    let ran = jobs::all(&tools, args.target, filter, wanted)?;
    let predict = |(): &(), ran: &Ran| predict::predict(&tools, args.target, ran, gpus);
    let predicted: Vec<Predicted> = side_by_side(&ran, || (), predict).into_iter().collect::<Result<_, SassError>>()?;
    let report = page::report()?;
    if args.write || args.check {
        let rows = resources::all(&tools, "", wanted)?;
        let Some(part) = part else {
            let now = page::page(&predicted, &rows, &report)?;
            return if args.write { write(&now) } else { compare(&committed()?, &now) };
        };
        println!("part {} of {PARTS}: {} operations, {} kernels", part + 1, predicted.len(), rows.len());
        let then = page::part_of(&committed()?, &predicted, &rows);
        return compare(&then, &page::part(&predicted, &rows, &report));
    }
    if ran.is_empty() {
        // It is launched by no operation of the page's.
        let rows = resources::all(&tools, filter, |_| true)?;
        if rows.is_empty() {
            return Err(SassError::UnknownKernel { kernel: filter.to_owned() });
        }
        println!("no operation of the page launches it:\n{}", resources::table(&rows));
        return Ok(());
    }
    println!("every operation gives what the CPU gives; sm_{}, ptxas {}", args.target, tools.release(args.target)?);
    for (ran, predicted) in ran.iter().zip(&predicted) {
        if !gpus.is_empty() {
            println!("{}", page::line(predicted, &report));
        }
        if args.listing {
            let matching = ran.launched.iter().filter(|l| l.kernel.code.name.contains(filter));
            matching.for_each(|launched| print!("{}", listing::listing(launched, ran.n)));
        }
    }
    print!("{}", page::kernels(&predicted));
    Ok(())
}

/// Writes the page.
fn write(now: &str) -> Result<(), SassError> {
    let path = root().join(page::PAGE);
    std::fs::write(&path, now).map_err(|e| SassError::file(&path, &e))?;
    println!("wrote {}", page::PAGE);
    Ok(())
}

/// The page that is committed.
fn committed() -> Result<String, SassError> {
    let path = root().join(page::PAGE);
    std::fs::read_to_string(&path).map_err(|e| SassError::file(&path, &e))
}

/// Compares lines of the page that is committed with what the code comes to.
fn compare(then: &str, now: &str) -> Result<(), SassError> {
    let missing = |from: &str, to: &str, name: &str| -> Vec<String> {
        from.lines().filter(|line| !to.lines().any(|l| l == *line)).map(|line| format!("{name} {line}")).collect()
    };
    let changed = [missing(then, now, "before"), missing(now, then, "now   ")].concat();
    if changed.is_empty() {
        println!("{} is what the code comes to", page::PAGE);
        return Ok(());
    }
    Err(SassError::Changed { lines: changed.join("\n") })
}

#[derive(Parser)]
#[command(name = "gradwire-sass", bin_name = "cargo xtask")]
enum Cli {
    /// Read and run the machine code that NVIDIA's assembler makes of the PTX, and replay it on one multiprocessor.
    Sass(Args),
    /// Count what each kernel moves and executes for an element, on the PTX machine.
    Traffic(traffic::Args),
}

fn main() -> ExitCode {
    ending(match Cli::parse() {
        Cli::Sass(args) => run(&args),
        Cli::Traffic(args) => traffic::run(&args),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers of all kernels are those of `docs/sass.md`. So are loads in flight, instructions by pipe and the replay
    /// of an eighth of the operations, whose machine code gives what the CPU gives. Without the wheels that
    /// `.ci/install ptxas` unpacks nothing is checked, and the test says so. With GRADWIRE_REQUIRE_PTXAS their absence is
    /// a failure.
    #[test]
    fn the_machine_code_is_what_the_page_says() {
        let args = Cli::parse_from(["cargo xtask", "sass", "--check", "--drawn"]);
        let Cli::Sass(args) = args else { panic!("the command is sass") };
        match read(&args) {
            Ok(()) => {}
            Err(
                missing @ (SassError::Missing { .. } | SassError::NoAssembler { .. } | SassError::OtherTools { .. }),
            ) => {
                let required = std::env::var_os("GRADWIRE_REQUIRE_PTXAS").is_some();
                assert!(!required, "GRADWIRE_REQUIRE_PTXAS asks for the wheels: {missing}");
                eprintln!("docs/sass.md was NOT checked: {missing}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
