//! `cargo xtask test`: everything that must hold before a change lands, and which backends it ran on.

mod programs;

use std::process::Command;

use gradwire::{BackendKind, Device};
use gradwire_tests::require::Required;
use gradwire_tests::{Depth, suite};

use crate::place::root;
use crate::verify::parse_kind;

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
    /// The test programs that are of it alone. Quantizers are tested by the suite, whose checks name their codec, and
    /// have none.
    own: &'static [&'static str],
}

/// Every codec of the suite.
fn codecs() -> impl Iterator<Item = Codec> {
    suite::codecs().map(|(name, _)| {
        let own: &[&str] = match name {
            "topk" => &["topk", "topk_gpu", "thresholds", "settle", "selection", "late"],
            "powersgd" => &["powersgd", "powersgd_gpu", "powersgd_state", "powersgd_faults", "resident"],
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
    let depth = args.depth.map(|depth| (Depth::VARIABLE, depth));
    programs::run(depth.as_slice())?;
    step("documentation tests", &["test", "--release", "--workspace", "--locked", "--doc"], args)?;
    step("documentation", &["doc", "--release", "--workspace", "--no-deps", "--locked"], args)?;
    backends(&required)
}

/// The CPU's arithmetic and loops on AArch64, so that NEON gives the bytes that SSE2 and AVX do. How fast it is does
/// not show.
fn emulated(args: &Args) -> Result<(), String> {
    let target = ["test", "--release", "--locked", "--target", "aarch64-unknown-linux-gnu"];
    let arithmetic = [&target[..], &["-p", "gradwire-kernels", "--lib"]].concat();
    let backend = [&target[..], &["-p", "gradwire-tests", "--test", "cpu", "--test", "vectors"]].concat();
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
    if let Some(codec) = args.codec {
        cargo.env(suite::CODEC, codec.name);
    }
    let status = cargo.status().map_err(|e| format!("cargo could not be started: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name} failed ({status}); the output above says where")) }
}

/// The tests of one codec, one backend, or one codec on one backend.
fn some(args: &Args) -> Result<(), String> {
    let mut done = 0;
    for run in runs(args.codec, args.backend) {
        // The workspace's features, as `cargo xtask test` alone builds with: with those of one package, wgpu would be
        // built anew.
        let mut words = vec!["test", "--release", "--locked", "--workspace"];
        words.extend(run.programs.iter().flat_map(|program| ["--test", program]));
        if !run.words.is_empty() {
            words.push("--");
            words.extend(run.words);
        }
        step(run.what, &words, args)?;
        done += 1;
    }
    println!(
        "{done} runs passed; `cargo xtask test` without --codec and --backend runs what must hold before a change lands"
    );
    Ok(())
}

/// Programs, and which of their tests.
struct Run {
    what: &'static str,
    programs: Vec<&'static str>,
    words: &'static [&'static str],
}

/// What is run for a codec, a backend, or both.
fn runs(codec: Option<Codec>, backend: Option<BackendKind>) -> Vec<Run> {
    let suites: &[&str] = match backend {
        Some(BackendKind::Cpu) => &["cpu"],
        Some(BackendKind::Cuda) => &["ptx", "cuda"],
        Some(BackendKind::Wgpu) => &["wgpu"],
        _ => &["cpu", "ptx", "cuda", "wgpu"],
    };
    let mut runs = vec![Run { what: "the suite", programs: suites.to_vec(), words: &[] }];
    // What the name of a test of the backend has in it, where a program has tests of several.
    let words: &[&str] = match backend {
        Some(BackendKind::Cpu) => &["cpu", "--skip", "ptx", "--skip", "gpu"],
        Some(BackendKind::Cuda) => &["ptx", "cuda"],
        Some(BackendKind::Wgpu) => &["gpu", "--skip", "ptx"],
        _ => &[],
    };
    let asked = codecs().filter(|of| codec.is_none_or(|asked| asked.name == of.name));
    let own: Vec<&str> = asked.flat_map(|codec| codec.own).copied().collect();
    if !own.is_empty() {
        runs.push(Run { what: "the codec's own tests", programs: own, words });
    }
    runs
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
