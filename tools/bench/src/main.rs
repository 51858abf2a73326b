//! `cargo xtask bench`, `verify`, `report` and `vectors`: the program for a machine with a GPU. It holds the kernels,
//! the suite, its vectors and other implementations' scripts. `verify` and `report` need nothing else of the repository.

mod backends;
mod bench;
mod jobs;
mod report;
mod vectors;
mod verify;

use std::process::ExitCode;

use clap::Parser;
use gradwire_tools::ending::ending;

#[derive(Parser)]
#[command(name = "gradwire-bench", bin_name = "cargo xtask")]
enum Cli {
    /// Compress gradients and print what it cost and what it lost.
    Bench(bench::Args),
    /// Run the conformance and property suite against one device of this machine.
    Verify(verify::Args),
    /// Verify and measure every device of this machine, beside others, and write report.json and report.md.
    Report(report::Args),
    /// A part of a report, which a report runs in a process of its own.
    #[command(hide = true)]
    ReportStage(report::stage::Args),
    /// The backends of this machine, and whether they are those that GRADWIRE_REQUIRE asks for.
    #[command(hide = true)]
    Backends,
    /// Write the golden vectors that the oracle computes, or check that the committed ones are those.
    Vectors(vectors::Args),
}

fn main() -> ExitCode {
    ending(match Cli::parse() {
        Cli::Bench(args) => bench::run(&args),
        Cli::Verify(args) => verify::run(&args),
        Cli::Report(args) => match report::run(&args) {
            // Its exit code tells more than whether it failed.
            Ok(code) => return code,
            Err(message) => Err(message),
        },
        Cli::ReportStage(args) => report::stage::run(&args),
        Cli::Backends => backends::run(),
        Cli::Vectors(args) => vectors::run(&args),
    })
}
