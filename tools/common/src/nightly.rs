//! The pinned nightly: one compiler to install, and the same one everywhere.

use std::process::Command;

/// The names under which rustup may have it.
const TOOLCHAINS: [&str; 2] = ["nightly", "nightly-2026-05-20"];
/// The commit of the one compiler that is accepted: another one gives other bytes.
pub const COMMIT_HASH: &str = "e50aa6fba4e63ab34c72bf9acfd2c307c1155d1a";

/// The pinned compiler.
pub struct Compiler {
    /// The name that rustup has it under.
    pub toolchain: String,
    /// Its version.
    pub release: String,
    /// The commit it was built from.
    pub commit_hash: String,
    /// Its LLVM's version.
    pub llvm: String,
}

impl Compiler {
    /// The pinned compiler, under whichever of its names it is installed.
    ///
    /// # Errors
    /// If none of them is that compiler.
    pub fn find() -> Result<Self, String> {
        let mut found = Vec::new();
        for toolchain in TOOLCHAINS {
            let Ok(text) = stdout(clean("rustc").arg(format!("+{toolchain}")).arg("-vV")) else { continue };
            let field = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
                line.unwrap_or("unknown").to_owned()
            };
            let commit_hash = field("commit-hash");
            if commit_hash == COMMIT_HASH {
                let (release, llvm) = (field("release"), field("LLVM version"));
                return Ok(Self { toolchain: toolchain.to_owned(), release, commit_hash, llvm });
            }
            found.push(format!("{toolchain} is at {commit_hash}"));
        }
        let found = if found.is_empty() { "no nightly is installed".to_owned() } else { found.join(", ") };
        Err(format!(
            "the pinned nightly is rustc {COMMIT_HASH}, and {found}; \
             run `rustup toolchain install nightly-2026-05-20 --component rust-src`"
        ))
    }

    /// Its cargo, without what the caller's environment sets for builds.
    pub fn cargo(&self) -> Command {
        let mut cargo = clean("cargo");
        cargo.arg(format!("+{}", self.toolchain));
        cargo
    }
}

/// The cargo of the pinned nightly.
///
/// # Errors
/// If it is not installed.
pub fn pinned_cargo() -> Result<Command, String> {
    Compiler::find().map(|compiler| compiler.cargo())
}

/// A command without what an enclosing cargo, or the user, set for builds: the same bytes must come out.
pub fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        let kept = ["CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_HTTP_PROXY", "CARGO_HTTP_CAINFO"].contains(&&*name);
        let set = name.starts_with("CARGO") || name.starts_with("RUSTC") || name.ends_with("RUSTFLAGS");
        if set && !kept || name == "RUSTUP_TOOLCHAIN" {
            command.env_remove(&*name);
        }
    }
    command
}

/// The output of a command.
///
/// # Errors
/// If it cannot be started, or fails.
pub fn stdout(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{:?} could not be started: {e}", command.get_program()))?;
    if !output.status.success() {
        return Err(format!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
