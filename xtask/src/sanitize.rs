//! `cargo xtask sanitize`: the CPU's tests under AddressSanitizer.

use gradwire_tests::Depth;

use crate::test::{Test, jobs};

/// The one target that is sanitized; continuous integration runs on it.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The packages with the tests that follow and with unit tests. Neither GPU backend: their drivers are not ours to
/// sanitize.
const PACKAGES: [&str; 8] = [
    "-p",
    "gradwire",
    "-p",
    "gradwire-kernels",
    "-p",
    "gradwire-tests",
    "--no-default-features",
    // Its unit tests run without a driver.
    "--features=gradwire/cuda",
];

/// The modules whose code reads bytes of others, or has `unsafe` in its loops. All unit tests run beside them.
pub(crate) const MODULES: [(&str, &str); 9] = [
    ("cpu", "bad_input"),
    ("cpu", "hostile"),
    ("cpu", "mutations"),
    ("cpu", "packing"),
    ("cpu", "plans"),
    ("cpu", "suite"),
    ("cpu", "topk"),
    ("ranks", "compressor"),
    ("ranks", "undone"),
];

/// Builds and runs the tests with the pinned nightly, since a sanitizer is an unstable flag.
pub(crate) fn run() -> Result<(), String> {
    let mut cargo = crate::ptx::pinned_cargo()?;
    cargo.args(["test", "--release", "--locked", "--target", TARGET, "--target-dir", "target/sanitize"]).args(PACKAGES);
    cargo.args(["--lib", "--test", "cpu", "--test", "ranks"]);
    // Arithmetic that wraps where it should not is reported as well, and so is a broken promise to the standard
    // library.
    // Most of the time is the compiler's, so it optimises less.
    for (setting, value) in
        [("OVERFLOW_CHECKS", "true"), ("DEBUG_ASSERTIONS", "true"), ("OPT_LEVEL", "1"), ("LTO", "off")]
    {
        cargo.env(format!("CARGO_PROFILE_RELEASE_{setting}"), value);
    }
    cargo.env("RUSTFLAGS", "-Zsanitizer=address");
    // Every path once: what settings differ in is arithmetic, whose bytes are compared elsewhere.
    let quick = std::env::var_os(Depth::VARIABLE).is_none().then_some((Depth::VARIABLE, "quick"));
    println!("building the CPU's tests with AddressSanitizer in target/sanitize, and running them");
    jobs::run(cargo, quick.as_slice(), |test: &Test| {
        test.module.is_empty() || MODULES.contains(&(test.program.as_str(), test.module.as_str()))
    })
}
