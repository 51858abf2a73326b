//! Trains a small convolutional network on real handwritten digits and saves
//! the raw gradients of an early, a middle and a late training step.
//!
//! Random numbers make poor test data for a gradient compressor: real
//! gradients have heavy tails, and every layer has its own scale. This program
//! makes a small file of the real thing which anyone can make again.

mod args;
mod augment;
mod digits;
mod error;
mod network;
mod output;
mod rng;
mod stats;
mod train;

use std::process::ExitCode;

use args::{Args, Request};
use digits::Digits;
use error::CaptureError;

fn main() -> ExitCode {
    let request = match args::parse(std::env::args().skip(1)) {
        Ok(request) => request,
        Err(error) => return fail(&error),
    };
    match request {
        Request::Help => {
            println!("{}", args::USAGE);
            ExitCode::SUCCESS
        }
        Request::Run(args) => match run(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        },
    }
}

fn fail(error: &CaptureError) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::FAILURE
}

fn run(args: &Args) -> Result<(), CaptureError> {
    let digits = Digits::load(&args.digits)?;
    println!("read {} images from {}", digits.len(), args.digits.display());

    let run = train::train(&digits)?;
    println!(
        "trained {} parameters for {} steps, accuracy {:.2} % on {} held-out images",
        run.parameters,
        train::STEPS,
        100.0 * run.test_accuracy,
        train::TEST_IMAGES
    );

    stats::print_header();
    for snapshot in &run.snapshots {
        for gradient in &snapshot.gradients {
            let name = output::tensor_name(snapshot, gradient);
            let summary = stats::summarise(&gradient.values);
            summary.print(&name, &gradient.shape);
            summary.check(&name)?;
        }
    }

    let bytes = output::encode(&run)?;
    std::fs::write(&args.out, &bytes).map_err(|source| CaptureError::Io {
        action: "write the gradients file",
        path: args.out.clone(),
        hint: "give a path in an existing, writable folder with --out",
        source,
    })?;
    println!("wrote {} bytes to {}", bytes.len(), args.out.display());
    Ok(())
}
