//! `cargo xtask plan` and `predict` are in files of their own.
//!
//! `cargo xtask study`: studies of the literature simulated, from layer tables, published rates and the planner's
//! models; and with `--train` trained, for the accuracy that a simulation does not know.

mod cells;
mod chart;
mod grace;
mod gtopk;
mod hybrid;
mod machines;
mod merging;
mod network;
mod networks;
mod omgs;
mod page;
mod plan;
mod predict;
mod train;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use gradwire_tools::checkout::{self, root};
use gradwire_tools::ending::ending;

use self::cells::csv;
use self::page::page;

/// Where the page and its chart are.
const PAGE: &str = "docs/study.md";
const CHART: &str = "docs/study.svg";

/// What to do with the results.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write them to docs/study.md and docs/study.svg, where a test compares.
    #[arg(long)]
    write: bool,
    /// Where all iterations go, as CSV: every GPU, link, network, number of workers and codec.
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Train for the accuracy of each codec: some four minutes on two cores. The page is made from the rows that this
    /// writes.
    #[arg(long, conflicts_with_all = ["write", "csv"])]
    train: bool,
    /// Seeds that each training has.
    #[arg(long, requires = "train", default_value_t = train::SEEDS)]
    seeds: u64,
    /// How often a training learns from each image.
    #[arg(long, requires = "train", default_value_t = train::EPOCHS)]
    epochs: u64,
    /// Where the rows go, in place of benches/studies/train.json.
    #[arg(long, requires = "train")]
    rows: Option<PathBuf>,
}

/// Simulates, and prints the page or writes it.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    if args.train {
        let trained = train::run(args.seeds, args.epochs, args.rows.as_deref())?;
        let mut section = String::new();
        page::accuracy(&mut section, &trained)?;
        print!("{section}");
        return Ok(());
    }
    if let Some(path) = &args.csv {
        checkout::check_writable(path, "--csv")?;
        std::fs::write(path, csv()?).map_err(|e| format!("{} cannot be written: {e}", path.display()))?;
    }
    if args.write {
        for (name, text) in [(PAGE, page()?), (CHART, chart::chart()?)] {
            let path = root().join(name);
            std::fs::write(&path, text).map_err(|e| format!("{} cannot be written: {e}", path.display()))?;
            println!("wrote {name}");
        }
    } else if args.csv.is_none() {
        print!("{}", page()?);
    }
    Ok(())
}

#[derive(Parser)]
#[command(name = "gradwire-study", bin_name = "cargo xtask")]
enum Cli {
    /// Say which layers of a profile to merge and compress on a network, or that it does not pay.
    Plan(plan::Args),
    /// Predict steps over slow links with the planner, measure them on throttled threads, and print both.
    Predict(predict::Args),
    /// Simulate the studies of the literature, and write docs/study.md.
    Study(Args),
}

fn main() -> ExitCode {
    ending(match Cli::parse() {
        Cli::Plan(args) => plan::run(&args),
        Cli::Predict(args) => predict::run(&args),
        Cli::Study(args) => run(&args),
    })
}
