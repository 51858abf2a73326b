//! `cargo xtask verify`: the whole suite against one device, from one binary that needs nothing else of the repository.

use std::time::Instant;

use gradwire::{BackendKind, Device};
use gradwire_tests::suite::{self, Depth};
use indicatif::{ProgressBar, ProgressStyle};

/// What to verify.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which backend: cpu, wgpu or cuda. Without it, the best device of this machine.
    #[arg(long, value_parser = parse_kind)]
    device: Option<BackendKind>,
    /// Leave out tensors above 2^25 elements and the longest statistics.
    #[arg(long)]
    quick: bool,
}

/// A backend by its name.
pub(crate) fn parse_kind(name: &str) -> Result<BackendKind, String> {
    BackendKind::ALL
        .into_iter()
        .find(|k| k.name() == name)
        .ok_or_else(|| format!("`{name}` is none of cpu, wgpu and cuda"))
}

/// The device that was asked for, or the best one.
pub(crate) fn open(kind: Option<BackendKind>) -> Result<Device, String> {
    match kind {
        Some(kind) => Device::of(kind),
        None => Device::open(),
    }
    .map_err(|e| e.to_string())
}

/// Runs the suite and prints a line a check.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let device = open(args.device)?;
    println!("{device}");
    for error in device.why() {
        println!("  passed over: {error}");
    }
    let bar = ProgressBar::new_spinner()
        .with_style(ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}").map_err(|e| e.to_string())?);
    let start = Instant::now();
    let depth = if args.quick { Depth::Quick } else { Depth::Full };
    let verdicts = suite::run(&device, depth, &mut |what| {
        bar.set_message(what.to_owned());
        bar.tick();
    });
    bar.finish_and_clear();
    let mut failed = 0;
    println!();
    for v in &verdicts {
        let verdict = if v.failures.is_empty() { "ok" } else { "FAILED" };
        println!("{:8} {:55} {:>9} compared  {verdict}", v.codec, v.check, v.compared);
        for failure in v.failures.iter().take(3) {
            println!("           {failure}");
        }
        if v.failures.len() > 3 {
            println!("           and {} more", v.failures.len() - 3);
        }
        failed += usize::from(!v.failures.is_empty());
    }
    let passed = verdicts.len() - failed;
    println!("\n{device}: {passed} passed, {failed} failed, in {:.0} s", start.elapsed().as_secs_f64());
    if failed == 0 { Ok(()) } else { Err(format!("{failed} checks failed on {device}")) }
}
