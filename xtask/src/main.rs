//! The project's commands: `cargo xtask help` lists them.

mod bench;
mod capture;
mod ci;
mod embed;
#[cfg(all(feature = "cuda", feature = "wgpu"))]
mod faults;
mod fuzz;
mod jobs;
mod mpi;
mod place;
mod plan;
mod predict;
mod ptx;
mod publish;
#[cfg(feature = "wgpu")]
mod radv;
mod report;
mod repository;
mod sanitize;
#[cfg(feature = "cuda")]
mod sass;
mod shaders;
mod side_by_side;
mod study;
mod test;
#[cfg(feature = "cuda")]
mod traffic;
mod vectors;
mod verify;
mod web;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compress gradients and print what it cost and what it lost.
    Bench(bench::Args),
    /// Run the conformance and property suite against one device of this machine.
    Verify(verify::Args),
    /// Verify and measure every device of this machine, beside others, and write report.json and report.md.
    Report(report::Args),
    /// A part of a report, which a report runs in a process of its own.
    #[command(hide = true)]
    ReportStage(report::stage::Args),
    /// Format, lint, test and document; the last lines say which backends ran.
    Test(test::Args),
    /// Run what must hold before a change lands, but for what was green with the same inputs before.
    Ci(ci::Args),
    /// Say which layers of a profile to merge and compress on a network, or that it does not pay.
    Plan(plan::Args),
    /// Predict steps over slow links with the planner, measure them on throttled threads, and print both.
    Predict(predict::Args),
    /// Simulate the studies of the literature, and write docs/study.md.
    Study(study::Args),
    /// Build the PTX from the Rust kernels, or check that the committed PTX is what they give.
    Ptx(ptx::Args),
    /// Check that the crates can be published: metadata, contents, licences, each feature alone, the least Rust.
    Publish(publish::Args),
    /// Write every WGSL module that the WGPU backend can create into a folder.
    Shaders(shaders::Args),
    /// Compile the shaders for an AMD GPU that need not be there, and count their instructions, cycles and registers.
    #[cfg(feature = "wgpu")]
    Radv(radv::Args),
    /// Count what each kernel moves and executes for an element, on the PTX machine.
    #[cfg(feature = "cuda")]
    Traffic(traffic::Args),
    /// Read and run the machine code that NVIDIA's assembler makes of the PTX, and replay it on one multiprocessor.
    #[cfg(feature = "cuda")]
    Sass(sass::Args),
    /// Run what embeds Gradwire: wgpu, cudarc and cust examples, and the suite through the CUDA driver's interface.
    Embed,
    /// Make each call of the driver fail in turn, and see that every operation is right or an error that changed
    /// nothing.
    #[cfg(all(feature = "cuda", feature = "wgpu"))]
    Faults(faults::Args),
    /// A part of that, in a process of its own.
    #[cfg(all(feature = "cuda", feature = "wgpu"))]
    #[command(hide = true)]
    FaultsStage(faults::stage::Args),
    /// Run the collectives over MPI on OpenMPI and MPICH, and compare their results with those of threads.
    Mpi(mpi::Args),
    /// Run the tests that need no GPU under AddressSanitizer.
    Sanitize(sanitize::Args),
    /// Run the fuzz targets over payloads, messages, states and recipes; with --miri the readers under Miri.
    Fuzz(fuzz::Args),
    /// Write the golden vectors that the oracle computes, or check that the committed ones are those.
    Vectors(vectors::Args),
    /// Run the quickstart in a browser without a window, on WebGPU, and compare its bytes with this machine's.
    Web(web::Args),
    /// Train the small network again and capture its gradients into benches/data.
    Capture,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Bench(args) => bench::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Report(args) => match report::run(&args) {
            // Its exit code tells more than whether it failed.
            Ok(code) => return code,
            Err(message) => Err(message),
        },
        Command::ReportStage(args) => report::stage::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Ci(args) => match ci::run(&args) {
            // Its last line is what programs read, so that nothing follows it.
            Ok(code) => return code,
            Err(message) => Err(message),
        },
        Command::Plan(args) => plan::run(&args),
        Command::Predict(args) => predict::run(&args),
        Command::Study(args) => study::run(&args),
        Command::Ptx(args) => ptx::run(&args),
        Command::Publish(args) => publish::run(&args),
        Command::Shaders(args) => shaders::run(&args),
        #[cfg(feature = "wgpu")]
        Command::Radv(args) => radv::run(&args),
        #[cfg(feature = "cuda")]
        Command::Traffic(args) => traffic::run(&args),
        #[cfg(feature = "cuda")]
        Command::Sass(args) => sass::run(&args),
        Command::Embed => embed::run(),
        #[cfg(all(feature = "cuda", feature = "wgpu"))]
        Command::Faults(args) => faults::run(&args),
        #[cfg(all(feature = "cuda", feature = "wgpu"))]
        Command::FaultsStage(args) => faults::stage::run(&args),
        Command::Mpi(args) => mpi::run(&args),
        Command::Sanitize(args) => sanitize::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Vectors(args) => vectors::run(&args),
        Command::Web(args) => web::run(&args),
        Command::Capture => capture::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
