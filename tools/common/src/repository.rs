//! What git knows of the repository: which files it holds, and hashes of their contents.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::settings::TURN;

/// What git prints.
pub fn git(root: &Path, words: &[&str]) -> Result<String, String> {
    git_given(root, words, "")
}

/// What git prints when it is given a text.
fn git_given(root: &Path, words: &[&str], text: &str) -> Result<String, String> {
    let told = |why: String| format!("git {} in {}: {why}", words.join(" "), root.display());
    let mut command = Command::new("git");
    command.args(words).current_dir(root).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut git = command.spawn().map_err(|e| told(format!("it could not be started: {e}")))?;
    // It answers after it has read all, so that neither waits for the other.
    let given = git.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(text.as_bytes()));
    let output = git.wait_with_output().map_err(|e| told(e.to_string()))?;
    if !output.status.success() {
        return Err(told(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())));
    }
    given.map_err(|e| told(e.to_string()))?;
    String::from_utf8(output.stdout).map_err(|_| told("it printed a name that is no UTF-8".to_owned()))
}

/// The files that pathspecs match, sorted: those that git tracks, and new ones that it does not ignore.
///
/// # Errors
/// Where a pathspec matches no file.
pub fn files(root: &Path, specs: &[&str]) -> Result<BTreeSet<String>, String> {
    let mut all = BTreeSet::new();
    for spec in specs {
        let words = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", spec];
        let listed = git(root, &words)?;
        // What is deleted and not yet committed is listed, and is no file.
        let is_there = |name: &&str| !name.is_empty() && root.join(name).is_file();
        let found: Vec<&str> = listed.split('\0').filter(is_there).collect();
        if found.is_empty() {
            return Err(format!("`{spec}` matches no file of the repository"));
        }
        all.extend(found.into_iter().map(str::to_owned));
    }
    Ok(all)
}

/// One hash of files' names, contents and permissions to be run.
pub fn digest(root: &Path, names: &BTreeSet<String>) -> Result<String, String> {
    let mut text = String::new();
    for (name, hash) in names.iter().zip(hashes(root, names)?) {
        let runs = runs(&root.join(name)).map_err(|e| format!("{name} could not be read: {e}"))?;
        text.push_str(&format!("{hash} {} {name}\n", if runs { "x" } else { "-" }));
    }
    hash(&text)
}

/// The hash of each file's contents.
fn hashes(root: &Path, names: &BTreeSet<String>) -> Result<Vec<String>, String> {
    let list: String = names.iter().map(|name| format!("{name}\n")).collect();
    let said = git_given(root, &["hash-object", "--no-filters", "--stdin-paths"], &list)?;
    let hashes: Vec<String> = said.lines().map(str::to_owned).collect();
    if hashes.len() == names.len() {
        return Ok(hashes);
    }
    Err(format!("git was asked for the hashes of {} files, and gave {}", names.len(), hashes.len()))
}

/// The hash that git gives to a text.
pub fn hash(text: &str) -> Result<String, String> {
    // It needs no repository.
    let hash = git_given(&std::env::temp_dir(), &["hash-object", "--stdin"], text)?;
    Ok(hash.trim().to_owned())
}

/// Whether a file may be run.
#[cfg(unix)]
fn runs(path: &Path) -> std::io::Result<bool> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::metadata(path)?.permissions().mode() & 0o111 != 0)
}

/// Whether a file may be run: it is not asked here.
#[cfg(not(unix))]
fn runs(path: &Path) -> std::io::Result<bool> {
    fs::metadata(path).map(|_| false)
}

/// A number below `of`, which the tree of the commit draws: every run of a commit draws the same. None where git does not
/// answer.
#[must_use]
pub fn drawn(root: &Path, of: usize) -> Option<usize> {
    let tree = git(root, &["rev-parse", "HEAD^{tree}"]).ok()?;
    let number = u32::from_str_radix(tree.get(..8)?, 16).ok()?;
    (number as usize).checked_rem(of)
}

/// The part of a test's sweep that has its turn: what the environment says, else what the tree of the commit draws.
#[must_use]
pub fn turn(root: &Path) -> String {
    /// A multiple of every number of parts that a sweep has.
    const TURNS: usize = 120;
    std::env::var(TURN).unwrap_or_else(|_| drawn(root, TURNS).unwrap_or(0).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::repository;

    #[test]
    fn a_digest_is_of_names_and_contents() {
        let root = repository("digest", &[("a/one", "1"), ("a/two", "2"), ("b", "3"), (".gitignore", "ignored\n")]);
        let of = |specs: &[&str]| digest(&root, &files(&root, specs).unwrap()).unwrap();
        let before = of(&["a"]);
        assert_eq!(before, of(&["a/*"]), "however the files are named");
        fs::write(root.join("b"), "other").unwrap();
        fs::write(root.join("a/ignored"), "").unwrap();
        assert_eq!(before, of(&["a"]), "no other file matters, nor one that git ignores");
        fs::write(root.join("a/one"), "other").unwrap();
        let other = of(&["a"]);
        assert_ne!(before, other, "what is in it changes");
        fs::write(root.join("a/new"), "").unwrap();
        assert_ne!(other, of(&["a"]), "a file is new, and not yet added");
        fs::remove_file(root.join("a/new")).unwrap();
        fs::rename(root.join("a/two"), root.join("a/three")).unwrap();
        assert_ne!(other, of(&["a"]), "a file has another name");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_matches_no_file_is_named() {
        let root = repository("nothing", &[("a", "1")]);
        assert_eq!(files(&root, &["a", "gone"]), Err("`gone` matches no file of the repository".to_owned()));
        assert_eq!(files(&root, &["a", "a"]).map(|all| all.len()), Ok(1), "two specs may match one file");
        fs::remove_dir_all(root).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_permission_counts() {
        use std::os::unix::fs::PermissionsExt;
        let root = repository("mode", &[("script", "#!/bin/sh\n")]);
        let of = || digest(&root, &files(&root, &["script"]).unwrap()).unwrap();
        let before = of();
        fs::set_permissions(root.join("script"), fs::Permissions::from_mode(0o755)).unwrap();
        assert_ne!(before, of());
        fs::remove_dir_all(root).unwrap();
    }
}
