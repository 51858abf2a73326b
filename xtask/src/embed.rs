//! `cargo xtask embed`: what embeds Gradwire, run as its users run it.
//!
//! Programs that link or load `libcuda` find the stand-in, whose device is the PTX machine: so our own driver table,
//! cust and cudarc run for real on a machine without a GPU.

use std::process::Command;

use gradwire_tools::checkout::root;
use gradwire_tools::stand_in::stand_in;
use gradwire_tools::step::step;

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
