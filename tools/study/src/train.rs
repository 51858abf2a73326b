//! `cargo xtask study --train`: trainings of the example `train`, for the accuracy of what the studies compare.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gradwire::Recipe;
use gradwire_tools::checkout::{self, root};
use gradwire_tools::child::lines_of;
use gradwire_tools::files::{now, replace};
use gradwire_tools::machine;
use gradwire_tools::repository::git;
use gradwire_tools::step::example;
use serde::{Deserialize, Serialize};

/// Where the results are that the page is made of.
pub(super) const ROWS: &str = "benches/studies/train.json";
/// What those were trained with.
pub(super) const SEEDS: u64 = 3;
pub(super) const EPOCHS: u64 = 30;
const RANKS: u32 = 4;
/// Learning rates: of all, and of methods that send signs alone, of which a step is as long as the rate.
pub(super) const RATE: f64 = 0.1;
pub(super) const SIGNS_RATE: f64 = 0.001;
/// No training takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(300);

/// Results, and how they came about.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Trained {
    /// In UTC, when the first training began.
    pub(super) date: String,
    pub(super) commit: String,
    pub(super) cpu: String,
    pub(super) ranks: u32,
    pub(super) epochs: u64,
    pub(super) rows: Vec<Row>,
}

/// The end of a training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) study: Study,
    /// What the study calls it.
    pub(super) name: String,
    /// The recipe, or those of a plan.
    pub(super) recipe: String,
    pub(super) layers: Layers,
    pub(super) rate: f64,
    pub(super) seed: u64,
    pub(super) steps: u64,
    /// Of the images for testing, of which there are so many.
    pub(super) accuracy: f64,
    pub(super) tested: u64,
    pub(super) loss: f64,
    /// Bytes that a rank hands over in a step, and those of a gradient in f32.
    pub(super) bytes: f64,
    pub(super) whole: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Study {
    /// Grubic et al.
    LowPrecision,
    Grace,
}

/// The example's networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Layers {
    Full,
    Convolutions,
}

impl Layers {
    fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Convolutions => "convolutions",
        }
    }
}

/// A training that is to be made.
struct Job {
    study: Study,
    name: String,
    recipe: String,
    layers: Layers,
    rate: f64,
    /// The text of a plan, in place of a recipe.
    plan: Option<String>,
}

/// The codecs of Grubic et al., in two phases as in CNTK. One bit per column is a plan.
pub(super) const LOW_PRECISION: [(&str, &str); 6] = [
    ("32 bit", "none"),
    ("1 bit / 64", "onebit:bucket=64+twophase"),
    ("QSGD 2 / 128", "qsgd:bits=2,bucket=128+twophase"),
    ("QSGD 4 / 512", "qsgd:bits=4,bucket=512+twophase"),
    ("QSGD 8 / 512", "qsgd:bits=8,bucket=512+twophase"),
    ("QSGD 16 / 8192", "qsgd:bits=16,bucket=8192+twophase"),
];
pub(super) const PER_COLUMN: &str = "1 bit per column";

/// One bit and two means per row of a weight matrix, of 64 and of 128 elements, in the network of full layers. Tensors
/// that are small go as they are, as with a recipe.
const COLUMNS: [(&[(&str, u64)], &str); 3] = [
    (&[("1.weight", 8192)], "onebit:bucket=128+twophase"),
    (&[("0.weight", 8192)], "onebit:bucket=64+twophase"),
    (&[("2.weight", 640), ("2.bias", 10), ("1.bias", 64), ("0.bias", 128)], "none"),
];

/// The plan of one bit per column.
fn columns() -> String {
    let message = |(tensors, recipe): &(&[(&str, u64)], &str)| {
        let tensors = tensors.iter().map(|(name, elements)| serde_json::json!({"name": name, "elements": elements}));
        serde_json::json!({"tensors": tensors.collect::<Vec<_>>(), "recipe": recipe})
    };
    serde_json::json!({"messages": COLUMNS.iter().map(message).collect::<Vec<_>>()}).to_string()
}

/// Whether a method sends signs and keeps nothing of what they leave out.
pub(super) fn sends_signs(name: &str) -> bool {
    matches!(name, "signsgd" | "signum")
}

/// All trainings of a seed.
fn jobs() -> Vec<Job> {
    let mut jobs = Vec::new();
    for layers in [Layers::Full, Layers::Convolutions] {
        for (name, recipe) in LOW_PRECISION {
            let (study, rate) = (Study::LowPrecision, RATE);
            jobs.push(Job { study, name: name.to_owned(), recipe: recipe.to_owned(), layers, rate, plan: None });
        }
    }
    jobs.push(Job {
        study: Study::LowPrecision,
        name: PER_COLUMN.to_owned(),
        recipe: COLUMNS[..2].iter().map(|(_, recipe)| *recipe).collect::<Vec<_>>().join(", "),
        layers: Layers::Full,
        rate: RATE,
        plan: Some(columns()),
    });
    for method in Recipe::methods() {
        let rates: &[f64] = if sends_signs(method.name) { &[RATE, SIGNS_RATE] } else { &[RATE] };
        let of_rate = |rate: &f64| Job {
            study: Study::Grace,
            name: method.name.to_owned(),
            recipe: method.recipe.to_owned(),
            layers: Layers::Convolutions,
            rate: *rate,
            plan: None,
        };
        jobs.extend(rates.iter().map(of_rate));
    }
    jobs
}

/// Builds the example, trains, and writes what came of it.
pub(super) fn run(seeds: u64, epochs: u64, rows: Option<&Path>) -> Result<Trained, String> {
    if seeds == 0 || epochs == 0 {
        return Err("a training has a seed and an epoch at least".to_owned());
    }
    if rows.is_none() && (seeds, epochs) != (SEEDS, EPOCHS) {
        return Err(format!("{ROWS} is of {SEEDS} seeds and {EPOCHS} epochs; name another file with --rows"));
    }
    let path = rows.map_or_else(|| root().join(ROWS), Path::to_path_buf);
    checkout::check_writable(&path, "--rows")?;
    let program = example("train")?;
    let folder = root().join("target/study");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let (date, began) = (now(), Instant::now());
    // A source archive has no commit.
    let commit = git(&root(), &["rev-parse", "--short=12", "HEAD"]);
    let commit = commit.map_or_else(|_| "unknown".to_owned(), |commit| commit.trim().to_owned());
    let mut trained = Trained { date, commit, cpu: machine::cpu(), ranks: RANKS, epochs, rows: Vec::new() };
    for job in jobs() {
        for seed in 1..=seeds {
            let row = train(&program, &folder, &job, seed, epochs)?;
            println!("{:?} {} seed {seed}: {:.1} %", job.layers, job.name, 100.0 * row.accuracy);
            trained.rows.push(row);
        }
    }
    let text = serde_json::to_string_pretty(&trained).map_err(|e| e.to_string())?;
    replace(&path, &(text + "\n"), "--rows")?;
    println!("wrote {} after {:.0} s", path.display(), began.elapsed().as_secs_f64());
    Ok(trained)
}

fn train(program: &Path, folder: &Path, job: &Job, seed: u64, epochs: u64) -> Result<Row, String> {
    let csv = folder.join("train.csv");
    let plan = folder.join("plan.json");
    let mut command = Command::new(program);
    command.args(["--layers", job.layers.name(), "--ranks", &RANKS.to_string()]);
    command.args(["--epochs", &epochs.to_string(), "--seed", &seed.to_string(), "--rate", &job.rate.to_string()]);
    command.arg("--csv").arg(&csv).arg("--plot").arg(folder.join("train.svg"));
    match &job.plan {
        Some(text) => {
            std::fs::write(&plan, text).map_err(|e| format!("{}: {e}", plan.display()))?;
            command.arg("--plan").arg(&plan);
        }
        None => {
            command.args(["--codec", &job.recipe]);
        }
    }
    lines_of(&mut command, PATIENCE).map_err(|e| format!("{} with seed {seed}: {e}", job.name))?;
    let text = std::fs::read_to_string(&csv).map_err(|e| format!("{}: {e}", csv.display()))?;
    read(&text, job, seed).map_err(|e| format!("{}: {e}", csv.display()))
}

/// The one row of the example's CSV.
fn read(text: &str, job: &Job, seed: u64) -> Result<Row, String> {
    let mut lines = text.lines();
    let (head, row) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let head: Vec<&str> = head.split(',').collect();
    // The codec is last, and may have commas.
    let cells: Vec<&str> = row.splitn(head.len(), ',').collect();
    if cells.len() != head.len() || lines.next().is_some() {
        return Err(format!("one row of {} cells is wanted, and it says {text:?}", head.len()));
    }
    let number = |name: &str| {
        let cell = head.iter().position(|cell| *cell == name).map(|at| cells[at]);
        let number = cell.and_then(|cell| cell.parse::<f64>().ok()).filter(|number| number.is_finite());
        number.ok_or_else(|| format!("no number {name} in {text:?}"))
    };
    if number("seed")? != seed as f64 || number("rate")? != job.rate {
        return Err(format!("it is of another seed or rate: {text:?}"));
    }
    Ok(Row {
        study: job.study,
        name: job.name.clone(),
        recipe: job.recipe.clone(),
        layers: job.layers,
        rate: job.rate,
        seed,
        steps: number("steps")? as u64,
        accuracy: number("accuracy")?,
        tested: number("tested")? as u64,
        loss: number("loss")?,
        bytes: number("bytes_per_step")?,
        whole: number("bytes_of_gradient")?,
    })
}

/// What was trained last.
pub(super) fn trained() -> Result<Trained, String> {
    let path: PathBuf = root().join(ROWS);
    let said = |e: String| format!("{}: {e}; write it with cargo xtask study --train", path.display());
    let text = std::fs::read_to_string(&path).map_err(|e| said(e.to_string()))?;
    serde_json::from_str(&text).map_err(|e| said(e.to_string()))
}

#[cfg(test)]
mod tests {
    use gradwire_planner::Message;

    use super::*;

    #[test]
    fn trainings_are_of_recipes_that_there_are() {
        let jobs = jobs();
        for job in jobs.iter().filter(|job| job.plan.is_none()) {
            job.recipe.parse::<Recipe>().unwrap_or_else(|error| panic!("{}: {error}", job.recipe));
        }
        let messages = Message::from_plan(&columns()).expect("a plan");
        assert!(messages.iter().all(|message| message.recipe.parse::<Recipe>().is_ok()));
        assert_eq!(messages.iter().flat_map(|message| &message.tensors).map(|t| t.elements).sum::<u64>(), 17226);
        assert_eq!(jobs.len(), 2 * 6 + 1 + Recipe::methods().len() + 2);
    }

    #[test]
    fn the_example_s_row_is_read() {
        let job = &jobs()[3];
        let head = "accuracy,loss,bytes_per_step,bytes_of_gradient,tested,steps,ranks,seed,rate,codec\n";
        let text = format!("{head}0.9766,0.1,50,400,359,10,4,2,0.1,\"qsgd:bits=4,bucket=512\"\n");
        let row = read(&text, job, 2);
        assert_eq!(row.map(|row| (row.accuracy, row.tested, row.bytes, row.steps)), Ok((0.9766, 359, 50.0, 10)));
        for (text, seed, wanted) in [
            (text.clone(), 3, "another seed"),
            (text.replace("0.9766", "NaN"), 2, "no number accuracy"),
            (head.to_owned(), 2, "one row"),
            (text.clone() + "x\n", 2, "one row"),
            // A cell too few, in whose place the codec's comma stands.
            (text.replace(",10,4,", ",4,"), 2, "another seed"),
        ] {
            let error = read(&text, job, seed).expect_err("refused");
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn a_short_run_does_not_replace_the_results() {
        assert!(run(1, EPOCHS, None).expect_err("refused").contains("--rows"));
        assert!(run(0, 1, Some(Path::new("x"))).is_err());
    }
}
