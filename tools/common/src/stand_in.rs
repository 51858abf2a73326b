//! The stand-ins for NVIDIA's libraries, built and put where programs look for a toolkit.

use std::path::PathBuf;
use std::process::Command;

use crate::checkout::root;
use crate::step::step;

/// Builds the stand-in for libcuda and puts it where a toolkit has its libraries: the folder with `lib64`.
///
/// # Errors
/// If it cannot be built or written.
pub fn stand_in() -> Result<PathBuf, String> {
    let folder = built("gradwire-cuda-stand-in", "libcuda.so.1")?;
    // What links against `libcuda.so` and what opens `libcuda.so.1` must meet in one library.
    let link = folder.join("lib64/libcuda.so");
    if link.symlink_metadata().is_err() {
        #[cfg(unix)]
        std::os::unix::fs::symlink("libcuda.so.1", &link)
            .map_err(|error| format!("cannot link to {}: {error}", link.display()))?;
    }
    Ok(folder)
}

/// [`stand_in`], and the one for libnccl beside it.
///
/// # Errors
/// As [`stand_in`].
pub fn stand_ins() -> Result<PathBuf, String> {
    stand_in()?;
    built("gradwire-nccl-stand-in", "libnccl.so.2")
}

/// Builds a stand-in, and puts it under the name of the library that it stands in for.
fn built(package: &str, file: &str) -> Result<PathBuf, String> {
    let mut build = Command::new(env!("CARGO"));
    // All libraries, whose features are those of the other builds: with the package's own, the library is built again.
    build.args(["build", "--release", "--locked", "--workspace", "--lib"]).current_dir(root());
    step(&format!("the stand-in for {file}"), build)?;
    let folder = root().join("target/stand-in");
    let library = folder.join("lib64").join(file);
    let told = |what: &str| {
        let path = library.display().to_string();
        let what = what.to_owned();
        move |error: std::io::Error| format!("{what} {path}: {error}")
    };
    std::fs::create_dir_all(folder.join("lib64")).map_err(told("cannot make the folder of"))?;
    let built = root().join(format!("target/release/lib{}.so", package.replace('-', "_")));
    // A new file, since a program that runs may have the old one mapped.
    if library.exists() {
        std::fs::remove_file(&library).map_err(told("cannot replace"))?;
    }
    std::fs::copy(built, &library).map_err(told("cannot write"))?;
    Ok(folder)
}
