//! `cargo xtask sass`: the machine code of the kernels, without a GPU.

mod alu;
mod chip;
mod count;
mod cubin;
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
mod warp;
mod why;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::jobs::Ran;
use self::predict::Predicted;
use self::replay::Gpu;
use self::tools::Tools;
use crate::place::root;
use crate::ptx::drawn;
use crate::side_by_side::side_by_side;

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
    /// A fifth of the operations, and of the families of kernels, which the tree of the commit draws.
    #[arg(long, requires = "check")]
    drawn: bool,
}

/// Into as many parts operations and families are dealt, of which [`Args::drawn`] runs one.
const PARTS: usize = 5;

/// The target whose replay is calibrated.
const REPLAYED: u32 = 90;

/// Why the machine code could not be read or run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SassError {
    /// A tool is not there.
    #[error(
        "{tool} was not found under target/ptxas; `.ci/install ptxas` unpacks the wheels there (or name it in \
             GRADWIRE_PTXAS, GRADWIRE_NVDISASM)"
    )]
    Missing {
        /// Its name.
        tool: &'static str,
    },
    /// No assembler knows the capability.
    #[error("no ptxas that was found assembles for sm_{sm}; CUDA 12.9's knows sm_50 to sm_120, 13.5's sm_75 and later")]
    NoAssembler {
        /// The capability, times ten.
        sm: u32,
    },
    /// A capability that the page does not speak of.
    #[error("nothing is known of sm_{sm}; take 60, 70, 80, 90 or 120")]
    UnknownTarget {
        /// The capability, times ten.
        sm: u32,
    },
    /// A kernel that no family has.
    #[error("no kernel has {kernel} in its name")]
    UnknownKernel {
        /// The name.
        kernel: String,
    },
    /// The assembler refused a text.
    #[error("ptxas refused a text for sm_{sm}: {why}")]
    Refused {
        /// The capability, times ten.
        sm: u32,
        /// Its words.
        why: String,
    },
    /// The disassembler refused a cubin.
    #[error("nvdisasm refused {path}: {why}")]
    NotDisassembled {
        /// The cubin.
        path: PathBuf,
        /// Its words.
        why: String,
    },
    /// A file failed.
    #[error("{path}: {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's words.
        why: String,
    },
    /// What the assembler wrote is no cubin.
    #[error("a file of {bytes} bytes is no cubin that is understood")]
    NoCubin {
        /// Its size.
        bytes: usize,
    },
    /// A text of the disassembler's that is written otherwise than what is known.
    #[error("the disassembler's text is not understood: {text}")]
    NotRead {
        /// The text.
        text: String,
    },
    /// An instruction that the machine does not know.
    #[error("an instruction that this machine does not know")]
    Unknown,
    /// An access outside of memory, or one that is not aligned.
    #[error("{bytes} bytes at {address:#x} of {} memory are outside of it, or not aligned",
            if *shared { "shared" } else { "global" })]
    OutOfBounds {
        /// Where.
        address: u64,
        /// Bytes of a lane.
        bytes: u32,
        /// Whether it is the block's memory.
        shared: bool,
    },
    /// What failed at an instruction.
    #[error("{kernel} at {at:#06x}, {text}: {why}")]
    At {
        /// The kernel.
        kernel: String,
        /// The instruction's offset in bytes.
        at: u32,
        /// The instruction.
        text: String,
        /// What failed.
        why: Box<SassError>,
    },
    /// Lanes that wait for lanes that never come.
    #[error("{kernel} waits for what does not come, or runs for ever")]
    Stuck {
        /// The kernel.
        kernel: String,
    },
    /// A launch that may begin before the one before it is done, and does not wait for that.
    #[error("{kernel} may begin before the launch before it is done, and does not wait for it before all else")]
    TooEarly {
        /// The kernel.
        kernel: String,
    },
    /// The tools are of other releases than the page's.
    #[error(
        "the page is made with ptxas and nvdisasm 13.5 and ptxas 12.9, and {found} were found; `.ci/install ptxas` unpacks them"
    )]
    OtherTools {
        /// The releases that were found.
        found: String,
    },
    /// The page's reasons are about something that its tables do not have.
    #[error("docs/sass.md gives a reason for {what}, which its tables no longer have; change xtask/src/sass/why.rs")]
    NotThere {
        /// The operation, and the kernel.
        what: String,
    },
    /// The page says something else.
    #[error(
        "the machine code is no longer what docs/sass.md says. Where registers, blocks, loads in flight or integer \
             instructions got worse, find out why; else `cargo xtask sass --write`:\n{lines}"
    )]
    Changed {
        /// The lines that differ.
        lines: String,
    },
    /// An operation that gave something else than the CPU.
    #[error("{job}: the machine code does not give what the CPU gives")]
    Differs {
        /// The operation.
        job: String,
    },
    /// An operation that failed.
    #[error("{job}: {why}")]
    Job {
        /// The operation.
        job: String,
        /// What failed.
        why: String,
    },
}

impl SassError {
    fn file(path: &Path, error: &std::io::Error) -> Self {
        Self::File { path: path.to_owned(), why: error.to_string() }
    }
}

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
