//! `cargo xtask ptx`.

use std::process::ExitCode;

use clap::Parser;
use gradwire_ptx_build::{Args, run};
use gradwire_tools::ending::ending;

#[derive(Parser)]
#[command(name = "gradwire-ptx-build", bin_name = "cargo xtask")]
enum Cli {
    /// Build the PTX from the Rust kernels, or check that the committed PTX is what they give.
    Ptx(Args),
}

fn main() -> ExitCode {
    let Cli::Ptx(args) = Cli::parse();
    ending(run(&args))
}
