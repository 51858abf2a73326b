//! What a stage depends on, as it is now.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use gradwire_tools::repository::{digest, files, hash};

use super::stage::Stage;

/// Everything that a stage's outcome depends on, as hashes and versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// The hash of its files.
    pub(super) files: String,
    /// The hash of what its declaration says.
    pub(super) declaration: String,
    /// The hash of the environment's variables that change its outcome.
    pub(super) settings: String,
    /// What each of its tools says its version is.
    pub(super) tools: Vec<Tool>,
}

/// A tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tool {
    /// The line of bash that prints its version.
    pub(super) line: String,
    /// Its output, in one line.
    pub(super) says: String,
}

/// What a tool says that is not there.
const ABSENT: &str = "it is not there";

/// Beginnings of the names of variables that change what a stage does.
const VARIABLES: [&str; 6] =
    ["GRADWIRE_", "RUSTFLAGS", "RUSTDOCFLAGS", "CARGO_ENCODED_", "CARGO_BUILD_", "CARGO_PROFILE_"];
/// Those that only say where things are kept.
const PLACES: &str = "GRADWIRE_CI_";

impl State {
    /// The state of a stage.
    ///
    /// # Errors
    /// If it declares no file, or one that is not there.
    pub(super) fn of(stage: &Stage, root: &Path, tools: &mut Tools<'_>) -> Result<Self, String> {
        Ok(Self {
            files: hash_of_files(stage, root)?,
            declaration: hash(&stage.declaration())?,
            settings: hash(&settings(std::env::vars()))?,
            tools: stage.tools().iter().map(|line| tools.of(line)).collect(),
        })
    }

    /// Whether a tool is not there, so that its version is unknown.
    pub(super) fn lacks_a_tool(&self) -> bool {
        self.tools.iter().any(|tool| tool.says == ABSENT)
    }

    /// The first difference, in words. None if there is none.
    pub(super) fn differs(&self, before: &Self) -> Option<String> {
        let parts = [
            (&self.files, &before.files, "files that it depends on"),
            (&self.declaration, &before.declaration, "its declaration"),
            (&self.settings, &before.settings, "variables of the environment"),
        ];
        let mut all: Vec<String> = parts
            .iter()
            .filter(|(now, before, _)| now != before)
            .map(|(_, _, what)| format!("{what} changed"))
            .collect();
        if self.tools.len() == before.tools.len() {
            let pairs = self.tools.iter().zip(&before.tools).filter(|(now, before)| now != before);
            all.extend(pairs.map(|(now, before)| {
                format!("`{}` says `{}`, and said `{}`", now.line, short(&now.says), short(&before.says))
            }));
        } else {
            all.push("it has other tools".to_owned());
        }
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// The hash of the files that a stage depends on.
///
/// # Errors
/// If it declares no file, or one that is not there.
pub(super) fn hash_of_files(stage: &Stage, root: &Path) -> Result<String, String> {
    let told = |why: String| format!("the stage {}: {why}; xtask/src/ci/stages.rs declares its files", stage.name);
    let specs: Vec<&str> = stage.files().collect();
    if specs.is_empty() {
        return Err(told("it can be left out, and declares no file that it depends on".to_owned()));
    }
    files(root, &specs).and_then(|names| digest(root, &names)).map_err(told)
}

fn short(text: &str) -> &str {
    text.char_indices().nth(60).map_or(text, |(at, _)| &text[..at])
}

/// Variables that change what a stage does, one per line.
fn settings(variables: impl Iterator<Item = (String, String)>) -> String {
    let counts = |name: &str| VARIABLES.iter().any(|start| name.starts_with(start)) && !name.starts_with(PLACES);
    let sorted: BTreeMap<String, String> = variables.filter(|(name, _)| counts(name)).collect();
    sorted.iter().map(|(name, value)| format!("{name}={value}\n")).collect()
}

/// Asks each tool once.
pub(super) struct Tools<'a> {
    root: &'a Path,
    kept: &'a Path,
    known: BTreeMap<String, String>,
}

impl<'a> Tools<'a> {
    /// Tools that are asked in a folder, with the stamps in another.
    pub(super) fn new(root: &'a Path, kept: &'a Path) -> Self {
        Self { root, kept, known: BTreeMap::new() }
    }

    fn of(&mut self, line: &str) -> Tool {
        let says = self.known.entry(line.to_owned()).or_insert_with(|| {
            let mut bash = Command::new("bash");
            bash.args(["-c", line]).current_dir(self.root).env("GRADWIRE_CI_STAMPS", self.kept);
            let output = bash.output().ok().filter(|output| output.status.success());
            let lines = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
            let words: Vec<&str> = lines.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            if words.is_empty() { ABSENT.to_owned() } else { words.join(", ") }
        });
        Tool { line: line.to_owned(), says: says.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stage::Class;
    use super::super::stages::STAGES;
    use super::*;
    use gradwire_tools::scratch::repository;

    fn stage(files: &'static [&'static [&'static str]]) -> Stage {
        let class = Class::Rotation { files, tools: &["echo 1", "false"] };
        Stage { name: "s", what: "", needs: &[], settings: &[], lines: &["true"], whole: &[], class }
    }

    #[test]
    fn a_declared_file_that_changes_changes_the_state() {
        let root = repository("state", &[("in/a", "1"), ("out/b", "2")]);
        let of = |stage: &Stage| State::of(stage, &root, &mut Tools::new(&root, &root)).unwrap();
        let before = of(&stage(&[&["in"]]));
        std::fs::write(root.join("out/b"), "3").unwrap();
        assert_eq!(of(&stage(&[&["in"]])).differs(&before), None);
        std::fs::write(root.join("in/a"), "3").unwrap();
        let changed = of(&stage(&[&["in"]]));
        assert_eq!(changed.differs(&before).as_deref(), Some("files that it depends on changed"));
        let other = Stage { lines: &["true", "false"], ..stage(&[&["in"]]) };
        assert_eq!(of(&other).differs(&changed).as_deref(), Some("its declaration changed"));
        assert_eq!(before.tools[0].says, "1");
        assert_eq!(before.tools[1].says, ABSENT);
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn another_version_of_a_tool_is_told() {
        let of = |says: &str| State {
            files: String::new(),
            declaration: String::new(),
            settings: String::new(),
            tools: vec![Tool { line: "node --version".to_owned(), says: says.to_owned() }],
        };
        let told = of("v22").differs(&of("v20"));
        assert_eq!(told.as_deref(), Some("`node --version` says `v22`, and said `v20`"));
    }

    #[test]
    fn inputs_that_are_missing_are_an_error() {
        let root = repository("missing", &[("a", "1")]);
        let of = |files| State::of(&stage(files), &root, &mut Tools::new(&root, &root)).unwrap_err();
        assert!(of(&[]).contains("declares no file"), "none is declared");
        assert!(of(&[&["a", "gone"]]).contains("`gone` matches no file"), "one is not there");
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn every_stage_that_rotates_declares_files_that_are_there() {
        let root = gradwire_tools::checkout::root();
        // A source archive has no list of files.
        if !root.join(".git").exists() {
            return;
        }
        for stage in STAGES.iter().filter(|stage| stage.rotates()) {
            let specs: Vec<&str> = stage.files().collect();
            assert!(!specs.is_empty() && files(&root, &specs).is_ok(), "{}: {:?}", stage.name, files(&root, &specs));
        }
        let names: std::collections::BTreeSet<&str> = STAGES.iter().map(|stage| stage.name).collect();
        assert_eq!(names.len(), STAGES.len(), "a name is a stamp's");
        assert!(STAGES.iter().all(|stage| !stage.lines.is_empty() && !stage.what.is_empty()));
    }

    #[test]
    fn variables_that_say_how_to_build_count() {
        let all = [("HOME", "/h"), ("RUSTFLAGS", "-C a"), ("GRADWIRE_DEPTH", "full"), ("GRADWIRE_CI_STAMPS", "/s")];
        let all = all.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(settings(all), "GRADWIRE_DEPTH=full\nRUSTFLAGS=-C a\n");
    }
}
