//! The commands that depend on the library, which are programs of their own.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use gradwire_tools::checkout::root;
use gradwire_tools::step::succeed;

/// The words after the command, which its program reads.
#[derive(Debug, clap::Args)]
pub(crate) struct Words {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<OsString>,
}

/// Builds a program, and becomes it: signals reach it, and its exit code is this one's.
///
/// # Errors
/// If cargo cannot be started.
#[cfg(unix)]
pub(crate) fn start(program: &str, command: &str, words: Words) -> Result<ExitCode, String> {
    use std::os::unix::process::CommandExt;
    // It comes back only if it fails.
    let error = cargo(program, command).args(words.words).exec();
    Err(format!("cargo could not be started: {error}"))
}

/// Builds a program, runs a command of it, and gives its exit code.
///
/// # Errors
/// If cargo cannot be started.
#[cfg(not(unix))]
pub(crate) fn start(program: &str, command: &str, words: Words) -> Result<ExitCode, String> {
    let status = cargo(program, command).args(words.words).status();
    let status = status.map_err(|error| format!("cargo could not be started: {error}"))?;
    // A code that is no byte is a failure without a number.
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Builds a program, and runs a command of it as a step of another one.
///
/// # Errors
/// If it fails.
pub(crate) fn step(program: &str, command: &str, words: &[&str]) -> Result<(), String> {
    succeed(cargo(program, command).args(words), &format!("{command} failed"))
}

/// Cargo, with the features of the whole workspace, so that nothing is built again. It stays in the caller's folder.
fn cargo(program: &str, command: &str) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--release", "--locked", "--manifest-path"]).arg(root().join("Cargo.toml"));
    cargo.args(["--bin", program, "--", command]);
    cargo
}
