//! One part of a report, in a process of its own: a kernel that hangs or breaks the device's context takes no other
//! part with it. What it finds goes to standard output as it is found, a line of JSON each, so that a kill loses
//! nothing.

use gradwire::{BackendKind, Device};
use gradwire_tests::low_rank_checks::{self, SMALL};
use gradwire_tests::suite::{self, Depth, Step};
use gradwire_tests::{cases, conformance, selections, vectors};
use gradwire_tests::{cases::Case, oracle::Kind};

use super::bench;
use super::event::{Event, emit, open};
use super::place::Place;

/// A part of the report.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to do there.
    what: What,
    /// Where.
    #[arg(value_parser = Place::parse)]
    place: Place,
    /// How much to verify.
    #[arg(long, default_value = "quick")]
    depth: How,
    /// Seconds for the benches.
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// The smallest sizes only.
    #[arg(long)]
    quick: bool,
    /// Of a single run of each operation: its gradient's elements.
    #[arg(long, default_value_t = 1 << 24, value_parser = parse_elements)]
    elements: usize,
    /// Time or run only codecs whose names begin with this.
    #[arg(long, default_value = "")]
    codec: String,
    /// Skip the timings that this report has.
    #[arg(long, value_name = "REPORT.JSON")]
    have: Option<std::path::PathBuf>,
    /// Each launch waits for the end of the one before it.
    #[arg(long)]
    apart: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum What {
    /// Say what the device is.
    Probe,
    /// Run the suite.
    Verify,
    /// Time the kernels.
    Bench,
    /// Run every operation once, for a profiler.
    Once,
}

/// How much of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum How {
    /// Golden vectors, and one setting of each kind against the CPU: what a sanitizer or an interpreter gets through.
    Smoke,
    /// Every setting of every codec, each with some of the inputs, types and lengths in turn.
    Quick,
    /// Every setting with every input, type and length, and the largest tensors.
    Full,
}

impl How {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Smoke => "smoke",
            Self::Quick => "quick",
            Self::Full => "full",
        }
    }
}

fn parse_elements(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(elements @ 1..=0x8000_0000) => Ok(elements),
        _ => Err(format!("elements are a number from 1 to 2^31; got `{text}`")),
    }
}

/// Does a part.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    match args.what {
        What::Probe => probe(args.place),
        What::Verify => verify(args.place, args.depth),
        What::Bench => {
            let have =
                args.have.as_deref().map_or(Ok(Default::default()), |path| bench::timed_before(path, args.place))?;
            bench::run(args.place, args.seconds, args.quick, &bench::Wanted { codec: &args.codec, have }, args.apart)?;
        }
        What::Once => bench::once(args.place, args.elements, &args.codec)?,
    }
    emit(&Event::Done);
    Ok(())
}

fn probe(place: Place) {
    #[cfg(feature = "cuda")]
    if let Place::Cuda(_) = place {
        use gradwire::backend::cuda::driver::Driver;
        // Before any artifact is loaded: which of them load is what `verify` finds out.
        match super::place::cuda::driver() {
            Err(error) => emit(&Event::Missing { why: error.to_string() }),
            Ok(driver) => {
                let info = driver.info();
                let (major, minor) = info.driver_version;
                emit(&Event::Device {
                    name: info.name.clone(),
                    details: vec![
                        format!("driver for CUDA {major}.{minor}"),
                        format!("{:.1} GiB of memory", info.total_memory as f64 / f64::from(1 << 30)),
                        format!("{} multiprocessors", info.multiprocessors),
                    ],
                    compute_capability: Some(info.compute_capability),
                    software: false,
                });
            }
        }
        return;
    }
    let Some(device) = open(place) else { return };
    let (details, compute_capability) = match place {
        Place::PtxMachine(target) => {
            (vec!["an interpreter of the committed PTX, no GPU".to_owned()], Some((target / 10, target % 10)))
        }
        Place::Wgpu if device.is_software() => (vec!["software on the CPU, no GPU".to_owned()], None),
        _ => (Vec::new(), None),
    };
    let software = device.is_software() || matches!(place, Place::PtxMachine(_));
    emit(&Event::Device { name: device.name().to_owned(), details, compute_capability, software });
}

fn verify(place: Place, depth: How) {
    let Some(device) = open(place) else { return };
    let mut observer = |step: Step<'_>| match step {
        Step::Next(what) => emit(&Event::Next { what: what.to_owned() }),
        Step::Outcome { codec, check, outcome } => {
            let (codec, check) = (codec.to_owned(), check.to_owned());
            let (compared, failure) = match outcome {
                Ok(compared) => (*compared, None),
                Err(failure) => (0, Some(failure.clone())),
            };
            emit(&Event::Verdict { codec, check, compared, failure });
        }
    };
    if depth != How::Smoke && matches!(place, Place::Cuda(_)) {
        // Only where blocks are let wait for one another is there anything to get stuck.
        if device.limits().forward_progress {
            let check = "selections while another stream is busy";
            observer(Step::Next(check));
            let outcome =
                place.open().map_err(|e| e.to_string()).and_then(|other| selections::under_load(&device, &other, 300));
            observer(Step::Outcome { codec: "top-k", check, outcome: &outcome });
        }
    }
    match depth {
        How::Smoke => smoke(&device, &mut observer),
        How::Quick => drop(suite::watch(&device, Depth::Default, &mut observer)),
        How::Full => drop(suite::watch(&device, Depth::Full, &mut observer)),
    }
}

/// Every kernel at least once, on small tensors.
fn smoke(device: &Device, observer: &mut dyn FnMut(Step<'_>)) {
    let mut check = |codec, check, run: &dyn Fn() -> conformance::Outcome| {
        observer(Step::Next(check));
        observer(Step::Outcome { codec, check, outcome: &run() });
    };
    let golden = "golden vectors of format version 1";
    check("QSGD", golden, &|| vectors::check(device, "qsgd"));
    check("uniform", golden, &|| vectors::check(device, "uniform"));
    check("top-k", golden, &|| vectors::topk::committed().and_then(|all| vectors::topk::check(device, &all)));
    let x = cases::normal(9001, 17);
    for bucket in [Some(32), Some(512), Some(8192), None] {
        for (codec, kind, bits) in
            [("QSGD", Kind::QsgdL2, 3), ("QSGD", Kind::QsgdMax, 8), ("uniform", Kind::Uniform, 7)]
        {
            let case = Case::new(kind, bits, bucket);
            check(codec, "bytes equal the CPU's", &|| conformance::against_cpu(device, &case, &x, "normal"));
        }
    }
    check("QSGD", "NaN and infinity refused, residual kept", &|| conformance::refuses_not_finite(device));
    let x = cases::normal(20_011, 18);
    for (label, codec) in selections::settings(x.len() as u64) {
        // Three of the twenty: one segment, a threshold, several segments.
        if ["one in a hundred", "above 0.5", "few segments"].contains(&label.as_str()) {
            check("top-k", "bytes equal the CPU's", &|| selections::against_cpu(device, &codec, &label, &x));
        }
    }
    check("PowerSGD", "golden vectors", &|| low_rank_checks::golden(device));
    // Its sessions have no passes of PowerSGD, and it is what the others are compared with.
    if device.kind() != BackendKind::Cpu {
        check("PowerSGD", "factors and output are near the CPU's", &|| low_rank_checks::near_the_cpu(device, &SMALL));
        check("PowerSGD", "a state on the device has the same bits", &|| low_rank_checks::resident(device, &SMALL));
    }
}

#[cfg(test)]
mod tests {
    use super::super::schema::Row;
    use super::*;

    #[test]
    fn what_is_found_is_a_line_that_can_be_read() {
        let all = [
            Event::Missing { why: "two\nlines".to_owned() },
            Event::Row { row: Row::default() },
            Event::Verdict { codec: "c".to_owned(), check: "d".to_owned(), compared: 3, failure: None },
            Event::Done,
        ];
        for event in all {
            let line = serde_json::to_string(&event).unwrap();
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
        }
    }

    #[test]
    fn the_small_suite_passes_on_the_cpu() {
        let mut outcomes = Vec::new();
        smoke(&Device::cpu(), &mut |step| {
            if let Step::Outcome { outcome, .. } = step {
                outcomes.push(outcome.clone());
            }
        });
        assert_eq!(outcomes.len(), 3 + 12 + 1 + 3 + 1);
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(1..))), "{outcomes:?}");
    }
}
