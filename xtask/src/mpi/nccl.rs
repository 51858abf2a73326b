//! The training and the benchmark over NCCL, on stand-ins for libnccl and libcuda: its ranks are threads of one
//! process, or the one process that an MPI launcher starts, since the stand-in connects no others.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gradwire_tools::checkout::root;
use gradwire_tools::child::lines_of;
use gradwire_tools::stand_in::stand_ins;

use super::{LIMIT, Mpi, PLAN, hashes_of, launch};

/// What a training is given, and how its gradients are exchanged where the GPU does it.
const RECIPES: [(&str, &str); 4] = [
    ("qsgd:bits=4,bucket=64+ef", "queued on the GPU's stream"),
    ("topk:0.01+momentum=0.9", "queued on the GPU's stream"),
    ("qsgd:bits=4,bucket=64+ef+finite", "payloads through the host, since finite"),
    ("topk:0.01+ef+gtopk", "in the host's memory, since gtopk"),
];
const STEPS: &str = "12";

/// Trains with 2 and 3 ranks: the parameters are those of threads, to the bit.
pub(super) fn run(libraries: &[Mpi], train: &Path, bench: &Path) -> Result<(), String> {
    let folder = stand_ins()?.join("lib64");
    for ranks in ["2", "3"] {
        let threads = hashes(train, &folder, &["--ranks", ranks])?;
        let nccl = hashes(train, &folder, &["--ranks", ranks, "--engine", "nccl"])?;
        agree("the host's gradients over NCCL", ranks, &nccl, &threads)?;
    }
    on_the_gpu(train, &folder)?;
    one_gpu_each(train, &folder)?;
    for mpi in libraries {
        under(mpi, train, &folder)?;
    }
    measures(bench, &folder)
}

/// The example on the stand-ins, with a short training and a chart in the folder of builds.
fn example(train: &Path, folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(train);
    command.arg("--plot").arg(root().join("target/mpi/nccl.svg")).args(arguments);
    if !arguments.contains(&"--steps") {
        command.args(["--steps", STEPS]);
    }
    command.env("LD_LIBRARY_PATH", folder);
    command
}

/// What a training with each recipe prints.
fn lines(train: &Path, folder: &Path, arguments: &[&str]) -> Result<Vec<String>, String> {
    let mut command = example(train, folder, arguments);
    if !arguments.iter().any(|argument| ["--plan", "--codec"].contains(argument)) {
        command.arg("--codec").args(RECIPES.map(|(recipe, _)| recipe));
    }
    lines_of(&mut command, Duration::from_secs(LIMIT))
}

fn hashes(train: &Path, folder: &Path, arguments: &[&str]) -> Result<Vec<String>, String> {
    Ok(hashes_of(&lines(train, folder, arguments)?))
}

fn agree(what: &str, ranks: &str, found: &[String], expected: &[String]) -> Result<(), String> {
    if found != expected || found.is_empty() {
        return Err(format!("{what}, {ranks} ranks: parameters {found:?}, and of threads {expected:?}"));
    }
    println!("{what}, {ranks} ranks: the parameters of threads, {}", found.join(", "));
    Ok(())
}

/// Gradients in the GPU's memory. NCCL adds in an order of its own what goes uncompressed, so that with three ranks
/// only a plan that compresses every tensor has the bits of threads.
fn on_the_gpu(train: &Path, folder: &Path) -> Result<(), String> {
    let on = |ranks| ["--ranks", ranks, "--engine", "nccl", "--device", "cuda"];
    let said = lines(train, folder, &on("2"))?;
    for (recipe, how) in RECIPES {
        if !said.iter().any(|line| line.starts_with(&format!("{recipe}: ")) && line.contains(how)) {
            return Err(format!("{recipe} is not said to be exchanged {how}: {said:?}"));
        }
    }
    agree("gradients on the GPU", "2", &hashes_of(&said), &hashes(train, folder, &["--ranks", "2"])?)?;
    let plan = root().join("target/mpi/nccl.json");
    let text = PLAN.replace("\"none\"", "\"qsgd:bits=4,bucket=64+ef\"");
    std::fs::write(&plan, text).map_err(|error| format!("cannot write {}: {error}", plan.display()))?;
    let plan = plan.to_string_lossy();
    for ranks in ["2", "3"] {
        let threads = hashes(train, folder, &["--ranks", ranks, "--plan", &plan])?;
        let queued = hashes(train, folder, &[&on(ranks)[..], &["--plan", &plan]].concat())?;
        agree("the messages of a plan on the GPU", ranks, &queued, &threads)?;
    }
    let file = root().join("target/mpi/nccl.state");
    let file = file.to_string_lossy();
    for (recipe, _) in RECIPES {
        lines(train, folder, &[&on("2")[..], &["--codec", recipe, "--save", &file]].concat())?;
        let of = ["--codec", recipe, "--steps", "20"];
        let resumed = hashes(train, folder, &[&on("2")[..], &of, &["--resume", &file]].concat())?;
        let threads = hashes(train, folder, &[&of[..], &["--ranks", "2"]].concat())?;
        agree(&format!("{recipe} on the GPU, left and taken up"), "2", &resumed, &threads)?;
    }
    Ok(())
}

/// NCCL takes no GPU for two ranks, and the error says what to do.
fn one_gpu_each(train: &Path, folder: &Path) -> Result<(), String> {
    let mut command = example(train, folder, &["--ranks", "2", "--engine", "nccl", "--codec", "none"]);
    command.env("GRADWIRE_NCCL_ONE_EACH", "1");
    match lines_of(&mut command, Duration::from_secs(LIMIT)) {
        Err(words) if words.contains("as many ranks on a machine as it has GPUs") => {
            println!("two ranks on one GPU, where NCCL refuses that: an error that says so");
            Ok(())
        }
        other => Err(format!("two ranks on one GPU give {other:?}")),
    }
}

/// NCCL's id goes over MPI.
fn under(mpi: &Mpi, train: &Path, folder: &Path) -> Result<(), String> {
    let plot = root().join("target/mpi/nccl.svg");
    let (program, plot) = (train.to_string_lossy(), plot.to_string_lossy());
    let path = format!("LD_LIBRARY_PATH={}", folder.display());
    let (recipe, _) = RECIPES[0];
    let arguments = ["--codec", recipe, "--steps", STEPS, "--plot", &plot];
    let own = ["env", &path, &program, "--engine", "nccl", "--over", "mpi"];
    let (said, ended) = launch(mpi, false, 1, &[&own[..], &arguments].concat())?;
    if !ended.well() {
        return Err(format!("{}: a training over NCCL: {}", mpi.name, ended.words));
    }
    let mut threads = Command::new(train);
    threads.args(["--ranks", "1"]).args(arguments);
    let threads = hashes_of(&lines_of(&mut threads, Duration::from_secs(LIMIT))?);
    agree(&format!("{}, NCCL's id over it", mpi.name), "1", &hashes_of(&said), &threads)
}

/// The benchmark of collectives runs over NCCL.
fn measures(bench: &Path, folder: &Path) -> Result<(), String> {
    let mut command = Command::new(bench);
    command.args(["bench", "--collective", "--engine", "nccl", "--ranks", "3", "--side", "128"]);
    command.env("LD_LIBRARY_PATH", folder);
    let said = lines_of(&mut command, Duration::from_secs(LIMIT))?;
    let rows = said.iter().filter(|line| ["| all-", "| two", "| tree"].iter().any(|start| line.starts_with(start)));
    if rows.count() != 6 {
        return Err(format!("bench --collective over NCCL prints {said:?}"));
    }
    println!("NCCL, bench --collective: all six exchanges");
    Ok(())
}
