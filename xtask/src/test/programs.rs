//! The test programs of the workspace, as many at once as there are cores.
//!
//! `cargo test` runs one after the other, and waits for the longest test of each with all other cores idle.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::Instant;

use serde_json::Value;

use crate::place::root;

/// Begun before all others, so that none of them is still running when the rest has ended.
const LONGEST: [&str; 11] = [
    "sass",
    "traffic",
    "ptx",
    "topk_gpu",
    "train",
    "powersgd",
    "resident_training",
    "compressor",
    "powersgd_gpu",
    "cpu",
    "report",
];

/// A test program that cargo has built.
struct Program {
    name: String,
    path: PathBuf,
    /// The folder of its package, where cargo would run it.
    folder: PathBuf,
}

/// Builds the programs, and runs all of them even if some fail.
pub(super) fn run(environment: &[(&str, &str)]) -> Result<(), String> {
    let mut programs = built(environment)?;
    programs.sort_by_key(|program| LONGEST.iter().position(|name| *name == program.name).unwrap_or(LONGEST.len()));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{} programs, {cores} at once", programs.len());
    // The next one is taken from the end.
    programs.reverse();
    let (left, failed) = (Mutex::new(programs), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(program) = pop(&left) {
                    let begun = Instant::now();
                    let outcome = program.run(environment);
                    let seconds = begun.elapsed().as_secs_f64();
                    if let Err(why) = outcome {
                        println!("{}: FAILED after {seconds:.1} s\n{why}", program.name);
                        failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(program.name);
                    } else {
                        println!("{}: passed in {seconds:.1} s", program.name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    if failed.is_empty() { Ok(()) } else { Err(format!("{} failed; what they said is above", failed.join(", "))) }
}

fn pop(left: &Mutex<Vec<Program>>) -> Option<Program> {
    left.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop()
}

/// What cargo builds, by its own account.
fn built(environment: &[(&str, &str)]) -> Result<Vec<Program>, String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "test",
        "--release",
        "--workspace",
        "--locked",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    cargo.current_dir(root()).envs(environment.iter().copied()).stderr(std::process::Stdio::inherit());
    let output = cargo.output().map_err(|e| format!("cargo could not be started: {e}"))?;
    if !output.status.success() {
        return Err(format!("the tests could not be built ({}); the output above says where", output.status));
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    let programs: Vec<Program> =
        lines.lines().filter_map(|line| Program::read(&serde_json::from_str(line).ok()?)).collect();
    if programs.is_empty() { Err("cargo named no test program".to_owned()) } else { Ok(programs) }
}

impl Program {
    /// From a message of cargo, if it tells of one.
    fn read(message: &Value) -> Option<Self> {
        let is_test = message["profile"]["test"].as_bool()?;
        Some(Self {
            name: message["target"]["name"].as_str().filter(|_| is_test)?.to_owned(),
            path: message["executable"].as_str()?.into(),
            folder: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
        })
    }

    /// One test at a time, since there is a program for each core. Gives what a program that fails has said.
    fn run(&self, environment: &[(&str, &str)]) -> Result<(), String> {
        let mut program = Command::new(&self.path);
        program.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder).env("RUST_TEST_THREADS", "1");
        let ended = program.envs(environment.iter().copied()).output();
        let Output { status, stdout, stderr } = ended.map_err(|e| format!("it could not be started: {e}"))?;
        if status.success() {
            return Ok(());
        }
        Err(format!("{status}\n{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Program;

    #[test]
    fn only_test_programs_are_read() {
        let of = |test: bool, executable: Option<&str>| {
            json!({ "reason": "compiler-artifact", "manifest_path": "/w/tests/Cargo.toml", "target": { "name": "ptx" },
                    "profile": { "test": test }, "executable": executable })
        };
        let program = Program::read(&of(true, Some("/t/ptx-1"))).expect("a program");
        assert_eq!((program.name.as_str(), program.folder.to_str()), ("ptx", Some("/w/tests")));
        assert!(Program::read(&of(false, Some("/t/xtask"))).is_none(), "a program that the tests start");
        assert!(Program::read(&of(true, None)).is_none(), "a library");
        assert!(Program::read(&json!({ "reason": "build-finished", "success": true })).is_none());
    }

    #[test]
    fn what_a_program_that_fails_says_is_told() {
        let program = |path: &str| Program { name: "p".to_owned(), path: path.into(), folder: "/".into() };
        assert_eq!(program("/bin/true").run(&[]), Ok(()));
        assert!(program("/bin/false").run(&[]).expect_err("fails").contains("exit status: 1"));
        assert!(program("/nowhere/p").run(&[]).expect_err("fails").contains("could not be started"));
    }
}
