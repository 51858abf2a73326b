//! `cargo xtask test`: everything that must hold before a change lands, and which backends it ran on.

use std::path::{Path, PathBuf};
use std::process::Command;

use gradwire::{BackendKind, Device};

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Runs the steps in order, and stops at the first that fails.
pub(crate) fn run() -> Result<(), String> {
    // The tests share the profile of this binary, so that nothing is built twice.
    let steps: [(&str, &[&str]); 4] = [
        ("formatting", &["fmt", "--all", "--check"]),
        ("lints", &["clippy", "--release", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]),
        ("unit, property, conformance and documentation tests", &["test", "--release", "--workspace", "--locked"]),
        ("documentation", &["doc", "--release", "--workspace", "--no-deps", "--locked"]),
    ];
    for (name, args) in steps {
        println!("== {name}: cargo {}", args.join(" "));
        let status = Command::new(env!("CARGO"))
            .args(args)
            .current_dir(root())
            .env("RUSTDOCFLAGS", "-D warnings")
            .status()
            .map_err(|e| format!("cargo could not be started: {e}"))?;
        if !status.success() {
            return Err(format!("{name} failed ({status}); the output above says where"));
        }
    }
    backends()
}

/// Says which backends the tests ran on, and fails where `GRADWIRE_REQUIRE` names one that this machine lacks.
fn backends() -> Result<(), String> {
    let required = std::env::var("GRADWIRE_REQUIRE").unwrap_or_default();
    let required: Vec<&str> = required.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    if let Some(unknown) = required.iter().find(|name| crate::verify::parse_kind(name).is_err()) {
        return Err(format!("GRADWIRE_REQUIRE names `{unknown}`, which is none of cpu, wgpu and cuda"));
    }
    println!("\n== backends");
    let mut missing = Vec::new();
    for kind in BackendKind::ALL.into_iter().rev() {
        match Device::of(kind) {
            Ok(device) => println!("{:5} ran on {}", kind.name(), device.name()),
            Err(error) => {
                println!("{:5} not tested: {error}", kind.name());
                if required.contains(&kind.name()) {
                    missing.push(kind.name());
                }
            }
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("GRADWIRE_REQUIRE={} and this machine does not offer {}", required.join(","), missing.join(" and ")))
}
