//! The test programs that cargo builds, and the tests that each of them lists.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gradwire_tools::checkout::root;
use serde_json::Value;

/// A test program that cargo has built.
pub(super) struct Program {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// The folder of its package, where cargo would run it.
    pub(super) folder: PathBuf,
    /// Whether it is an integration test, whose modules were written as programs of their own. A library's unit tests
    /// are small, and stay together.
    has_modules: bool,
}

/// A test, by the program that has it and its path in there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Test {
    pub(crate) program: String,
    /// The module at the top of an integration program. Empty for unit tests.
    pub(crate) module: String,
    /// Its path below `module`.
    pub(crate) name: String,
}

impl Test {
    /// The name by which its program knows it.
    pub(super) fn path(&self) -> String {
        if self.module.is_empty() { self.name.clone() } else { format!("{}::{}", self.module, self.name) }
    }
}

/// Builds the programs. `cargo` has all words up to the choice of targets.
pub(super) fn build(mut cargo: Command) -> Result<Vec<Program>, String> {
    cargo.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let output = cargo.current_dir(root()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| format!("cargo could not be started: {e}"))?;
    if !output.status.success() {
        return Err(format!("the tests could not be built ({}); the output above says where", output.status));
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    let programs: Vec<Program> =
        lines.lines().filter_map(|line| Program::read(&serde_json::from_str(line).ok()?)).collect();
    if programs.is_empty() { Err("cargo named no test program".to_owned()) } else { Ok(programs) }
}

impl Program {
    /// From a message of cargo, if it reports a test program.
    fn read(message: &Value) -> Option<Self> {
        let (is_test, target) = (message["profile"]["test"].as_bool()?, &message["target"]);
        Some(Self {
            name: target["name"].as_str().filter(|_| is_test)?.to_owned(),
            path: message["executable"].as_str()?.into(),
            folder: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
            has_modules: target["kind"].as_array()?.iter().any(|kind| kind == "test"),
        })
    }

    /// Its tests, from its output with `--list`.
    pub(super) fn tests(&self) -> Result<Vec<Test>, String> {
        let output = Command::new(&self.path).args(["--list", "--format", "terse"]).current_dir(&self.folder).output();
        let output = output.map_err(|e| format!("{}: it could not be started: {e}", self.name))?;
        if !output.status.success() {
            return Err(format!("{} does not list its tests: {}", self.name, output.status));
        }
        Ok(self.listed(&String::from_utf8_lossy(&output.stdout)))
    }

    fn listed(&self, lines: &str) -> Vec<Test> {
        let test = |line: &str| {
            let path = line.strip_suffix(": test")?;
            let (module, name) = path.split_once("::").filter(|_| self.has_modules).unwrap_or(("", path));
            Some(Test { program: self.name.clone(), module: module.to_owned(), name: name.to_owned() })
        };
        lines.lines().filter_map(test).collect()
    }

    #[cfg(test)]
    pub(super) fn at(path: &str) -> Self {
        Self { name: "p".to_owned(), path: path.into(), folder: "/".into(), has_modules: true }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Program, Test};

    fn artifact(test: bool, kind: &str, executable: Option<&str>) -> serde_json::Value {
        json!({ "reason": "compiler-artifact", "manifest_path": "/w/tests/Cargo.toml",
                "target": { "name": "gpu", "kind": [kind] }, "profile": { "test": test }, "executable": executable })
    }

    #[test]
    fn only_test_programs_are_read() {
        let program = Program::read(&artifact(true, "test", Some("/t/gpu-1"))).expect("a program");
        assert_eq!((program.name.as_str(), program.folder.to_str()), ("gpu", Some("/w/tests")));
        assert!(Program::read(&artifact(false, "bin", Some("/t/xtask"))).is_none(), "a program that the tests start");
        assert!(Program::read(&artifact(true, "lib", None)).is_none(), "a library");
        assert!(Program::read(&json!({ "reason": "build-finished", "success": true })).is_none());
    }

    #[test]
    fn tests_have_the_module_of_an_integration_program() {
        let listed = |kind: &str| {
            let program = Program::read(&artifact(true, kind, Some("/t/gpu-1"))).expect("a program");
            program.listed("a::b::c: test\nd: test\na::slow: benchmark\n\n")
        };
        let test = |module: &str, name: &str| Test {
            program: "gpu".to_owned(),
            module: module.to_owned(),
            name: name.to_owned(),
        };
        assert_eq!(listed("test"), [test("a", "b::c"), test("", "d")]);
        assert_eq!(listed("lib"), [test("", "a::b::c"), test("", "d")]);
        assert_eq!(listed("test")[0].path(), "a::b::c");
    }
}
