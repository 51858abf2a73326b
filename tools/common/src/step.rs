//! Steps of a command: other programs, with their output in sight.

use std::path::PathBuf;
use std::process::Command;

use crate::checkout::root;

/// Runs a command, after a line that says what it does.
///
/// # Errors
/// If it cannot be started, or fails.
pub fn step(what: &str, mut command: Command) -> Result<(), String> {
    println!("\n--- {what}");
    succeed(&mut command, what)
}

/// Runs a command. `failed` begins the message if it fails.
///
/// # Errors
/// If it cannot be started, or fails.
pub fn succeed(command: &mut Command, failed: &str) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|e| format!("{failed}: {program} could not be started: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{failed} ({status}); the output above says why")) }
}

/// Builds an example of the workspace; its path.
///
/// # Errors
/// If it cannot be built.
pub fn example(name: &str) -> Result<PathBuf, String> {
    built(&format!("the example {name}"), &["--example", name], &format!("examples/{name}"))
}

/// Builds a program of the workspace; its path.
///
/// # Errors
/// If it cannot be built.
pub fn program(name: &str) -> Result<PathBuf, String> {
    built(&format!("the program {name}"), &["--bin", name], name)
}

fn built(what: &str, words: &[&str], file: &str) -> Result<PathBuf, String> {
    let mut build = Command::new(env!("CARGO"));
    // Of the whole workspace, whose features are those of the other builds, so that the library is not built again.
    build.args(["build", "--release", "--locked", "--workspace"]).args(words).current_dir(root());
    step(what, build)?;
    let program = root().join("target/release").join(file);
    program.canonicalize().map_err(|e| format!("{}: {e}", program.display()))
}
