//! `cargo xtask faults`: each call of the driver fails in turn, for every operation.
//!
//! CUDA's driver is the stand-in, wgpu's is lavapipe behind a Vulkan layer, and both count and fail calls. On the CPU
//! the allocator does, for what can be as long as a gradient. What is done must then be right to the bit, or a typed
//! error that has changed nothing; never a panic, a hang or a wrong answer.
//! Each operation has a process of its own, which is started again after a fault that ends it.

mod allocator;
mod control;
mod exchanges;
mod fixtures;
mod operations;
mod stage;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::Parser;
use gradwire::BackendKind;
use gradwire_tests::require::parse_kind;
use gradwire_tools::checkout::root;
use gradwire_tools::child::{Heard, listen};
use gradwire_tools::ending::ending;
use gradwire_tools::{stand_in::stand_in, step::step};

use self::operations::{ALL, Operation};

/// The compute capability of the stand-in.
const CAPABILITY: &str = "8.6";
/// How long a process may take, which sees to its faults' own time itself.
const PATIENCE: Duration = Duration::from_secs(3600);
/// How often a process is started again after faults that end it.
const RESTARTS: usize = 100;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

/// What is made to fail.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which backend: cpu, cuda or wgpu. Without it, all.
    #[arg(long, value_parser = parse_kind)]
    backend: Option<BackendKind>,
    /// Make one fault in so many.
    #[arg(long, default_value_t = 1, value_parser = at_least_one)]
    every: usize,
    /// Only the operations with this in their name.
    #[arg(long, default_value = "")]
    operation: String,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|every| *every > 0).ok_or_else(|| format!("`{text}` is no number from 1 on"))
}

/// Builds both libraries, and runs every operation under faults.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    if !cfg!(target_os = "linux") && args.backend != Some(BackendKind::Cpu) {
        return Err(
            "the stand-in for libcuda and the Vulkan layer are shared objects of Linux's; run this there, or ask for \
             --backend cpu"
                .to_owned(),
        );
    }
    let start = Instant::now();
    let (mut faults, mut wrong) = (0, 0);
    for kind in [BackendKind::Cpu, BackendKind::Cuda, BackendKind::Wgpu] {
        if args.backend.is_some_and(|asked| asked != kind) {
            continue;
        }
        let driver = Driver::of(kind)?;
        println!("\n{kind}: {}", driver.what);
        println!("{:26} {:>7} {:>7} {:>7} {:>7} {:>7}", "operation", "calls", "faults", "right", "error", "WRONG");
        let fitting = ALL.iter().filter(|o| o.only.is_none_or(|only| only == kind));
        for operation in fitting.filter(|operation| operation.name.contains(&args.operation)) {
            let Tally { calls, right, typed, problems } = of_operation(&driver, kind, operation, args.every)?;
            let bad: usize = problems.values().map(Vec::len).sum();
            let all = right + typed + bad;
            println!("{:26} {calls:>7} {all:>7} {right:>7} {typed:>7} {bad:>7}", operation.name);
            for (problem, at) in problems {
                println!("    {}: {problem}", at.join(", "));
            }
            faults += all;
            wrong += bad;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("\n{faults} faults, {wrong} with a wrong outcome, in {seconds:.0} s");
    match (faults, wrong) {
        (0, _) => Err(format!("no operation's name has `{}` in it", args.operation)),
        (_, 0) => Ok(()),
        _ => Err("an operation neither was right nor failed as it should".to_owned()),
    }
}

/// What came of an operation's faults.
#[derive(Default)]
struct Tally {
    calls: u64,
    right: usize,
    typed: usize,
    /// What went wrong, and at which faults.
    problems: BTreeMap<String, Vec<String>>,
}

/// Runs an operation's faults, in as many processes as it takes.
fn of_operation(driver: &Driver, kind: BackendKind, operation: &Operation, every: usize) -> Result<Tally, String> {
    let (mut tally, mut from) = (Tally::default(), 0);
    for _ in 0..RESTARTS {
        let mut command = driver.command()?;
        command.args(["faults-stage", "--backend", kind.name(), "--operation", operation.name]);
        command.args(["--from", &from.to_string(), "--every", &every.to_string()]);
        if let Some(library) = &driver.library {
            command.arg("--library").arg(library);
        }
        let (mut begun, mut over, mut hung) = (None, false, false);
        let ended = listen(&mut command, Instant::now() + PATIENCE, |heard| {
            let Heard::Line(line) = heard else { return };
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "calls" => tally.calls = rest.parse().unwrap_or(0),
                "begin" => {
                    begun = rest.split_once(' ').and_then(|(i, what)| Some((i.parse::<usize>().ok()?, what.to_owned())))
                }
                "done" => {
                    let (_, outcome) = rest.split_once(' ').unwrap_or_default();
                    let (verdict, hit) = outcome.split_once('\t').unwrap_or((outcome, ""));
                    match (verdict, begun.take()) {
                        ("right", _) => tally.right += 1,
                        ("typed", _) => tally.typed += 1,
                        (problem, at) => {
                            let at = at.map_or_else(String::new, |(_, at)| format!("{at} ({hit})"));
                            tally.problems.entry(problem.to_owned()).or_default().push(at);
                        }
                    }
                }
                "hang" => hung = true,
                "end" => over = true,
                _ => {}
            }
        })?;
        if over {
            return Ok(tally);
        }
        let Some((index, at)) = begun else {
            return Err(format!("{}: it ended before its first fault: {}", operation.name, ended.words));
        };
        let problem = match ended.code {
            _ if hung => "a call did not come back".to_owned(),
            Some(code) => format!("the process ended with code {code}"),
            None => "the process ended with a signal".to_owned(),
        };
        tally.problems.entry(problem).or_default().push(at);
        from = index + every;
    }
    tally.problems.entry("the rest was left out".to_owned()).or_default().push(format!("from {from} on"));
    Ok(tally)
}

/// A driver whose calls can fail, or what stands for one.
struct Driver {
    what: &'static str,
    /// None if this program's allocator refuses.
    library: Option<PathBuf>,
    environment: Vec<(&'static str, PathBuf)>,
}

impl Driver {
    fn of(kind: BackendKind) -> Result<Self, String> {
        if kind == BackendKind::Cuda {
            let folder = stand_in()?.join("lib64");
            let library = folder.join("libcuda.so.1");
            let environment = vec![("LD_LIBRARY_PATH", folder), ("GRADWIRE_STAND_IN", PathBuf::from(CAPABILITY))];
            return Ok(Self { what: "the stand-in for libcuda", library: Some(library), environment });
        }
        if kind == BackendKind::Cpu {
            return Ok(Self { what: "the allocator", library: None, environment: Vec::new() });
        }
        let (library, folder) = layer()?;
        let mut environment =
            vec![("VK_ADD_LAYER_PATH", folder), ("VK_INSTANCE_LAYERS", PathBuf::from("VK_LAYER_GRADWIRE_faults"))];
        if std::env::var_os("VK_DRIVER_FILES").is_none() {
            environment.push(("VK_DRIVER_FILES", lavapipe()?));
        }
        Ok(Self { what: "a Vulkan driver behind the layer", library: Some(library), environment })
    }

    fn command(&self) -> Result<Command, String> {
        let own = std::env::current_exe().map_err(|e| format!("this program cannot be found: {e}"))?;
        let mut command = Command::new(own);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }
}

/// Builds the layer, and writes its manifest beside it; the library, and the manifest's folder.
fn layer() -> Result<(PathBuf, PathBuf), String> {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--release", "--locked", "-p", "gradwire-vulkan-layer"]).current_dir(root());
    step("the Vulkan layer", build)?;
    let library = root().join("target/release/libgradwire_vulkan_layer.so");
    let library = library.canonicalize().map_err(|e| format!("{}: {e}", library.display()))?;
    let folder = root().join("target/vulkan-layer");
    let manifest = serde_json::json!({
        "file_format_version": "1.2.0",
        "layer": {
            "name": "VK_LAYER_GRADWIRE_faults",
            "type": "GLOBAL",
            "library_path": library,
            "api_version": "1.3.0",
            "implementation_version": "1",
            "description": "Counts calls, and fails one of them",
        },
    });
    let path = folder.join("faults.json");
    std::fs::create_dir_all(&folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
    std::fs::write(&path, manifest.to_string()).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    Ok((library, folder))
}

/// The manifest of Mesa's driver in software: what fails must not be a GPU that others work on.
fn lavapipe() -> Result<PathBuf, String> {
    let folder = Path::new("/usr/share/vulkan/icd.d");
    let found = std::fs::read_dir(folder).ok().into_iter().flatten().flatten().map(|entry| entry.path());
    let is_it = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("lvp_icd"));
    found.into_iter().find(is_it).ok_or_else(|| {
        format!("no lvp_icd*.json is in {}; install mesa-vulkan-drivers, or set VK_DRIVER_FILES", folder.display())
    })
}

#[derive(Parser)]
#[command(name = "gradwire-fault-sweep", bin_name = "cargo xtask")]
enum Cli {
    /// Make each call of the driver fail in turn, and see that every operation is right or an error that changed
    /// nothing.
    Faults(Args),
    /// A part of that, in a process of its own.
    #[command(hide = true)]
    FaultsStage(stage::Args),
}

fn main() -> ExitCode {
    ending(match Cli::parse() {
        Cli::Faults(args) => run(&args),
        Cli::FaultsStage(args) => stage::run(&args),
    })
}
