//! `cargo xtask test`: everything that must hold before a change lands, and which backends it ran on.

pub(crate) mod jobs;
mod programs;

use std::process::Command;

use gradwire::{BackendKind, Device};
use gradwire_tests::require::Required;
use gradwire_tests::{Depth, suite};

use crate::place::root;
use crate::ptx::turn;
use crate::verify::parse_kind;

pub(crate) use programs::Test;

/// Formatting, lints, all tests and documentation; or, for the inner loop, the tests of one codec or one backend alone.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How much of every sweep: quick, default or full. Without it, what GRADWIRE_DEPTH says, or default.
    #[arg(long, value_parser = depth)]
    depth: Option<&'static str>,
    /// Only the tests of this codec, such as qsgd, topk or powersgd. Nothing is formatted, linted or documented.
    #[arg(long, value_parser = codec)]
    codec: Option<Codec>,
    /// Only the tests of this backend: cpu, cuda (with the interpreter of PTX) or wgpu. Nothing is formatted, linted or
    /// documented.
    #[arg(long, value_parser = parse_kind)]
    backend: Option<BackendKind>,
    /// Only the tests of the CPU backend, built for another processor and run under qemu-user.
    #[arg(long, value_enum, conflicts_with_all = ["codec", "backend"])]
    emulate: Option<Processor>,
}

/// A processor that is emulated.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Processor {
    Aarch64,
}

/// A codec, and where it is tested.
#[derive(Clone, Copy, Debug)]
struct Codec {
    name: &'static str,
    /// The modules that test it alone, each with its program. Quantizers are tested by the suite, whose checks name
    /// their codec, and have none.
    own: &'static [(&'static str, &'static str)],
}

/// Every codec of the suite.
fn codecs() -> impl Iterator<Item = Codec> {
    suite::codecs().map(|(name, _)| {
        let own: &[(&str, &str)] = match name {
            "topk" => &[
                ("cpu", "topk"),
                ("cpu", "thresholds"),
                ("cpu", "selection"),
                ("gpu", "topk_gpu"),
                ("gpu", "settle"),
                ("gpu", "late"),
            ],
            "powersgd" => &[
                ("cpu", "powersgd"),
                ("cpu", "powersgd_state"),
                ("cpu", "powersgd_faults"),
                ("gpu", "powersgd_gpu"),
                ("gpu", "resident"),
            ],
            _ => &[],
        };
        Codec { name, own }
    })
}

fn depth(name: &str) -> Result<&'static str, String> {
    Depth::parse(name)?;
    let known = Depth::NAMES.into_iter().find(|(known, _)| *known == name);
    known.map(|(name, _)| name).ok_or_else(|| format!("`{name}` is no depth"))
}

fn codec(name: &str) -> Result<Codec, String> {
    let names = || codecs().map(|codec| codec.name).collect::<Vec<_>>().join(", ");
    codecs().find(|codec| codec.name == name).ok_or_else(|| format!("`{name}` is none of {}", names()))
}

/// Runs the steps in order, and stops at the first that fails.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    // Read before anything is built, so that a slip of the pen is not found at the end.
    let required = Required::from_environment().map_err(|unmet| unmet.to_string())?;
    if args.depth.is_none() {
        Depth::from_environment()?;
    }
    if let Some(Processor::Aarch64) = args.emulate {
        return emulated(args);
    }
    if args.codec.is_some() || args.backend.is_some() {
        return some(args);
    }
    // The tests share the profile of this binary, so that nothing is built twice.
    step("formatting", &["fmt", "--all", "--check"], args)?;
    step("lints", &["clippy", "--release", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], args)?;
    println!("== unit, property and conformance tests");
    let mut environment: Vec<_> = args.depth.map(|depth| (Depth::VARIABLE, depth)).into_iter().collect();
    let turn = turn(&root());
    println!("{}={turn}: which part of sweeps has its turn", Depth::TURN);
    environment.push((Depth::TURN, &turn));
    let mut all = cargo();
    // Without the examples: lints check them, and the commands that run them build them.
    all.arg("--tests");
    jobs::run(all, &environment, |_| true)?;
    step("documentation tests", &["test", "--release", "--workspace", "--locked", "--doc"], args)?;
    step("documentation", &["doc", "--release", "--workspace", "--no-deps", "--locked"], args)?;
    backends(&required)
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
    if let Some(depth) = args.depth {
        cargo.env(Depth::VARIABLE, depth);
    }
    let status = cargo.status().map_err(|e| format!("cargo could not be started: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name} failed ({status}); the output above says where")) }
}

/// The tests of one codec, one backend, or one codec on one backend.
fn some(args: &Args) -> Result<(), String> {
    let modules = modules(args.codec, args.backend);
    let mut programs: Vec<&str> = modules.iter().map(|module| module.program).collect();
    programs.sort_unstable();
    programs.dedup();
    let mut cargo = cargo();
    cargo.args(programs.iter().flat_map(|program| ["--test", program]));
    let mut environment: Vec<_> = args.depth.map(|depth| (Depth::VARIABLE, depth)).into_iter().collect();
    environment.extend(args.codec.map(|codec| (suite::CODEC, codec.name)));
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
fn modules(codec: Option<Codec>, backend: Option<BackendKind>) -> Vec<Module> {
    let suites: &[(&str, &str)] = match backend {
        Some(BackendKind::Cpu) => &[("cpu", "suite")],
        Some(BackendKind::Cuda) => &[("gpu", "ptx"), ("gpu", "cuda")],
        Some(BackendKind::Wgpu) => &[("wgpu", "suite")],
        _ => &[("cpu", "suite"), ("gpu", "ptx"), ("gpu", "cuda"), ("wgpu", "suite")],
    };
    // A module with tests of several backends has the backend in a test's name.
    let (with, without): (&[&str], &[&str]) = match backend {
        Some(BackendKind::Cpu) => (&["cpu"], &["ptx", "gpu"]),
        Some(BackendKind::Cuda) => (&["ptx", "cuda"], &[]),
        Some(BackendKind::Wgpu) => (&["gpu"], &["ptx"]),
        _ => (&[], &[]),
    };
    let asked = codecs().filter(|of| codec.is_none_or(|asked| asked.name == of.name));
    let own = asked.flat_map(|codec| codec.own);
    let suites = suites.iter().map(|&(program, name)| Module { program, name, with: &[], without: &[] });
    suites.chain(own.map(|&(program, name)| Module { program, name, with, without })).collect()
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

#[cfg(test)]
mod tests {
    use super::{Codec, codecs, jobs, modules};
    use crate::place::root;

    /// A module that was renamed would run no test, and nothing would report it.
    #[test]
    fn the_modules_that_are_named_exist() {
        let jobs = jobs::LONGEST.iter().filter_map(|job| job.split_once(' '));
        let own = codecs().flat_map(|Codec { own, .. }| own).copied();
        let suites = modules(None, None).into_iter().map(|module| (module.program, module.name));
        for (program, module) in jobs.chain(own).chain(suites).chain(crate::sanitize::MODULES) {
            let package = if program == "tools" { "xtask" } else { "tests" };
            let at = root().join(package).join("tests").join(program).join(module);
            assert!(at.with_extension("rs").is_file() || at.join("mod.rs").is_file(), "{program} {module}");
        }
    }
}
