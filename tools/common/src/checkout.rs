//! Where the repository is, and where results go: looked up when a command runs, since a binary may be copied to
//! another machine.

use std::path::{Path, PathBuf};

/// Files that a checkout has at these paths, and hardly anything else.
const MARKS: [&str; 2] = ["xtask/Cargo.toml", "kernels-gpu/Cargo.toml"];

/// The root of the checkout that the current folder is in, or else of the one that cargo runs this from.
pub fn checkout() -> Option<PathBuf> {
    let here = std::env::current_dir().ok();
    // Cargo sets it for what it runs. It is not what the binary was built with.
    let of_cargo = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    here.iter().chain(&of_cargo).find_map(|folder| checkout_above(folder))
}

fn checkout_above(folder: &Path) -> Option<PathBuf> {
    let is_checkout = |folder: &&Path| MARKS.iter().all(|mark| folder.join(mark).is_file());
    folder.ancestors().find(is_checkout).map(Path::to_path_buf)
}

/// The repository's root, for commands that work on it; outside of a checkout the current folder, where they say what
/// they miss.
pub fn root() -> PathBuf {
    checkout().unwrap_or_else(|| PathBuf::from("."))
}

/// The folder that a benchmark's results go into: `target/bench` of the checkout, or else the current folder.
pub fn results() -> PathBuf {
    results_in(checkout())
}

fn results_in(checkout: Option<PathBuf>) -> PathBuf {
    let here = || std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
    checkout.map_or_else(here, |root| root.join("target/bench"))
}

/// Fails where a file cannot be written, and leaves what is there as it is: asked before what takes long.
///
/// `option` is what names another file.
pub fn check_writable(file: &Path, option: &str) -> Result<(), String> {
    let failed =
        |e: std::io::Error| format!("{} could not be written: {e}; name another with {option}", file.display());
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let was_there = file.exists();
    std::fs::OpenOptions::new().append(true).create(true).open(file).map_err(failed)?;
    if was_there { Ok(()) } else { std::fs::remove_file(file).map_err(failed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("gradwire-place-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_checkout_is_found_from_any_folder_in_it_and_from_none_outside() {
        let folder = scratch("checkout");
        let within = folder.join("clone/host/src");
        for path in [within.clone(), folder.join("clone/xtask"), folder.join("clone/kernels-gpu")] {
            std::fs::create_dir_all(path).unwrap();
        }
        assert_eq!(checkout_above(&within), None, "it has no marks yet");
        for mark in MARKS {
            std::fs::write(folder.join("clone").join(mark), "").unwrap();
        }
        for path in [folder.join("clone"), within, folder.join("clone/xtask")] {
            assert_eq!(checkout_above(&path), Some(folder.join("clone")));
        }
        assert_eq!(checkout_above(&folder), None, "a folder beside it is no part of it");
        assert_eq!(results_in(None), std::env::current_dir().unwrap(), "a copied binary writes to where it is called");
        assert_eq!(results_in(Some("/clone".into())), Path::new("/clone/target/bench"));
        // Tests run in their package's folder.
        assert_eq!(root().join("tools/common").canonicalize().unwrap(), std::env::current_dir().unwrap());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_written_is_refused_before_and_one_that_can_stays() {
        let folder = scratch("writable");
        let error = check_writable(&folder, "--json").unwrap_err();
        assert!(error.contains("could not be written") && error.ends_with("name another with --json"), "{error}");
        let file = folder.join("new/bench.json");
        check_writable(&file, "--json").unwrap();
        assert!(!file.exists() && file.parent().unwrap().is_dir(), "only its folder is made");
        std::fs::write(&file, "old").unwrap();
        check_writable(&file, "--json").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "old");
        assert!(check_writable(&file.join("below"), "--chart").unwrap_err().contains("--chart"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
