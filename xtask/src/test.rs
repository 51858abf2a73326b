//! `cargo xtask test`: everything that must hold before a change lands, and which backends it ran on.

use std::process::Command;

use gradwire::{BackendKind, Device};
use gradwire_tests::require::Required;

use crate::place::root;

/// Runs the steps in order, and stops at the first that fails.
pub(crate) fn run() -> Result<(), String> {
    // Read before anything is built, so that a slip of the pen is not found at the end.
    let required = Required::from_environment().map_err(|unmet| unmet.to_string())?;
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
    backends(&required)
}

/// Says which backends the tests ran on and how many are missing, and fails where `GRADWIRE_REQUIRE` asks for one that
/// this machine lacks.
fn backends(required: &Required) -> Result<(), String> {
    println!("\n== backends");
    let (mut ran, mut missing, mut unmet) = (0, 0, Vec::new());
    for kind in BackendKind::ALL.into_iter().rev() {
        let opened = Device::of(kind);
        match &opened {
            Ok(device) => {
                println!("{:5} ran on {}", kind.name(), device.name());
                ran += 1;
            }
            Err(error) => {
                println!("{:5} not tested: {error}", kind.name());
                missing += 1;
            }
        }
        unmet.extend(required.check(kind, &opened).err().map(|unmet| unmet.to_string()));
    }
    #[cfg(feature = "cuda")]
    for (name, opened) in gradwire_tests::traffic::machines() {
        match opened {
            Ok(device) => {
                println!("{:5} ran on {}", "PTX", device.name());
                ran += 1;
            }
            // The machine is always there, so this is an artifact that it refuses.
            Err(error) => unmet.push(format!("{name}: {error}")),
        }
    }
    println!("{ran} backends ran, {missing} missing");
    if unmet.is_empty() { Ok(()) } else { Err(unmet.join("\n       ")) }
}
