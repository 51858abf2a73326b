//! `cargo xtask test`: everything that must hold before a change lands, and which backends it ran on.

pub(crate) mod jobs;
mod programs;

use std::process::Command;

use gradwire_tools::checkout::root;
use gradwire_tools::repository::turn;
use gradwire_tools::settings::{CODEC, DEPTH, DEPTHS, TURN};
use gradwire_tools::step::succeed;

use crate::codecs::{self, CODECS, Codec};
use crate::program;
pub(crate) use programs::Test;

/// Formatting, lints, all tests and documentation; or, for the inner loop, the tests of one codec or one backend alone.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How much of every sweep: quick, default or full. Without it, what GRADWIRE_DEPTH says, or default.
    #[arg(long, value_parser = DEPTHS)]
    depth: Option<String>,
    /// Only the tests of this codec, such as qsgd, topk or powersgd. Nothing is formatted, linted or documented.
    #[arg(long, value_parser = codecs::find)]
    codec: Option<Codec>,
    /// Only the tests of this backend: cpu, cuda (with the interpreter of PTX) or wgpu. Nothing is formatted, linted or
    /// documented.
    #[arg(long, value_enum)]
    backend: Option<Backend>,
    /// Only the tests of the CPU backend, built for another processor and run under qemu-user.
    #[arg(long, value_enum, conflicts_with_all = ["codec", "backend"])]
    emulate: Option<Processor>,
}

/// A processor that is emulated.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Processor {
    Aarch64,
}

/// A backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Backend {
    Cpu,
    Cuda,
    Wgpu,
}

/// Runs the steps in order, and stops at the first that fails.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    if let Some(depth) = std::env::var_os(DEPTH).filter(|_| args.depth.is_none())
        && !DEPTHS.iter().any(|known| depth == *known)
    {
        return Err(format!("{DEPTH} is `{}`; it can be {}", depth.to_string_lossy(), DEPTHS.join(", ")));
    }
    if let Some(Processor::Aarch64) = args.emulate {
        return emulated(args);
    }
    if args.codec.is_some() || args.backend.is_some() {
        return some(args);
    }
    step("formatting", &["fmt", "--all", "--check"], args)?;
    // Before the tests, so that a backend that is requested and missing is reported at once.
    println!("== backends");
    program::step("gradwire-bench", "backends", &[])?;
    // The tests share the profile of the programs, so that nothing is built twice.
    step("lints", &["clippy", "--release", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], args)?;
    println!("== unit, property and conformance tests");
    let mut environment: Vec<_> = args.depth.iter().map(|depth| (DEPTH, depth.as_str())).collect();
    let turn = turn(&root());
    println!("{TURN}={turn}: which part of sweeps has its turn");
    environment.push((TURN, &turn));
    let mut all = cargo();
    // Without the examples: lints check them, and the commands that run them build them.
    all.arg("--tests");
    jobs::run(all, &environment, |_| true)?;
    step("documentation tests", &["test", "--release", "--workspace", "--locked", "--doc"], args)?;
    step("documentation", &["doc", "--release", "--workspace", "--no-deps", "--locked"], args)?;
    println!("\n== backends");
    program::step("gradwire-bench", "backends", &[])
}

/// The CPU's arithmetic and loops on AArch64, so that NEON gives the bytes that SSE2 and AVX do. How fast it is does
/// not show.
fn emulated(args: &Args) -> Result<(), String> {
    let target = ["test", "--release", "--locked", "--target", "aarch64-unknown-linux-gnu"];
    let arithmetic = [&target[..], &["-p", "gradwire-kernels", "--lib"]].concat();
    let backend = [&target[..], &["-p", "gradwire-tests", "--test", "cpu", "--", "suite::", "vectors::"]].concat();
    step("arithmetic on AArch64", &arithmetic, args)?;
    step("the CPU backend on AArch64", &backend, args)
}

fn step(name: &str, words: &[&str], args: &Args) -> Result<(), String> {
    println!("== {name}: cargo {}", words.join(" "));
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(words).current_dir(root()).env("RUSTDOCFLAGS", "-D warnings");
    if let Some(Processor::Aarch64) = args.emulate {
        // As Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user name them.
        let names = [("LINKER", "aarch64-linux-gnu-gcc"), ("RUNNER", "qemu-aarch64 -L /usr/aarch64-linux-gnu")];
        cargo.envs(names.map(|(name, value)| (format!("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_{name}"), value)));
    }
    if let Some(depth) = &args.depth {
        cargo.env(DEPTH, depth);
    }
    succeed(&mut cargo, &format!("{name} failed"))
}

/// The tests of one codec, one backend, or one codec on one backend.
fn some(args: &Args) -> Result<(), String> {
    let modules = modules(args.codec, args.backend);
    let mut programs: Vec<&str> = modules.iter().map(|module| module.program).collect();
    programs.sort_unstable();
    programs.dedup();
    let mut cargo = cargo();
    cargo.args(programs.iter().flat_map(|program| ["--test", program]));
    let mut environment: Vec<_> = args.depth.iter().map(|depth| (DEPTH, depth.as_str())).collect();
    environment.extend(args.codec.map(|codec| (CODEC, codec.name)));
    jobs::run(cargo, &environment, |test| modules.iter().any(|module| module.has(test)))?;
    println!("`cargo xtask test` without --codec and --backend runs all that must hold before a change lands");
    Ok(())
}

/// Builds tests with the features of the whole workspace: with those of one package, wgpu would be built anew.
fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--release", "--locked", "--workspace"]);
    cargo
}

/// A module of a test program, and which of its tests.
struct Module {
    program: &'static str,
    name: &'static str,
    /// One of these is in a test's name. If there are none, all tests run.
    with: &'static [&'static str],
    /// None of these is in it.
    without: &'static [&'static str],
}

impl Module {
    fn has(&self, test: &Test) -> bool {
        let is_in = |word: &&str| test.name.contains(*word);
        (test.program.as_str(), test.module.as_str()) == (self.program, self.name)
            && (self.with.is_empty() || self.with.iter().any(is_in))
            && !self.without.iter().any(is_in)
    }
}

/// The tests of a codec, a backend, or both: the suite on the backend, and the codec's own modules.
fn modules(codec: Option<Codec>, backend: Option<Backend>) -> Vec<Module> {
    let suites: &[(&str, &str)] = match backend {
        Some(Backend::Cpu) => &[("cpu", "suite")],
        Some(Backend::Cuda) => &[("gpu", "ptx"), ("gpu", "cuda")],
        Some(Backend::Wgpu) => &[("wgpu", "suite")],
        _ => &[("cpu", "suite"), ("gpu", "ptx"), ("gpu", "cuda"), ("wgpu", "suite")],
    };
    // A module with tests of several backends has the backend in a test's name.
    let (with, without): (&[&str], &[&str]) = match backend {
        Some(Backend::Cpu) => (&["cpu"], &["ptx", "gpu"]),
        Some(Backend::Cuda) => (&["ptx", "cuda"], &[]),
        Some(Backend::Wgpu) => (&["gpu"], &["ptx"]),
        _ => (&[], &[]),
    };
    let asked = CODECS.iter().filter(|of| codec.is_none_or(|asked| asked.name == of.name));
    let own = asked.flat_map(|codec| codec.own);
    let suites = suites.iter().map(|&(program, name)| Module { program, name, with: &[], without: &[] });
    suites.chain(own.map(|&(program, name)| Module { program, name, with, without })).collect()
}

#[cfg(test)]
mod tests {
    use gradwire_tools::checkout::root;

    use super::{CODECS, jobs, modules};

    /// A module that was renamed would run no test, and nothing would report it.
    #[test]
    fn the_modules_that_are_named_exist() {
        let jobs = jobs::LONGEST.iter().filter_map(|job| job.split_once(' '));
        let own = CODECS.iter().flat_map(|codec| codec.own).copied();
        let suites = modules(None, None).into_iter().map(|module| (module.program, module.name));
        for (program, module) in jobs.chain(own).chain(suites).chain(crate::sanitize::MODULES) {
            let package = if program == "tools" { "tools/bench" } else { "tests" };
            let at = root().join(package).join("tests").join(program).join(module);
            assert!(at.with_extension("rs").is_file() || at.join("mod.rs").is_file(), "{program} {module}");
        }
    }
}
