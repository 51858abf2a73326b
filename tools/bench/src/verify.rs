//! `cargo xtask verify`: the whole suite against one device, from one binary that needs nothing else of the repository.

use std::io::Write;
use std::time::Instant;

use gradwire::{BackendKind, Device};
use gradwire_tests::require::parse_kind;
use gradwire_tests::suite::{self, Depth, Step};
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

/// What has been found of the thing that is being checked. Each is printed as the next one begins, and a failure at
/// once, so that a run that is stopped has told what it had.
#[derive(Default)]
struct Live {
    what: Option<String>,
    compared: u64,
    failed: bool,
}

impl Live {
    fn hear(&mut self, step: Step<'_>, out: &mut impl Write) {
        match step {
            Step::Next(what) => {
                self.end(out);
                self.what = Some(what.to_owned());
            }
            Step::Outcome { outcome: Ok(compared), .. } => self.compared += compared,
            Step::Outcome { codec, check, outcome: Err(failure) } => {
                self.failed = true;
                say(out, &format!("FAILED   {codec}, {check}: {failure}"));
            }
        }
    }

    /// Prints what was found since the last line.
    fn end(&mut self, out: &mut impl Write) {
        let Self { what, compared, failed } = std::mem::take(self);
        if let Some(what) = what {
            let verdict = if failed { "FAILED" } else { "ok" };
            say(out, &format!("{what:64} {compared:>9} compared  {verdict}"));
        }
    }
}

/// A line that is out before anything else happens. Where nobody reads on, the verdict is still to come.
fn say(out: &mut impl Write, line: &str) {
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
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
    let depth = if args.quick { Depth::Sweeps } else { Depth::Full };
    let mut live = Live::default();
    let mut stdout = std::io::stdout();
    let verdicts = suite::watch(&device, depth, &mut |step| {
        bar.suspend(|| live.hear(step, &mut stdout));
        if let Step::Next(what) = step {
            bar.set_message(what.to_owned());
            bar.tick();
        }
    });
    bar.finish_and_clear();
    live.end(&mut stdout);
    #[cfg(feature = "cuda")]
    for family in device.loaded() {
        println!("first call of the kernels of {} (sm_{} PTX): {:.2} s", family.name, family.target, family.seconds);
    }
    let mut failed = 0;
    println!("\nby codec and check:");
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What was flushed, and what is yet to be.
    #[derive(Default)]
    struct Pipe {
        pending: Vec<u8>,
        flushed: String,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.pending.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            self.flushed += &String::from_utf8_lossy(&std::mem::take(&mut self.pending));
            Ok(())
        }
    }

    #[test]
    fn a_verdict_is_out_before_the_next_check_begins() {
        let (mut live, mut pipe) = (Live::default(), Pipe::default());
        let outcome = |outcome| Step::Outcome { codec: "QSGD", check: "its bytes", outcome };
        live.hear(Step::Next("golden vectors"), &mut pipe);
        live.hear(outcome(&Ok(7)), &mut pipe);
        live.hear(outcome(&Ok(5)), &mut pipe);
        assert_eq!(pipe.flushed, "");
        live.hear(Step::Next("lengths"), &mut pipe);
        assert!(
            pipe.flushed.starts_with("golden vectors ") && pipe.flushed.ends_with("12 compared  ok\n"),
            "{}",
            pipe.flushed
        );
        live.hear(outcome(&Err("byte 3".to_owned())), &mut pipe);
        assert!(pipe.flushed.ends_with("\nFAILED   QSGD, its bytes: byte 3\n"), "at once: {}", pipe.flushed);
        live.end(&mut pipe);
        assert!(pipe.flushed.ends_with("0 compared  FAILED\n"), "{}", pipe.flushed);
        live.end(&mut pipe);
        assert_eq!((pipe.flushed.lines().count(), pipe.pending.len()), (3, 0), "nothing is said twice");
    }
}
