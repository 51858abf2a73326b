//! What a package holds.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Published, cargo_says};

/// Files that every package has, beside its sources.
const EVERYWHERE: [&str; 4] = ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// The folder whose every file is needed: sources, the shaders among them.
const SOURCES: &str = "src";

/// Checks that nothing is left out, and that nothing is in that does not belong there.
pub(super) fn check(package: &Published<'_>) -> Result<(), String> {
    let list = cargo_says(&["package", "--list", "--allow-dirty", "--locked", "--package", package.name])?;
    let packaged: BTreeSet<String> = list.lines().map(|line| line.replace('\\', "/")).collect();
    let mut needed: BTreeSet<String> = EVERYWHERE.map(str::to_owned).into();
    collect(&package.folder, &package.folder.join(SOURCES), &mut needed)?;
    // The committed PTX, of which each family has a folder.
    if package.folder.join("manifest.json").is_file() {
        needed.insert("manifest.json".to_owned());
        for family in families(&package.folder)? {
            collect(&package.folder, &family, &mut needed)?;
        }
    }
    if let Some(missing) = needed.difference(&packaged).next() {
        return Err(format!(
            "the package of {} is without {missing}; `include` in its Cargo.toml decides",
            package.name
        ));
    }
    // What cargo adds by itself, and examples, which a crate's page links to.
    let known = |file: &str| {
        [".cargo_vcs_info.json", "Cargo.lock", "Cargo.toml.orig"].contains(&file) || file.starts_with("examples/")
    };
    if let Some(stray) = packaged.difference(&needed).find(|file| !known(file)) {
        return Err(format!("the package of {} has {stray}, which nothing of it needs", package.name));
    }
    println!("   {}: {} files", package.name, packaged.len());
    Ok(())
}

/// The folders of a package that hold PTX.
fn families(package: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |e| format!("{} could not be read: {e}", package.display());
    let holds_ptx = |folder: &PathBuf| {
        let mut files = fs::read_dir(folder).into_iter().flatten().flatten();
        files.any(|file| file.path().extension().is_some_and(|end| end == "ptx"))
    };
    let mut families = Vec::new();
    for entry in fs::read_dir(package).map_err(failed)? {
        families.extend(Some(entry.map_err(failed)?.path()).filter(holds_ptx));
    }
    Ok(families)
}

/// Every file below `folder`, by its path from `start`.
fn collect(start: &Path, folder: &Path, files: &mut BTreeSet<String>) -> Result<(), String> {
    if !folder.is_dir() {
        return Ok(());
    }
    let failed = |e| format!("{} could not be read: {e}", folder.display());
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            collect(start, &path, files)?;
        } else if let Ok(name) = path.strip_prefix(start) {
            files.insert(name.to_string_lossy().replace('\\', "/"));
        }
    }
    Ok(())
}
