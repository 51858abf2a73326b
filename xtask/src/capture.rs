//! `cargo xtask capture`: makes `benches/data/digits_cnn.safetensors` again.

use std::process::Command;

/// Runs the capture crate, which stands outside the workspace because the framework it trains with is large.
pub(crate) fn run() -> Result<(), String> {
    println!("building benches/capture in target/capture, and training the network");
    let status = Command::new(env!("CARGO"))
        .args(["run", "--release", "--locked", "--manifest-path", "benches/capture/Cargo.toml", "--target-dir"])
        .arg("target/capture")
        .current_dir(gradwire_tools::checkout::root())
        .status()
        .map_err(|e| format!("cargo could not be started to build benches/capture: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("the capture ended with {status}; its output above says why")) }
}
