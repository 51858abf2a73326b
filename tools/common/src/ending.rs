//! How a program ends.

use std::process::ExitCode;

/// The exit code of a command, after a line on standard error if it failed.
#[must_use]
pub fn ending(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
