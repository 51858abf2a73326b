//! Repositories for tests.

use std::fs;
use std::path::PathBuf;

use crate::repository::git;

/// A new repository of a few files, in the system's folder for temporary files.
///
/// # Panics
/// If it cannot be made, since tests alone call this.
#[must_use]
pub fn repository(test: &str, contents: &[(&str, &str)]) -> PathBuf {
    let root = std::env::temp_dir().join(format!("gradwire-{test}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(&root).unwrap();
    git(&root, &["init", "--quiet"]).unwrap();
    for (name, text) in contents {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}
