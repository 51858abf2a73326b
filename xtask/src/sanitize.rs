//! `cargo xtask sanitize`: the CPU's tests under AddressSanitizer.
//!
//! Three tools look for faults of memory in the same code: AddressSanitizer under the tests, libFuzzer with it, and Miri
//! under the readers. Together they take twenty minutes and more. So a run of continuous integration has a third of
//! them, which the commit's tree draws.

use gradwire_tools::checkout::root;
use gradwire_tools::repository::drawn;
use gradwire_tools::settings::DEPTH;

use crate::program;
use crate::test::{Test, jobs};

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// One of three parts, as the commit's tree draws: unit tests and the program `cpu`; the program `ranks`; or the
    /// fuzz targets for a minute, and the readers under Miri.
    #[arg(long)]
    drawn: bool,
}

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
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let programs: &[&str] = match if args.drawn { drawn(&root(), 3) } else { None } {
        Some(0) => &["--lib", "--test=cpu"],
        Some(1) => &["--test=ranks"],
        Some(_) => {
            println!("the tree draws the fuzz targets and Miri; `cargo xtask sanitize` is the rest");
            program::step("gradwire-fuzzing", "fuzz", &["--miri"])?;
            return program::step("gradwire-fuzzing", "fuzz", &["--total", "60"]);
        }
        None => &["--lib", "--test=cpu", "--test=ranks"],
    };
    let mut cargo = gradwire_tools::nightly::pinned_cargo()?;
    cargo.args(["test", "--release", "--locked", "--target", TARGET, "--target-dir", "target/sanitize"]).args(PACKAGES);
    cargo.args(programs);
    // Overflows of integers are reported as well, and broken preconditions of the standard library.
    // Most of the time is the compiler's, so it optimises less.
    for (setting, value) in
        [("OVERFLOW_CHECKS", "true"), ("DEBUG_ASSERTIONS", "true"), ("OPT_LEVEL", "1"), ("LTO", "off")]
    {
        cargo.env(format!("CARGO_PROFILE_RELEASE_{setting}"), value);
    }
    cargo.env("RUSTFLAGS", "-Zsanitizer=address");
    // Every path once: what settings differ in is arithmetic, whose bytes are compared elsewhere.
    let quick = std::env::var_os(DEPTH).is_none().then_some((DEPTH, "quick"));
    println!("building {} with AddressSanitizer in target/sanitize, and running them", programs.join(" "));
    jobs::run(cargo, quick.as_slice(), |test: &Test| {
        test.module.is_empty() || MODULES.contains(&(test.program.as_str(), test.module.as_str()))
    })
}
