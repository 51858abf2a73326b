//! `cargo xtask ci`: the stages of continuous integration. A stage that was green for the same inputs is left out.

mod plan;
mod plant;
mod plants;
mod run;
mod stage;
mod stages;
mod stamp;
mod state;
mod table;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use gradwire_tools::checkout::root;
use gradwire_tools::repository::git;

use plan::{Asked, Decision, Does, Standing, decide};
use stage::Stage;
use stages::STAGES;
use stamp::{Found, Stamp};
use state::{State, Tools};
use table::{Outcome, Row};

/// Run what must hold before a change lands.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these stages, whatever is known of them; all where none is named.
    stages: Vec<String>,
    /// All of every stage, as CI=full in the environment asks for too.
    #[arg(long)]
    full: bool,
    /// Print which stages would run and why, and run none.
    #[arg(long)]
    why: bool,
    /// Run the other stages after one that failed.
    #[arg(long)]
    keep_going: bool,
    /// Run no stage: plant faults in a copy of the last commit, and demand that they are found. The names are of faults.
    #[arg(long, conflicts_with_all = ["full", "why", "keep_going"])]
    plant: bool,
}

/// Decides, runs and tells. The exit code says whether all stages passed.
///
/// # Errors
/// If it cannot be decided what runs.
pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    if args.plant {
        return plants::run(&root(), &args.stages).map(|()| ExitCode::SUCCESS);
    }
    let (root, kept) = (root(), stamp::folder()?);
    let full = args.full || std::env::var_os("CI").is_some_and(|value| value == "full");
    let asked = Asked { full, only: &args.stages };
    let mut tools = Tools::new(&root, &kept);
    let mut all = decide(STAGES, asked, |stage| standing(stage, &root, &kept, &mut tools))?;
    all.retain(|(stage, _)| args.stages.is_empty() || args.stages.iter().any(|name| name == stage.name));
    print!("{}", table::decisions(&all));
    if args.why {
        return Ok(ExitCode::SUCCESS);
    }
    // This program holds the texts of shaders and PTX as they are now, and not as they may be when a stage begins.
    let begun: BTreeMap<&str, String> = (all.iter())
        .filter(|(stage, decision)| stage.rotates() && decision.does.runs())
        .map(|(stage, _)| Ok((stage.name, state::hash_of_files(stage, &root)?)))
        .collect::<Result<_, String>>()?;
    let mut rows: Vec<Row> = Vec::new();
    for (stage, decision) in all {
        let row = if !decision.does.runs() {
            Row { name: stage.name, outcome: Outcome::LeftOut, seconds: 0, why: decision.why }
        } else if let Some(failed) = rows.iter().find(|row| row.outcome == Outcome::Failed && !args.keep_going) {
            let why = format!("{} failed before; --keep-going goes on", failed.name);
            Row { name: stage.name, outcome: Outcome::NotReached, seconds: 0, why }
        } else {
            one(stage, decision, &root, &kept, begun.get(stage.name))
        };
        rows.push(row);
    }
    let (text, passed) = table::outcomes(&rows);
    print!("{text}");
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What its stamp says of a stage.
fn standing(stage: &Stage, root: &Path, kept: &Path, tools: &mut Tools<'_>) -> Result<Standing, String> {
    // Also if there is no stamp, so that a stage without inputs is an error at once.
    let now = State::of(stage, root, tools)?;
    let (green, ran) = match stamp::read(kept, stage.name) {
        Found::Nothing => (Err("it has no stamp".to_owned()), None),
        Found::Ignored(why) => (Err(format!("its stamp is ignored: {why}")), None),
        Found::Stamp(Stamp { state, commit, ran, .. }) => {
            let green = match now.differs(&state) {
                Some(what) => Err(what),
                None if now.lacks_a_tool() => Err("a tool of it is not there yet".to_owned()),
                None => Ok(commit),
            };
            (green, Some(ran))
        }
    };
    Ok(Standing { green, ran })
}

/// Runs a stage, and keeps or removes its stamp.
fn one(stage: &'static Stage, decision: Decision, root: &Path, kept: &Path, begun: Option<&String>) -> Row {
    println!("\n=== {}: {}", stage.name, stage.what);
    let start = Instant::now();
    let outcome = stamped(stage, decision.does, root, kept, begun, start);
    let seconds = start.elapsed().as_secs();
    let (outcome, mut why) = match outcome {
        Ok(()) => (Outcome::Passed, decision.why),
        Err(why) => (Outcome::Failed, why),
    };
    println!("=== {}: {} after {seconds} s", stage.name, outcome.word());
    if outcome == Outcome::Failed {
        println!("{}: {why}", stage.name);
        // A stage that fails loses its stamp.
        if let Err(stays) = stamp::remove(kept, stage.name) {
            why = format!("{why}; {stays}");
        }
    }
    Row { name: stage.name, outcome, seconds, why }
}

/// Runs a stage, and writes its stamp if it passes.
fn stamped(
    stage: &Stage,
    does: Does,
    root: &Path,
    kept: &Path,
    begun: Option<&String>,
    start: Instant,
) -> Result<(), String> {
    run::install(stage, root, kept)?;
    if !stage.rotates() {
        return run::lines(stage, does, root, kept);
    }
    // Only now is every tool there.
    let before = State::of(stage, root, &mut Tools::new(root, kept))?;
    let passed = run::lines(stage, does, root, kept);
    let old = match stamp::read(kept, stage.name) {
        Found::Stamp(old) => Some(old),
        Found::Nothing | Found::Ignored(_) => None,
    };
    if let Err(why) = passed {
        let was_green = old.is_some_and(|old| before.differs(&old.state).is_none());
        let hint = "it was green for the same inputs before, so that xtask/src/ci/stages.rs may lack one";
        return Err(if was_green { format!("{why}; {hint}") } else { why });
    }
    let after = State::of(stage, root, &mut Tools::new(root, kept))?;
    if before != after || begun.is_some_and(|files| *files != after.files) {
        println!("{}: its inputs changed after this program was built, so that no stamp is kept", stage.name);
        return stamp::remove(kept, stage.name);
    }
    let commit = git(root, &["rev-parse", "--short=12", "HEAD"])?.trim().to_owned();
    let ran = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    stamp::write(kept, stage.name, &Stamp { state: before, commit, seconds: start.elapsed().as_secs(), ran })
}
