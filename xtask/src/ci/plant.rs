//! Planting a fault, and running what must find it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::stages::STAGES;

/// A fault, and what finds it.
#[derive(Debug)]
pub(super) struct Plant {
    /// The fault, in words.
    pub(super) name: &'static str,
    /// The file that it is planted in.
    pub(super) file: &'static str,
    /// What stands there once.
    pub(super) find: &'static str,
    /// What comes in its place.
    pub(super) replace: &'static str,
    /// The stage that finds it.
    pub(super) stage: &'static str,
    pub(super) by: By,
}

/// What finds a fault within a stage.
#[derive(Debug)]
pub(super) enum By {
    /// The tests of a program whose paths begin so, of one codec where one is named.
    Test { program: &'static str, path: &'static str, codec: &'static str },
    /// A command of `cargo xtask`, whose output then has these words.
    Command { words: &'static [&'static str], says: &'static str },
}

impl Plant {
    /// Runs what finds it, and gives its name; or says why it was not found.
    pub(super) fn found(&self, tree: &Path) -> Result<String, String> {
        let path = tree.join(self.file);
        let told = |e: std::io::Error| format!("{}: {e}", path.display());
        let text = fs::read_to_string(&path).map_err(told)?;
        fs::write(&path, self.planted(&text)?).map_err(told)?;
        let ran = self.by.run(tree, self.stage);
        fs::write(&path, text).map_err(told)?;
        ran
    }

    /// The file's text with the fault.
    pub(super) fn planted(&self, text: &str) -> Result<String, String> {
        match text.matches(self.find).count() {
            1 => Ok(text.replace(self.find, self.replace)),
            count => Err(format!("{} has the text that the fault replaces {count} times", self.file)),
        }
    }
}

impl By {
    fn run(&self, tree: &Path, stage: &str) -> Result<String, String> {
        let settings = STAGES.iter().find(|known| known.name == stage).map_or(&[][..], |known| known.settings);
        let mut script: String = settings.iter().map(|setting| format!("export {setting}\n")).collect();
        let mut bash = Command::new("bash");
        let name = match self {
            Self::Test { program, path, codec } => {
                let filter = if codec.is_empty() { "" } else { "export GRADWIRE_CODEC=" };
                let _ = writeln!(script, "{filter}{codec}");
                let _ = writeln!(script, "cargo test --release --locked --workspace --test {program} -- {path}");
                format!("{program} {path}")
            }
            Self::Command { words, .. } => {
                bash.env("XTASK", std::env::current_exe().map_err(|e| e.to_string())?);
                let _ = writeln!(script, "\"$XTASK\" {}", words.join(" "));
                format!("xtask {}", words.join(" "))
            }
        };
        // Programs with faults are in a folder of their own.
        bash.env("CARGO_TARGET_DIR", tree.join("../build"));
        bash.env("GRADWIRE_DEPTH", "quick").env_remove("CARGO_MANIFEST_DIR");
        bash.args(["-euo", "pipefail", "-c", &script]).current_dir(tree);
        let output = bash.output().map_err(|e| format!("bash could not be started: {e}"))?;
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        if !output.status.success() && self.is_told(&text) {
            return Ok(name);
        }
        let last: Vec<&str> = text.lines().rev().take(40).collect();
        last.iter().rev().for_each(|line| println!("{line}"));
        Err(format!("{name} ended with {}, and names no fault", output.status))
    }

    /// Whether the output is of a fault that was found, and not of a build that failed.
    fn is_told(&self, text: &str) -> bool {
        match self {
            // The list of failures has a line for each test, whatever was printed beside the other lines.
            Self::Test { path, .. } => {
                let is_of = |line: &str| line.strip_prefix("    ").is_some_and(|name| name.starts_with(path));
                text.contains("test result: FAILED") && text.lines().any(is_of)
            }
            Self::Command { says, .. } => text.contains(says),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_that_fails_finds_nothing() {
        let by = By::Test { program: "cpu", path: "suite::", codec: "" };
        let failed = |name: &str| format!("failures:\n    {name}\n\ntest result: FAILED. 2 passed; 1 failed\n");
        assert!(by.is_told(&failed("suite::baseline")));
        assert!(!by.is_told(&failed("other::one")));
        assert!(!by.is_told("error: could not compile `gradwire`\n    suite::baseline\n"));
    }
}
