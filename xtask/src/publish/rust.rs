//! The least Rust that the crates promise to build with.

use std::path::PathBuf;
use std::process::Command;

/// Whether it is there.
pub(super) enum Least {
    /// It is.
    Installed {
        /// Its version, as it prints it.
        version: String,
        /// Its path.
        rustc: PathBuf,
    },
    /// It is not, and could not be installed.
    Missing {
        /// Which one.
        version: String,
        /// Why not.
        reason: String,
    },
}

impl Least {
    /// Looks for it among the installed toolchains, and asks rustup for it if it is not there.
    pub(super) fn find(version: &str) -> Self {
        let missing = |reason: String| Self::Missing { version: version.to_owned(), reason };
        if which(version).is_err() {
            println!("   rustc {version} is not installed; asking rustup for it");
            let install = ["toolchain", "install", version, "--profile", "minimal", "--no-self-update"];
            if let Err(reason) = says("rustup", &install) {
                return missing(reason);
            }
        }
        let rustc = match which(version) {
            Ok(rustc) => rustc,
            Err(reason) => return missing(reason),
        };
        // A toolchain that is listed may still be incomplete.
        match says(&rustc, &["--version"]) {
            Ok(version) => Self::Installed { version: version.replacen("rustc ", "", 1), rustc: rustc.into() },
            Err(reason) => missing(reason),
        }
    }
}

fn which(version: &str) -> Result<String, String> {
    says("rustup", &["which", "--toolchain", version, "rustc"])
}

/// What a program prints, or the last line of its complaint.
fn says(program: &str, args: &[&str]) -> Result<String, String> {
    let output =
        Command::new(program).args(args).output().map_err(|e| format!("{program} could not be started ({e})"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let log = String::from_utf8_lossy(&output.stderr);
    let last = log.trim().lines().last().unwrap_or("it said nothing");
    Err(format!("{program} {}: {last}", args.join(" ")))
}
