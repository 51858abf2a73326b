//! `cargo xtask sanitize`: the CPU's tests under AddressSanitizer.

use gradwire_tests::Depth;

use crate::place::root;

/// The one target that is sanitized; continuous integration runs on it.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// What touches bytes of others, and every unit test. Neither GPU backend: their drivers are not ours to sanitize.
const TESTS: [&str; 25] = [
    "-p",
    "gradwire",
    "-p",
    "gradwire-kernels",
    "-p",
    "gradwire-tests",
    "--no-default-features",
    // Its unit tests run without a driver.
    "--features=gradwire/cuda",
    "--lib",
    "--test",
    "cpu",
    "--test",
    "bad_input",
    "--test",
    "plans",
    "--test",
    "mutations",
    "--test",
    "hostile",
    "--test",
    "topk",
    "--test",
    "compressor",
    "--test",
    "packing",
];

/// Builds and runs the tests with the pinned nightly, since a sanitizer is an unstable flag.
pub(crate) fn run() -> Result<(), String> {
    let mut cargo = crate::ptx::pinned_cargo()?;
    cargo.args(["test", "--release", "--locked", "--target", TARGET, "--target-dir", "target/sanitize"]).args(TESTS);
    // Arithmetic that wraps where it should not is reported as well, and so is a broken promise to the standard
    // library.
    for check in ["OVERFLOW_CHECKS", "DEBUG_ASSERTIONS"] {
        cargo.env(format!("CARGO_PROFILE_RELEASE_{check}"), "true");
    }
    cargo.env("RUSTFLAGS", "-Zsanitizer=address").current_dir(root());
    // Every path once: what settings differ in is arithmetic, whose bytes are compared elsewhere.
    if std::env::var_os(Depth::VARIABLE).is_none() {
        cargo.env(Depth::VARIABLE, "quick");
    }
    println!("building the CPU's tests with AddressSanitizer in target/sanitize, and running them");
    let status = cargo.status().map_err(|e| format!("cargo could not be started: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("the sanitized tests ended with {status}; the report is above")) }
}
