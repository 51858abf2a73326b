//! Trains a small network on images of digits with data-parallel ranks, which exchange compressed gradients.
//!
//! ```text
//! cargo run --release --example train -- --ranks 4 --codec topk:0.01+ef
//! mpirun -np 4 --host a,b target/release/examples/train --engine mpi --codec topk:0.01+ef
//! cargo run --release --example train -- --engine nccl --ranks 2 --device cuda --codec topk:0.01+ef
//! cargo run --release --example train -- --codec topk:0.01+ef --steps 300 --save target/train.state
//! cargo run --release --example train -- --codec topk:0.01+ef --ranks 3 --resume target/train.state
//! ```
//!
//! The line that matters is in `planned.rs`: `compressor.exchange(device, group, gradient)`; with `--plan FILE`,
//! `Compressor::exchange_all`, and with `--overlap` `Together`. In `gpu.rs` it is the same of a `QueuedCompressor`.

mod args;
mod checkpoint;
mod digits;
mod error;
mod gpu;
mod nccl;
mod network;
mod planned;
mod plot;
mod random;
mod traffic;
mod training;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use gradwire::{BackendKind, Device};
use gradwire_collectives::{Collective, Mpi, MpiSettings, Threads};
use indicatif::{ProgressBar, ProgressStyle};

use args::{Args, Engine, Over};
use checkpoint::Files;
use digits::Images;
use error::TrainError;
use gpu::{By, Group};
use training::{History, Point, Setup};

#[cfg(test)]
use args::DIGITS;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), TrainError> {
    let kind = args.device.kind();
    match (args.engine, args.over) {
        (Engine::Threads, _) => {
            let device = Device::of(kind)?;
            on_threads(args, &device.to_string(), |group| Ok((group, By::Device(&device))))
        }
        (Engine::Mpi, _) => {
            let device = Device::of(kind)?;
            let group = open_mpi(args.deadline())?;
            of_group(args, &device.to_string(), group, &By::Device(&device))
        }
        (Engine::Nccl, over) => {
            // Where GPUs compress, each rank has its own.
            let device = (kind != BackendKind::Cuda).then(|| Device::of(kind)).transpose()?;
            let told = device.as_ref().map_or_else(|| format!("{kind}: the GPU of each rank"), Device::to_string);
            let open = |ranks: &mut dyn Collective| nccl::open(ranks, device.as_ref(), args.deadline());
            match over {
                Over::Threads => on_threads(args, &told, |mut ranks| open(&mut ranks)),
                Over::Mpi => {
                    let mut ranks = open_mpi(args.deadline())?;
                    let (group, by) = open(&mut ranks)?;
                    of_group(args, &told, group, &by)?;
                    Ok(ranks.finish().map_err(gradwire::Error::from)?)
                }
            }
        }
    }
}

/// The ranks of MPI, where a launcher has started as many processes as were asked for.
fn open_mpi(deadline: Duration) -> Result<Mpi, TrainError> {
    let settings = MpiSettings { deadline, ..MpiSettings::default() };
    let group = Mpi::open(&settings).map_err(gradwire::Error::from)?;
    expect_launched(group.ranks(), |name| std::env::var(name).ok())?;
    Ok(group)
}

/// Refuses to train alone where a scheduler or a launcher has set up more ranks: MPI then knows nothing of them.
fn expect_launched(ranks: u32, variable: impl Fn(&str) -> Option<String>) -> Result<(), TrainError> {
    let asked = ["SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"].into_iter().find_map(|name| {
        let ranks = variable(name)?.parse::<u32>().ok()?;
        (ranks > 1).then_some((name, ranks))
    });
    match asked {
        Some((name, asked)) if ranks == 1 => Err(TrainError::Alone { name, asked }),
        _ => Ok(()),
    }
}

/// Trains on ranks that are threads.
fn on_threads<'d, G: Group>(
    args: &Args,
    device: &str,
    open: impl Fn(Threads) -> Result<(G, By<'d>), TrainError> + Sync,
) -> Result<(), TrainError> {
    trainings(args, (args.ranks, true), device, (), |setup, codec, progress, ()| {
        Ok((training::train(setup, codec, progress, &open)?, ()))
    })
}

/// Trains as a rank of a group, which is ended.
fn of_group<G: Group>(args: &Args, device: &str, group: G, by: &By<'_>) -> Result<(), TrainError> {
    let who = (group.ranks(), group.rank() == 0);
    let group = trainings(args, who, device, group, |setup, codec, progress, group| {
        training::train_rank(setup, codec, by, progress, group)
    })?;
    Ok(group.end().map_err(gradwire::Error::from)?)
}

/// Trains with each codec, on so many ranks. `train` gives back what it was given, for the next one. Of a group, one
/// rank speaks and draws.
fn trainings<S>(
    args: &Args,
    (ranks, speaks): (u32, bool),
    device: &str,
    mut state: S,
    train: impl Fn(&Setup, &str, &(dyn Fn(usize) + Sync), S) -> Result<(History, S), TrainError>,
) -> Result<S, TrainError> {
    let codecs = args.codecs();
    let (learn, test) = Images::load(&args.digits)?.split(args.seed);
    let steps = args.steps(learn.len(), ranks)?;
    let tested = test.len();
    let Args { batch, rate, seed, layers, overlap, .. } = *args;
    if speaks {
        let (learn, test) = (learn.len(), test.len());
        println!("{learn} images to learn from, {test} to test with; {ranks} ranks, {steps} steps of {batch} images");
        println!("compressed by: {device}");
    }
    let plan = args.plan.as_deref().map(planned::read).transpose()?;
    let every = args.save_every.map(|steps| steps as usize);
    let files = Files { resume: args.resume.clone(), save: args.save.clone(), every };
    let deadline = args.deadline();
    let setup = Setup { ranks, steps, deadline, batch, rate, seed, layers, learn, test, plan, overlap, files };
    codecs.iter().try_for_each(|codec| training::check(codec, &setup))?;
    let mut histories = Vec::with_capacity(codecs.len());
    for codec in &codecs {
        let bar = if speaks { ProgressBar::new(steps as u64) } else { ProgressBar::hidden() };
        let bar = bar.with_message(codec.clone());
        // A template that could not be read leaves the bar as it is by default.
        if let Ok(style) = ProgressStyle::with_template("{msg:24} {bar:40} {pos}/{len} steps, {eta} left") {
            bar.set_style(style);
        }
        let progress = |step: usize| bar.set_position(step as u64);
        let start = Instant::now();
        let (history, back) = train(&setup, codec, &progress, state)?;
        state = back;
        bar.finish_and_clear();
        if speaks {
            let seconds = start.elapsed().as_secs_f64();
            history.told.iter().for_each(|line| println!("{codec}: {line}"));
            println!(
                "{codec}: {seconds:.1} s; all ranks ended with the same parameters, of hash {:016x}",
                history.hash
            );
        }
        histories.push(history);
    }
    if speaks {
        print!("\n{}", table(&histories));
        if let Some(path) = &args.csv {
            let shared = Shared { tested, steps, ranks, seed, rate };
            std::fs::write(path, csv(&histories, &shared))
                .map_err(|source| TrainError::Csv { path: path.clone(), source })?;
        }
        plot::draw(&args.plot, &histories, ranks)?;
        println!("\nchart: {}", args.plot.display());
    }
    Ok(state)
}

/// What all rows of a table have alike.
struct Shared {
    /// Images for testing.
    tested: usize,
    steps: usize,
    ranks: u32,
    seed: u64,
    rate: f32,
}

/// The last line of each training, in whole. Of the bytes of a step, `bytes_per_step` are those that a rank hands over,
/// `sent_per_step` those that it sends, and `left_per_step` those that it sends to other machines; 0 if the engine
/// does not count. A codec's name may have commas, and no quotes.
fn csv(histories: &[History], shared: &Shared) -> String {
    let Shared { tested, steps, ranks, seed, rate } = shared;
    let mut text =
        "accuracy,loss,bytes_per_step,bytes_of_gradient,sent_per_step,left_per_step,tested,steps,ranks,seed,\
                    rate,codec\n"
            .to_owned();
    for History { codec, points, whole, .. } in histories {
        let Some(last) = points.last() else { continue };
        let Point { accuracy, loss, .. } = last;
        let [bytes, sent, left] = [last.bytes, last.sent, last.left].map(|bytes| bytes / last.step.max(1) as f64);
        text += &format!(
            "{accuracy},{loss},{bytes},{whole},{sent},{left},{tested},{steps},{ranks},{seed},{rate},\"{codec}\"\n"
        );
    }
    text
}

/// A row per codec. The last column is how much less is sent than of gradients that are not compressed, of which a rank
/// sends 2 (ranks - 1) / ranks in an all-reduce.
fn table(histories: &[History]) -> String {
    let mut rows = vec![
        ["codec", "accuracy", "loss", "handed over", "sent", "to other machines", "times less"].map(str::to_owned),
    ];
    for history in histories {
        let Some(last) = history.points.last() else { continue };
        let each = |bytes: f64, is_known: bool| {
            if is_known { format!("{:.0}", bytes / last.step.max(1) as f64) } else { "-".to_owned() }
        };
        let ranks = f64::from(history.ranks);
        let dense = 2.0 * (ranks - 1.0) / ranks * history.whole * last.step as f64;
        let less =
            if history.counted && last.sent > 0.0 { format!("{:.1}", dense / last.sent) } else { "-".to_owned() };
        rows.push([
            history.codec.clone(),
            format!("{:.1} %", 100.0 * last.accuracy),
            format!("{:.4}", last.loss),
            each(last.bytes, true),
            each(last.sent, history.counted),
            each(last.left, history.counted && history.far),
            less,
        ]);
    }
    let widths: Vec<usize> =
        (0..7).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    let mut text = "Bytes are those of a step and a rank.\n".to_owned();
    for row in &rows {
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            text += &if at == 0 { format!("{cell:width$}") } else { format!("  {cell:>width$}") };
        }
        text += "\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use training::Point;

    #[test]
    fn a_table_has_a_row_per_codec() {
        let point = Point { step: 10, bytes: 500.0, sent: 1500.0, left: 0.0, accuracy: 0.9766, loss: 0.1 };
        let history = |codec: &str, bytes, sent| History {
            codec: codec.to_owned(),
            points: vec![Point { bytes, sent, ..point }],
            whole: 400.0,
            ranks: 4,
            counted: sent > 0.0,
            far: false,
            hash: 0,
            told: Vec::new(),
        };
        // Of four ranks, a payload is sent to three, and three halves of a gradient are.
        let text = table(&[
            history("qsgd:bits=4", 500.0, 1500.0),
            history("none", 4000.0, 6000.0),
            history("topk:0.01", 500.0, 0.0),
        ]);
        let cells: Vec<Vec<&str>> = text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(cells[0], ["qsgd:bits=4", "97.7", "%", "0.1000", "50", "150", "-", "4.0"]);
        assert_eq!(cells[1][4..], ["400", "600", "-", "1.0"]);
        assert_eq!(cells[2][4..], ["50", "-", "-", "-"], "what no engine counts is not told");
        let shared = Shared { tested: 359, steps: 10, ranks: 4, seed: 2, rate: 0.1 };
        let text = csv(&[history("qsgd:bits=4,bucket=64", 500.0, 1500.0)], &shared);
        assert_eq!(text.lines().nth(1), Some("0.9766,0.1,50,400,150,0,359,10,4,2,0.1,\"qsgd:bits=4,bucket=64\""));
    }

    #[test]
    fn one_rank_where_more_were_set_up_is_refused() {
        let set =
            |name: &'static str, value: &'static str| move |asked: &str| (asked == name).then(|| value.to_owned());
        for name in ["SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"] {
            let error = expect_launched(1, set(name, "4")).unwrap_err().to_string();
            assert!(error.contains(&format!("{name} is 4")) && error.contains("mpirun -n 4"), "{error}");
            expect_launched(4, set(name, "4")).unwrap();
            expect_launched(1, set(name, "1")).unwrap();
        }
        expect_launched(1, |_| None).unwrap();
    }

    #[test]
    fn the_whole_example_runs() {
        let plot = std::env::temp_dir().join(format!("gradwire-train-{}/chart.svg", std::process::id()));
        let csv = plot.with_extension("csv");
        let given = ["train", "--ranks", "2", "--steps", "5", "--plot"].map(String::from);
        let [plot_text, csv_text] = [&plot, &csv].map(|path| path.display().to_string());
        std::fs::create_dir_all(plot.parent().unwrap()).unwrap();
        run(&Args::try_parse_from(given.into_iter().chain([plot_text, "--csv".to_owned(), csv_text])).unwrap())
            .unwrap();
        let rows = std::fs::read_to_string(&csv).unwrap();
        assert!(rows.lines().count() == 8 && rows.contains("39720,39724.8,0,359,5,2,1,0.1,\"none\""), "{rows}");
        let chart = std::fs::read_to_string(&plot).unwrap();
        assert!(chart.contains("none") && chart.contains("bytes"));
        std::fs::remove_dir_all(plot.parent().unwrap()).unwrap();
    }
}
