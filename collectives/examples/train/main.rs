//! Trains a small network on images of digits with data-parallel ranks, which exchange compressed gradients.
//!
//! ```text
//! cargo run --release --example train -- --ranks 4 --codec topk:0.01+ef
//! ```
//!
//! The line that matters is in `training.rs`: `compressor.exchange(device, &mut group, &mut gradient)`.

mod args;
mod digits;
mod error;
mod network;
mod plot;
mod random;
mod training;

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use gradwire::Device;
use indicatif::{ProgressBar, ProgressStyle};

use args::Args;
use digits::Images;
use error::TrainError;
use training::{History, Setup};

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
    let codecs = args.codecs();
    let (learn, test) = Images::load(&args.digits)?.split(args.seed);
    let steps = args.steps(learn.len())?;
    let Args { ranks, batch, rate, seed, .. } = *args;
    println!(
        "{} images to learn from, {} to test with; {ranks} ranks, {steps} steps of {batch} images",
        learn.len(),
        test.len()
    );
    let setup = Setup { ranks, steps, batch, rate, seed, learn, test };
    codecs.iter().try_for_each(|codec| training::check(codec, &setup))?;
    let device = Device::of(args.device.kind())?;
    println!("compressed by: {device}");
    let mut histories = Vec::with_capacity(codecs.len());
    for codec in &codecs {
        let bar = ProgressBar::new(steps as u64).with_message(codec.clone());
        // A template that could not be read leaves the bar as it is by default.
        if let Ok(style) = ProgressStyle::with_template("{msg:24} {bar:40} {pos}/{len} steps, {eta} left") {
            bar.set_style(style);
        }
        let start = Instant::now();
        let history = training::train(&setup, codec, &device, &|step| bar.set_position(step as u64))?;
        bar.finish_and_clear();
        println!("{codec}: {:.1} s; all ranks ended with the same parameters", start.elapsed().as_secs_f64());
        histories.push(history);
    }
    print!("\n{}", table(&histories));
    plot::draw(&args.plot, &histories, ranks)?;
    println!("\nchart: {}", args.plot.display());
    Ok(())
}

/// A row per codec.
fn table(histories: &[History]) -> String {
    let mut rows = vec![["codec", "accuracy", "loss", "bytes per step and rank", "factor"].map(str::to_owned)];
    for History { codec, points, whole } in histories {
        let Some(last) = points.last() else { continue };
        let bytes = last.bytes / last.step.max(1) as f64;
        let factor = if bytes > 0.0 { format!("{:.1}", whole / bytes) } else { "-".to_owned() };
        let accuracy = format!("{:.1} %", 100.0 * last.accuracy);
        rows.push([codec.clone(), accuracy, format!("{:.4}", last.loss), format!("{bytes:.0}"), factor]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3, 4].map(width);
    let mut text = String::new();
    for [codec, accuracy, loss, bytes, factor] in &rows {
        let [a, b, c, d, e] = widths;
        text += &format!("{codec:a$}  {accuracy:>b$}  {loss:>c$}  {bytes:>d$}  {factor:>e$}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use training::Point;

    #[test]
    fn a_table_has_a_row_per_codec() {
        let point = Point { step: 10, bytes: 500.0, accuracy: 0.9766, loss: 0.1 };
        let history = |codec: &str, bytes| History {
            codec: codec.to_owned(),
            points: vec![Point { bytes, ..point }],
            whole: 400.0,
        };
        let text = table(&[history("qsgd:bits=4", 500.0), history("none", 4000.0)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "qsgd:bits=4    97.7 %  0.1000                       50     8.0");
        assert!(lines[2].starts_with("none ") && lines[2].ends_with(" 400     1.0"));
    }

    #[test]
    fn the_whole_example_runs() {
        let plot = std::env::temp_dir().join(format!("gradwire-train-{}/chart.svg", std::process::id()));
        let given = ["train", "--ranks", "2", "--steps", "5", "--plot"].map(String::from);
        let plot_text = plot.display().to_string();
        run(&Args::try_parse_from(given.into_iter().chain([plot_text])).unwrap()).unwrap();
        let chart = std::fs::read_to_string(&plot).unwrap();
        assert!(chart.contains("none") && chart.contains("bytes"));
        std::fs::remove_dir_all(plot.parent().unwrap()).unwrap();
    }
}
