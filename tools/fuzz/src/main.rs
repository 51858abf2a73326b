//! `cargo xtask fuzz`: the fuzz targets, from seeds that are built anew; and the readers under Miri.

use std::fs;
use std::process::{Command, ExitCode};

use clap::Parser;
use gradwire::Recipe;
use gradwire_tests::cases::Random;
use gradwire_tests::hostile::{TARGETS, seeds};
use gradwire_tools::checkout::root;
use gradwire_tools::ending::ending;
use gradwire_tools::step::succeed;

/// What makes a target's seeds.
type Seeds = fn() -> Vec<Vec<u8>>;

/// The targets whose bodies are in `fuzz/src`, each with its seeds.
const MORE: [(&str, Seeds); 3] = [("messages", || edits(2)), ("states", || edits(4)), ("recipes", recipes)];

/// The one target that libFuzzer's instruments are built for.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// What cargo-fuzz passes to the compiler: libFuzzer's counters, and AddressSanitizer.
const INSTRUMENTS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-sanitizer-coverage-stack-depth \
    -Cllvm-args=-simplifycfg-branch-fold-threshold=0 --cfg fuzzing -Cdebug-assertions -Zsanitizer=address";

/// Seconds of each target where nothing else is asked for.
const SECONDS: u32 = 30;
/// Seconds after which an input counts as one that hangs. They take milliseconds.
const TIMEOUT: u32 = 30;

/// What to fuzz, and for how long.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The targets: wire, decode, sparse, low_rank, messages, states, recipes. Without any, all of them, one after
    /// another.
    targets: Vec<String>,
    /// Seconds of each target: 30 without this.
    #[arg(long, conflicts_with = "total")]
    seconds: Option<u32>,
    /// Seconds of all targets together, in equal shares. Building them is not counted.
    #[arg(long)]
    total: Option<u32>,
    /// No fuzzing: the readers on small inputs under Miri, which finds undefined behaviour.
    #[arg(long, conflicts_with_all = ["targets", "seconds", "total"])]
    miri: bool,
}

/// Writes the seeds beside what earlier runs found, builds the targets, and runs them.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    if args.miri {
        return under_miri();
    }
    let known: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).chain(MORE.map(|(name, _)| name)).collect();
    if let Some(other) = args.targets.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("`{other}` is no fuzz target; there are {}", known.join(", ")));
    }
    let asked = |name: &&str| args.targets.is_empty() || args.targets.iter().any(|target| target == name);
    let chosen: Vec<&str> = known.into_iter().filter(asked).collect();
    let seconds = share(args, chosen.len() as u32)?;
    for name in &chosen {
        write_seeds(name)?;
    }
    build()?;
    let fuzz = root().join("fuzz");
    for name in chosen {
        println!("== {name}, {seconds} s");
        let found = fuzz.join("artifacts").join(name);
        fs::create_dir_all(&found).map_err(|e| format!("{} could not be made: {e}", found.display()))?;
        let mut target = Command::new(root().join("target/fuzz").join(TARGET).join("release").join(name));
        target.arg(fuzz.join("corpus").join(name)).arg(format!("-artifact_prefix={}/", found.display()));
        target.args(["-max_len=4096", "-print_final_stats=1"]);
        target.args([format!("-timeout={TIMEOUT}"), format!("-max_total_time={seconds}")]);
        // What libFuzzer spends beside the target: both took more time than these targets themselves.
        target.args(["-entropic=0", "-print_funcs=0"]);
        succeed(
            &mut target,
            &format!("the target {name} found something, which is in {}, or could not run", found.display()),
        )?;
    }
    Ok(())
}

/// Builds all targets with libFuzzer's instruments.
fn build() -> Result<(), String> {
    let mut cargo = gradwire_tools::nightly::pinned_cargo()?;
    cargo.args(["build", "--release", "--locked", "--bins", "--target", TARGET, "--target-dir", "../target/fuzz"]);
    // Most of the time is the compiler's.
    for (setting, value) in [("OPT_LEVEL", "1"), ("CODEGEN_UNITS", "16"), ("LTO", "off")] {
        cargo.env(format!("CARGO_PROFILE_RELEASE_{setting}"), value);
    }
    cargo.env("RUSTFLAGS", INSTRUMENTS).current_dir(root().join("fuzz"));
    succeed(&mut cargo, "the fuzz targets could not be built")
}

/// Runs the test of the readers under Miri.
fn under_miri() -> Result<(), String> {
    let mut cargo = gradwire_tools::nightly::pinned_cargo()?;
    cargo.args(["miri", "test", "--locked", "--test", "readers", "--target-dir", "../target/miri"]);
    // The rules for references that crossbeam keeps, which the pool of threads is made of. The pool lives to the end.
    cargo.env("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-ignore-leaks -Zmiri-tree-borrows");
    cargo.env("RAYON_NUM_THREADS", "1").current_dir(root().join("fuzz"));
    succeed(&mut cargo, "a reader has undefined behaviour, or Miri could not run (`.ci/install nightly` installs it)")
}

/// The seconds of each of so many targets. libFuzzer takes 0 for no end.
fn share(args: &Args, targets: u32) -> Result<u32, String> {
    match (args.seconds, args.total) {
        (Some(0), _) => Err("--seconds is 0; give each target a second at least".to_owned()),
        (_, Some(total)) if total < targets => Err(format!(
            "--total is {total}, and there are {targets} targets; give each a second at least, or name fewer targets"
        )),
        (_, Some(total)) => Ok(total / targets),
        (seconds, None) => Ok(seconds.unwrap_or(SECONDS)),
    }
}

/// Writes the seeds of a target into its corpus.
fn write_seeds(name: &str) -> Result<(), String> {
    let corpus = root().join("fuzz/corpus").join(name);
    let failed = |e| format!("the seeds could not be written to {}: {e}", corpus.display());
    fs::create_dir_all(&corpus).map_err(failed)?;
    let more = MORE.iter().find(|(other, _)| *other == name);
    for (index, seed) in more.map_or_else(|| seeds::of(name), |(_, seeds)| seeds()).iter().enumerate() {
        fs::write(corpus.join(format!("seed-{index:03}")), seed).map_err(failed)?;
    }
    Ok(())
}

/// Bytes that choose a model, and so many that choose what else there is, alone and with a few edits.
fn edits(choosing: usize) -> Vec<Vec<u8>> {
    let mut random = Random(7);
    let mut seeds = Vec::new();
    for model in 0..32 {
        for length in [0, 16, 64] {
            let mut seed = vec![model];
            seed.extend((1..choosing + length).map(|_| random.bits() as u8));
            seeds.push(seed);
        }
    }
    seeds
}

/// A text for each stage, and those of the published methods.
fn recipes() -> Vec<Vec<u8>> {
    const TEXTS: [&str; 34] = [
        "none+momentum=0.5+nesterov",
        "qsgd:bits=4,bucket=64,l2,contractive+elias+ef",
        "qsgd:levels=7,bucket=whole+delta+diana:alpha=0.5",
        "qsgd:bits=2+base3+noef",
        "uniform:bits=4,bucket=32+momentum=0.9",
        "onebit+ef:beta=0.5,gamma=2",
        "sign:unit+vote",
        "signum:momentum=0.5",
        "ternary:stretch=1.5,bucket=64+base3",
        "ternary:clip=2.5+elias",
        "qsgd:bits=3,bucket=whole,l2,contractive+sparse+ef",
        "float:e4m3,scaled,nearest+ef",
        "float:int16,bound=0.001+delta",
        "natural:bits=8+ef",
        "tree+ef",
        "quantile:levels=16,bucket=256+ef",
        "rotate:common+drive:bucket=512",
        "eden:bits=3,bucket=256",
        "rotate:block=64,own+qsgd:bits=4,bucket=64",
        "topk:0.01+f16+ef",
        "topk:k=5+bf16",
        "topk:k=2,block=64+onebit:bucket=whole",
        "topk:above=0.02+ef21",
        "topk:0.02,estimate=gaussian+qsgd:bits=4,bucket=32+ef",
        "topk:0.05,estimate=sidco,warmup=3+momentum=0.5+unmasked",
        "topk:0.3,persign+clip=3+finite",
        "dgc:ratio=0.02,warmup=3,nesterov,unmasked,clip=3",
        "dct:block=8,tiles+topk:k=6,block=64,clamped+ef:beta=0.75",
        "powersgd:rank=2,iterations=2+sign:bucket=whole",
        "powersgd:rank=1,onesided,mincompression=2+float:e4m3,scaled+momentum=0.5",
        "randomk:0.6,unbiased",
        "topk:segments=2of240/1of150+ef",
        "topk:0.02+ef+gtopk",
        "qsgd:bits=4,bucket=64+elias+noef+momentum=0.5+twophase:from=3",
    ];
    let methods = Recipe::methods().iter().map(|method| format!("grace:{}", method.name));
    TEXTS.map(String::from).into_iter().chain(methods).map(String::into_bytes).collect()
}

#[derive(Parser)]
#[command(name = "gradwire-fuzzing", bin_name = "cargo xtask")]
enum Cli {
    /// Run the fuzz targets over payloads, messages, states and recipes; with --miri the readers under Miri.
    Fuzz(Args),
}

fn main() -> ExitCode {
    ending(match Cli::parse() {
        Cli::Fuzz(args) => run(&args),
    })
}
