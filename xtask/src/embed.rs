//! `cargo xtask embed`: what embeds Gradwire, run as its users run it.
//!
//! Programs that link or load `libcuda` find the stand-in, whose device is the PTX machine: so our own driver table,
//! cust and cudarc run for real on a machine without a GPU.

use std::path::PathBuf;
use std::process::Command;

use crate::place::root;

/// The compute capability of the stand-in: one that no artifact is built for, so that a lower one is chosen.
const CAPABILITY: &str = "8.6";

/// Builds the stand-in and runs everything against it.
pub(crate) fn run() -> Result<(), String> {
    if !cfg!(target_os = "linux") {
        return Err("the stand-in for libcuda is a shared object of Linux's; run this there".to_owned());
    }
    let library = stand_in()?;
    let cargo = |folder: &str, args: &[&str]| {
        let mut command = Command::new(env!("CARGO"));
        command.args(args).current_dir(root().join(folder));
        command.env("GRADWIRE_STAND_IN", CAPABILITY).env("CARGO_TARGET_DIR", root().join("target"));
        command
    };
    // With a driver in the library path, and a folder in which cust's build script looks for `lib64`.
    let with_driver = |folder: &str, args: &[&str]| {
        let mut command = cargo(folder, args);
        command.env("LD_LIBRARY_PATH", library.join("lib64")).env("CUDA_LIBRARY_PATH", &library);
        command
    };
    step("wgpu: a caller's device and encoder", cargo(".", &["run", "--release", "--example", "embed_wgpu"]))?;
    // Of the whole workspace, here and below: its features are those of the other builds, and nothing is built again.
    let example = ["run", "--release", "--example", "embed_cudarc"];
    step("cudarc: its streams and slices, on the stand-in", with_driver(".", &example))?;
    let mut check = cargo("adapters/cust", &["check", "--locked", "--all-targets"]);
    check.env("DOCS_RS", "1").env("CARGO_TARGET_DIR", root().join("target/adapters"));
    step("cust: the adapter, type-checked without a toolkit", check)?;
    let mut example = with_driver("adapters/cust", &["run", "--locked", "--release", "--example", "embed_cust"]);
    // Not optimised: the device's work is the stand-in's, which is. Another profile than above, since cust's build
    // script asked for no library there.
    example.env("CARGO_TARGET_DIR", root().join("target/adapters")).env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
    step("cust: its context, streams and buffers, linked against the stand-in", example)?;
    let test = ["test", "--release", "--locked", "--workspace", "--test", "gpu", "--", "driver::"];
    let mut suite = with_driver(".", &test);
    suite.env("GRADWIRE_REQUIRE", "cuda:stand-in");
    step("the driver's own interface, every function of it", suite)?;
    println!("\nall of it ran on {}", library.join("lib64/libcuda.so.1").display());
    Ok(())
}

/// Builds the stand-in for libcuda and puts it where a toolkit has its libraries: the folder with `lib64`.
pub(crate) fn stand_in() -> Result<PathBuf, String> {
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
pub(crate) fn stand_ins() -> Result<PathBuf, String> {
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

pub(crate) fn step(what: &str, mut command: Command) -> Result<(), String> {
    println!("\n--- {what}");
    let status = command.status().map_err(|e| format!("{what}: cargo could not be started: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{what}: ended with {status}; the reason is above")) }
}
