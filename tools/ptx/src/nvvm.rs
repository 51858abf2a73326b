//! `cargo xtask ptx --codegen nvvm`: the same kernels through Rust-CUDA's compiler backend.
//!
//! None of what it needs is ours, most of it has no package, and the backend works with one nightly only. So the
//! command looks for everything first, and says all that is missing at once.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use gradwire::plan::Kernel;
use gradwire_tools::checkout::root;
use gradwire_tools::nightly::{clean, stdout};

use super::text::entries;

/// The nightly that Rust-CUDA's main branch is pinned to. Its `rust-toolchain.toml` says which; another one loads no
/// backend.
const TOOLCHAIN: &str = "nightly-2026-04-02";
/// Where the backend is, if it is not on the loader's path.
const BACKEND: &str = "GRADWIRE_NVVM_BACKEND";
/// The folder `crates/cuda_std` of a checkout of Rust-CUDA.
const CUDA_STD: &str = "GRADWIRE_CUDA_STD";
/// Names of the backend: by the version of LLVM, and as it was before there were two.
const NAMES: [&str; 3] = ["librustc_codegen_nvvm_v7.so", "librustc_codegen_nvvm.so", "librustc_codegen_nvvm_v19.so"];
/// The lowest capability that CUDA 12's libNVVM knows of those the kernels are built for.
const ARCHITECTURES: [u32; 4] = [60, 70, 80, 90];

/// What was found.
struct Parts {
    backend: PathBuf,
    libnvvm: PathBuf,
    cuda_std: PathBuf,
}

/// Builds the kernels, or says what is missing.
pub(super) fn run() -> Result<(), String> {
    let parts = find()?;
    let folder = root().join("target/nvvm");
    for architecture in ARCHITECTURES {
        let text = build(&parts, &folder, architecture)?;
        let found: BTreeSet<_> = entries(&text).collect();
        let expected: BTreeSet<_> = Kernel::ALL.iter().map(|kernel| kernel.name()).collect();
        if found != expected {
            return Err(format!("the PTX has the entry points {found:?}, and the plans call {expected:?}"));
        }
        let path = folder.join(format!("sm_{architecture}.ptx"));
        fs::write(&path, &text).map_err(|e| format!("{} could not be written: {e}", path.display()))?;
        println!("{}: {} entry points", path.display(), found.len());
    }
    println!("this PTX was not tested: neither its bytes nor its results are compared with anything");
    Ok(())
}

/// Everything, or the whole list of what is not there.
fn find() -> Result<Parts, String> {
    let (backend, libnvvm, cuda_std) = (backend(), libnvvm(), named(CUDA_STD));
    let toolchain = stdout(clean("rustc").arg(format!("+{TOOLCHAIN}")).arg("-V"));
    let mut missing = Vec::new();
    if toolchain.is_err() {
        missing.push(format!(
            "the nightly that the backend is built with: rustup toolchain install {TOOLCHAIN} --component rust-src --component rustc-dev --component llvm-tools"
        ));
    }
    if backend.is_none() {
        missing.push(format!(
            "the backend, {}, from github.com/Rust-GPU/Rust-CUDA, crates/rustc_codegen_nvvm, built with that nightly; name the file in {BACKEND}",
            NAMES[0]
        ));
        missing.push(format!(
            "LLVM 7 (7.0 or 7.1), which the backend links: {}; build it from the sources of llvm.org, and name its llvm-config in LLVM_CONFIG",
            llvm().map_or_else(|| "no llvm-config of version 7 was found".to_owned(), |found| format!("found {found}"))
        ));
    }
    if libnvvm.is_none() {
        missing.push(
            "libNVVM of CUDA 12, which is part of the toolkit (nvvm/lib64/libnvvm.so); name the toolkit in CUDA_HOME"
                .to_owned(),
        );
    }
    if cuda_std.is_none() {
        missing.push(format!(
            "cuda_std from the same checkout, because 0.2.2 of crates.io does not compile for a GPU with that nightly; name its folder, crates/cuda_std, in {CUDA_STD}"
        ));
    }
    if let (Some(backend), Some(libnvvm), Some(cuda_std), Ok(_)) = (backend, libnvvm, cuda_std, toolchain) {
        return Ok(Parts { backend, libnvvm, cuda_std });
    }
    Err(format!("rustc_codegen_nvvm cannot run here. It needs\n  - {}", missing.join("\n  - ")))
}

/// What a variable names, if it is there.
fn named(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.exists())
}

fn backend() -> Option<PathBuf> {
    let on_path = || {
        let folders = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        env::split_paths(&folders).flat_map(|folder| NAMES.map(|name| folder.join(name))).find(|path| path.is_file())
    };
    named(BACKEND).or_else(on_path)
}

fn libnvvm() -> Option<PathBuf> {
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(named).chain([PathBuf::from("/usr/local/cuda")]);
    toolkits.map(|toolkit| toolkit.join("nvvm/lib64")).find(|folder| folder.join("libnvvm.so").exists())
}

/// The version of an `llvm-config`, if it is a 7.
fn llvm() -> Option<String> {
    let configured = env::var("LLVM_CONFIG").ok();
    let programs = configured.into_iter().chain(["llvm-config-7", "llvm-config"].map(str::to_owned));
    let versions = programs.filter_map(|program| stdout(clean(&program).arg("--version")).ok());
    versions.map(|version| version.trim().to_owned()).find(|version| version.starts_with("7."))
}

/// The PTX of one architecture.
fn build(parts: &Parts, folder: &Path, architecture: u32) -> Result<String, String> {
    let flags = [
        format!("-Zcodegen-backend={}", parts.backend.display()),
        // How cuda_std marks kernels and address spaces.
        "-Zcrate-attr=feature(register_tool)".to_owned(),
        "-Zcrate-attr=register_tool(nvvm_internal)".to_owned(),
        // A fused multiply-add rounds once where the CPU rounds twice.
        format!("-Cllvm-args=-arch=compute_{architecture} -fma=0"),
    ];
    let mut cargo = clean("cargo");
    cargo.arg(format!("+{TOOLCHAIN}"));
    // Not `--locked`: the cuda_std of the checkout has other dependencies than the one in Cargo.lock.
    cargo.args([
        "rustc",
        "--package",
        "gradwire-kernels",
        "--lib",
        "--crate-type",
        "cdylib",
        "--features",
        "rust-cuda",
    ]);
    cargo.args(["--profile", "ptx", "--target", "nvptx64-nvidia-cuda", "-Zbuild-std=core,alloc", "--lockfile-path"]);
    cargo.arg(folder.join("Cargo.lock")).arg("-Zunstable-options");
    cargo.arg("--config").arg(format!("patch.crates-io.cuda_std.path={:?}", parts.cuda_std.display().to_string()));
    cargo.arg("--target-dir").arg(folder.join(format!("sm_{architecture}")));
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}")).env("CUDA_ARCH", architecture.to_string());
    let libraries = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let libraries = std::iter::once(parts.libnvvm.clone()).chain(env::split_paths(&libraries));
    let libraries = env::join_paths(libraries).map_err(|e| format!("LD_LIBRARY_PATH cannot be extended: {e}"))?;
    let status = cargo.env("LD_LIBRARY_PATH", libraries).current_dir(root()).status();
    let status = status.map_err(|e| format!("cargo could not be started: {e}"))?;
    if !status.success() {
        return Err(format!("the kernels did not build for sm_{architecture} ({status}); the output above says why"));
    }
    let output = folder.join(format!("sm_{architecture}/nvptx64-nvidia-cuda/ptx/gradwire_kernels.ptx"));
    fs::read_to_string(&output).map_err(|e| format!("the backend left no PTX at {}: {e}", output.display()))
}
