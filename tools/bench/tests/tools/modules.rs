//! Every file of an integration program is one of its modules, so that no test is lost.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders of integration programs.
const PROGRAMS: [&str; 6] = [
    "tests/tests/cpu",
    "tests/tests/gpu",
    "tests/tests/ranks",
    "tests/tests/wgpu",
    "planner/tests/planner",
    "tools/bench/tests/tools",
];

/// Files of Rust under `folder` that `root`, its `main.rs` or `mod.rs`, has no `mod` line for. A folder without a
/// `mod.rs` holds data.
fn undeclared(folder: &Path, root: &str) -> Vec<PathBuf> {
    let text = fs::read_to_string(folder.join(root)).unwrap_or_default();
    let mut missing = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        let name = entry.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
        if entry.file_name().is_some_and(|name| name == root) {
            continue;
        }
        let is_code = entry.extension().is_some_and(|extension| extension == "rs") || entry.join("mod.rs").exists();
        let declared = text.lines().any(|line| line.trim_end().ends_with(&format!("mod {name};")));
        if is_code && !declared {
            missing.push(entry.clone());
        }
        if entry.is_dir() {
            missing.extend(undeclared(&entry, "mod.rs"));
        }
    }
    missing
}

/// Crates whose program is built without its unit tests, and where its sources are.
const UNTESTED: [(&str, &str); 4] =
    [("tools/faults", "src"), ("tools/fuzz", "src"), ("tools/ptx", "src/main.rs"), ("tools/web", "src")];

/// A unit test in such a program would never run.
#[test]
fn a_program_without_tests_has_none() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let manifests = fs::read_dir(root.join("tools")).expect("a folder").map(|entry| entry.expect("an entry").path());
    let untested = manifests.filter(|folder| {
        fs::read_to_string(folder.join("Cargo.toml")).is_ok_and(|text| text.contains("\ntest = false\n"))
    });
    let mut untested: Vec<PathBuf> = untested.collect();
    untested.sort();
    assert_eq!(untested, UNTESTED.map(|(folder, _)| root.join(folder)));
    for (folder, sources) in UNTESTED {
        assert_eq!(with_tests(&root.join(folder).join(sources)), Vec::<PathBuf>::new(), "{folder}");
    }
}

/// The files at or under a path that have a test.
fn with_tests(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() {
        let entries = fs::read_dir(path).expect("a folder").map(|entry| entry.expect("an entry").path());
        return entries.flat_map(|entry| with_tests(&entry)).collect();
    }
    let text = fs::read_to_string(path).expect("a file of Rust");
    Vec::from_iter(text.contains("#[test]").then(|| path.to_owned()))
}

#[test]
fn every_file_of_a_program_is_a_module() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for program in PROGRAMS {
        assert_eq!(undeclared(&root.join(program), "main.rs"), Vec::<PathBuf>::new(), "{program}");
    }
    // And there is no program that this test does not know.
    let tools = fs::read_dir(root.join("tools")).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let tools = tools.map(|name| format!("tools/{}", name.to_string_lossy()));
    let others = ["tests", "planner", "xtask", "collectives", "host", "tests/ptx-machine", "kernels-gpu"];
    for package in others.map(str::to_owned).into_iter().chain(tools) {
        let Ok(entries) = fs::read_dir(root.join(&package).join("tests")) else { continue };
        for entry in entries.map(|entry| entry.expect("an entry").file_name()) {
            let name = format!("{package}/tests/{}", entry.to_string_lossy());
            assert!(PROGRAMS.contains(&name.as_str()), "{name} is a program of its own; make it a module of one");
        }
    }
}

#[test]
fn a_file_without_a_line_is_found() {
    let folder = std::env::temp_dir().join(format!("gradwire-modules-{}", std::process::id()));
    fs::create_dir_all(folder.join("b")).unwrap();
    fs::create_dir_all(folder.join("data")).unwrap();
    for (name, text) in [
        ("main.rs", "mod a;\n#[cfg(unix)]\nmod b;\n"),
        ("a.rs", ""),
        ("c.rs", ""),
        ("b/mod.rs", ""),
        ("b/d.rs", ""),
        ("data/e.rs", ""),
        ("data/f.json", ""),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
    let mut found = undeclared(&folder, "main.rs");
    found.sort();
    assert_eq!(found, [folder.join("b/d.rs"), folder.join("c.rs"), folder.join("data/e.rs")]);
    fs::remove_dir_all(folder).unwrap();
}
