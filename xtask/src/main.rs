//! The project's commands: `cargo xtask help` lists them. Those that depend on the library are programs of their own,
//! under `tools/`, which this one builds and starts.

mod capture;
mod ci;
mod codecs;
mod embed;
mod mpi;
mod program;
mod publish;
mod sanitize;
mod test;
mod trying;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use gradwire_tools::ending::ending;

use program::Words;

/// `cargo xtask help bench` cannot list the options of another program.
const OPTIONS: &str = "`cargo xtask COMMAND --help` lists the options.";

/// The project's commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compress gradients, and print times, sizes and errors.
    #[command(disable_help_flag = true, after_help = OPTIONS)]
    Bench(Words),
    /// Run the conformance and property suite against one device of this machine.
    #[command(disable_help_flag = true, after_help = OPTIONS)]
    Verify(Words),
    /// Verify and measure every device of this machine, beside others, and write report.json and report.md.
    #[command(disable_help_flag = true, after_help = OPTIONS)]
    Report(Words),
    /// Format, and run the CPU's tests of the changed files: `cargo try`.
    Try(trying::Args),
    /// Format, lint, test and document; the last lines say which backends ran.
    Test(test::Args),
    /// Run the stages that must pass before a change lands, without those that were green for the same inputs.
    Ci(ci::Args),
    /// Say which layers of a profile to merge and compress on a network, or that it does not pay.
    #[command(disable_help_flag = true, after_help = OPTIONS)]
    Plan(Words),
    /// Predict steps over slow links with the planner, measure them on throttled threads, and print both.
    #[command(disable_help_flag = true, after_help = OPTIONS)]
    Predict(Words),
    /// Simulate the studies of the literature, and write docs/study.md.
    #[command(disable_help_flag = true, after_help = OPTIONS)]
    Study(Words),
    /// Build the PTX from the Rust kernels, or check that the committed PTX is theirs.
    #[command(disable_help_flag = true, after_help = OPTIONS)]
    Ptx(Words),
    /// Check that the crates can be published: metadata, contents, licences, each feature alone, the least Rust.
    Publish(publish::Args),
    /// Write every WGSL module that the WGPU backend can create into a folder.
    #[command(disable_help_flag = true, after_help = OPTIONS)]
    Shaders(Words),
    /// Compile the shaders for an AMD GPU that need not be there, and count their instructions, cycles and registers.
    #[command(disable_help_flag = true, after_help = OPTIONS)]
    Radv(Words),
    /// Count what each kernel moves and executes for an element, on the PTX machine.
    #[command(disable_help_flag = true, after_help = OPTIONS)]
    Traffic(Words),
    /// Read and run the machine code that NVIDIA's assembler makes of the PTX, and replay it on one multiprocessor.
    #[command(disable_help_flag = true, after_help = OPTIONS)]
    Sass(Words),
    /// Run what embeds Gradwire: wgpu, cudarc and cust examples, and the suite through the CUDA driver's interface.
    Embed,
    /// Make each call of the driver fail in turn, and see that every operation is right or an error that changed
    /// nothing.
    #[command(disable_help_flag = true, after_help = OPTIONS)]
    Faults(Words),
    /// Run the collectives over MPI on OpenMPI and MPICH, and compare their results with those of threads.
    Mpi(mpi::Args),
    /// Run the tests that need no GPU under AddressSanitizer.
    Sanitize(sanitize::Args),
    /// Run the fuzz targets over payloads, messages, states and recipes; with --miri the readers under Miri.
    #[command(disable_help_flag = true, after_help = OPTIONS)]
    Fuzz(Words),
    /// Write the golden vectors that the oracle computes, or check that the committed ones are those.
    #[command(disable_help_flag = true, after_help = OPTIONS)]
    Vectors(Words),
    /// Run the quickstart in a browser without a window, on WebGPU, and compare its bytes with this machine's.
    #[command(disable_help_flag = true, after_help = OPTIONS)]
    Web(Words),
    /// Train the small network again and capture its gradients into benches/data.
    Capture,
}

fn main() -> ExitCode {
    let started = match Cli::parse().command {
        Command::Try(args) => return ending(trying::run(&args)),
        Command::Test(args) => return ending(test::run(&args)),
        Command::Ci(args) => ci::run(&args),
        Command::Publish(args) => return ending(publish::run(&args)),
        Command::Embed => return ending(embed::run()),
        Command::Mpi(args) => return ending(mpi::run(&args)),
        Command::Sanitize(args) => return ending(sanitize::run(&args)),
        Command::Capture => return ending(capture::run()),
        Command::Bench(words) => program::start("gradwire-bench", "bench", words),
        Command::Verify(words) => program::start("gradwire-bench", "verify", words),
        Command::Report(words) => program::start("gradwire-bench", "report", words),
        Command::Vectors(words) => program::start("gradwire-bench", "vectors", words),
        Command::Plan(words) => program::start("gradwire-study", "plan", words),
        Command::Predict(words) => program::start("gradwire-study", "predict", words),
        Command::Study(words) => program::start("gradwire-study", "study", words),
        Command::Ptx(words) => program::start("gradwire-ptx-build", "ptx", words),
        Command::Shaders(words) => program::start("gradwire-radv", "shaders", words),
        Command::Radv(words) => program::start("gradwire-radv", "radv", words),
        Command::Traffic(words) => program::start("gradwire-sass", "traffic", words),
        Command::Sass(words) => program::start("gradwire-sass", "sass", words),
        Command::Faults(words) => program::start("gradwire-fault-sweep", "faults", words),
        Command::Fuzz(words) => program::start("gradwire-fuzzing", "fuzz", words),
        Command::Web(words) => program::start("gradwire-browser", "web", words),
    };
    // Passes on the exit code, and prints nothing after the last line, which other programs read.
    started.unwrap_or_else(|message| ending(Err(message)))
}
