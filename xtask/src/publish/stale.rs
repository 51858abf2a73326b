//! Remains of an earlier run.
//!
//! Cargo verifies packages that need each other through a registry in the target folder, and takes what a registry has
//! under a name and a version for immutable: it would unpack and compile nothing a second time, whatever changed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::CRATES;

/// Removes what cargo unpacked and compiled of our crates in this target folder, so that the packages of now are built.
pub(super) fn remove(target: &Path) -> Result<(), String> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| env::home_dir().map(|home| home.join(".cargo")));
    let home = home.ok_or("neither CARGO_HOME nor a home folder is known")?;
    let ours = |name: &str| CRATES.iter().any(|ours| name.strip_prefix(ours).is_some_and(|rest| rest.starts_with('-')));
    for registry in entries(&home.join("registry/src"))? {
        // A registry on this machine has no host, and the folders of the others begin with theirs.
        if named(&registry, |name| name.starts_with('-')) {
            remove_all(&registry, ours)?;
        }
    }
    remove_all(&target.join("debug/.fingerprint"), ours)?;
    remove_all(target, |name| name == "package")
}

/// Removes the entries of a folder whose names are of a kind.
fn remove_all(folder: &Path, kind: impl Fn(&str) -> bool) -> Result<(), String> {
    for path in entries(folder)?.into_iter().filter(|path| named(path, &kind)) {
        fs::remove_dir_all(&path).map_err(|e| format!("{} could not be removed: {e}", path.display()))?;
    }
    Ok(())
}

fn named(path: &Path, kind: impl Fn(&str) -> bool) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(kind)
}

/// What a folder holds; nothing, if there is no such folder.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |e| format!("{} could not be read: {e}", folder.display());
    match fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| entry.map(|e| e.path()).map_err(failed)).collect(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(failed(e)),
    }
}
