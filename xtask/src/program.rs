//! The commands that are programs of their own, since they hold the library.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use gradwire_tools::checkout::root;

/// The words after the command, which its program reads.
#[derive(Debug, clap::Args)]
pub(crate) struct Words {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<OsString>,
}

/// Builds a program, runs a command of it, and gives its exit code.
///
/// # Errors
/// If cargo cannot be started, or a signal ended it.
pub(crate) fn start(program: &str, command: &str, words: Words) -> Result<ExitCode, String> {
    let status = cargo(program, command).args(words.words).status();
    let status = status.map_err(|error| format!("cargo could not be started: {error}"))?;
    // Codes are bytes on Unix. Elsewhere a longer one is a failure without a number.
    let code = status.code().ok_or_else(|| format!("{program} {command}: {status}"))?;
    Ok(u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// [`start`], for a step of another command.
///
/// # Errors
/// If it fails.
pub(crate) fn step(program: &str, command: &str, words: &[&str]) -> Result<(), String> {
    let status = cargo(program, command).args(words).status();
    let status = status.map_err(|error| format!("cargo could not be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command} ended with {status}; the output above says why")) }
}

/// Cargo, with the features of the whole workspace, so that nothing is built again. It stays in the caller's folder.
fn cargo(program: &str, command: &str) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--release", "--manifest-path"]).arg(root().join("Cargo.toml"));
    cargo.args(["--bin", program, "--", command]);
    cargo
}
