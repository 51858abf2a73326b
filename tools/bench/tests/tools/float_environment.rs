//! No way into the CPU backend, and no piece of work of a thread, leaves out the standard floating-point environment.

use std::path::{Path, PathBuf};

const GUARD: &str = "FloatEnvironment::standard()";

/// Calls of a device that compute nothing in floating point.
const WITHOUT: [&str; 8] = ["kind", "name", "why", "is_software", "limits", "loaded", "warm_up", "session"];

fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            sources(&entry, found);
        } else if entry.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&entry).expect("a source");
            found.push((entry, text.split("#[cfg(test)]\nmod ").next().unwrap_or_default().to_owned()));
        }
    }
}

fn of_crates(folders: &[&str]) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    folders.iter().for_each(|folder| sources(&root.join(folder), &mut found));
    assert!(found.len() > 50, "{} sources", found.len());
    found
}

/// Lines of code that name rayon.
fn names_rayon(code: &str) -> bool {
    let mut code = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    code.any(|line| line.contains("rayon::") || line.contains("par_iter") || line.contains("par_chunks"))
}

#[test]
fn rayon_is_used_through_one_file() {
    let users = of_crates(&["host/src", "collectives/src", "planner/src"]).into_iter().filter(|(_, t)| names_rayon(t));
    let users: Vec<PathBuf> = users.map(|(path, _)| path).collect();
    assert!(users.len() == 1 && users[0].ends_with("host/src/threads.rs"), "{users:?}");
    assert!(names_rayon("use rayon::prelude::*;") && !names_rayon("// rayon::join"));
}

/// The methods of `impl Device` that others call on one, with the first line of what each does.
fn methods(code: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let lines: Vec<&str> = code.lines().collect();
    let mut is_device = false;
    for (at, line) in lines.iter().enumerate() {
        match *line {
            "impl Device {" => is_device = true,
            "}" => is_device = false,
            _ => {}
        }
        let Some(rest) = line.strip_prefix("    pub fn ").filter(|_| is_device) else { continue };
        let end = (at..lines.len()).find(|end| lines[*end].ends_with('{')).expect("a body");
        if lines[at..=end].iter().any(|line| line.contains("&self")) {
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            found.push((name.to_owned(), lines[end + 1].trim().to_owned()));
        }
    }
    found
}

#[test]
fn every_call_of_a_device_computes_in_the_standard_environment() {
    let all: Vec<(String, String)> = of_crates(&["host/src"]).iter().flat_map(|(_, code)| methods(code)).collect();
    assert!(all.len() > 40, "{} methods", all.len());
    for known in WITHOUT {
        assert!(all.iter().any(|(name, _)| name == known), "{known} is listed, and is no method");
    }
    for (name, first) in &all {
        let is_listed = WITHOUT.contains(&name.as_str());
        assert!(is_listed || first.contains(GUARD), "Device::{name} begins with `{first}`, and not with {GUARD}");
    }
}

#[test]
fn a_call_without_it_is_found() {
    let code = "impl Device {\n    pub fn new(\n        &self,\n    ) -> u32 {\n        1\n    }\n    pub fn of() -> u32 {\n        2\n    }\n}\n";
    assert_eq!(methods(code), [("new".to_owned(), "1".to_owned())]);
}
