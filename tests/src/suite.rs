//! Everything, against one device, with a verdict per codec and check.

use std::cell::RefCell;

use gradwire::{BackendKind, Codec, CodecId, Device};

use crate::cases::{self, Case};
use crate::conformance::{self, Outcome};
use crate::formula::{CODECS, Kind};
use crate::low_rank::MODEL;
use crate::low_rank_checks::{self, SMALL};
use crate::{averages, models, properties, selections, sparse, vectors};

/// What one check of one codec came to.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The codec.
    pub codec: &'static str,
    /// What was checked, and against what.
    pub check: &'static str,
    /// Results compared.
    pub compared: u64,
    /// What failed; empty when nothing did.
    pub failures: Vec<String>,
}

pub use crate::depth::Depth;

fn codec_name(kind: Kind) -> &'static str {
    kind.codec().name()
}

/// What an observer of the suite hears.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// What is checked next.
    Next(&'a str),
    /// What came of a part of a check, of which there may be many.
    Outcome {
        /// The codec.
        codec: &'static str,
        /// What was checked.
        check: &'static str,
        /// How many results were compared, or what failed.
        outcome: &'a Outcome,
    },
}

/// The environment variable that names the one codec of which [`run`] makes checks: one of [`codecs`].
pub const CODEC: &str = "GRADWIRE_CODEC";

/// The codecs by the names that [`CODEC`] takes, and as verdicts have them.
pub fn codecs() -> impl Iterator<Item = (&'static str, &'static str)> {
    let bucketed = CodecId::ALL.iter().map(|codec| (codec.file(), codec.name()));
    bucketed.chain([("topk", "top-k"), ("powersgd", "PowerSGD")])
}

/// The codec that the environment asks for; none for all of them.
fn only_codec() -> Option<&'static str> {
    let asked = std::env::var(CODEC).ok()?;
    let names = || codecs().map(|(name, _)| name).collect::<Vec<_>>().join(", ");
    let found = codecs().find(|(name, _)| *name == asked);
    let (_, codec) = found.unwrap_or_else(|| panic!("{CODEC} is `{asked}`; it can be {}", names()));
    Some(codec)
}

/// Runs the suite for a test; `progress` hears of each check before it runs. Where [`CODEC`] names a codec, no other's
/// checks are run.
///
/// # Panics
/// If it names none.
pub fn run(device: &Device, depth: Depth, progress: &mut dyn FnMut(&str)) -> Vec<Verdict> {
    run_share(device, depth, (0, 1), progress)
}

/// As [`run`], for the codecs whose place in [`codecs`] leaves `share` when it is divided by `of`.
///
/// # Panics
/// As [`run`].
pub fn run_share(
    device: &Device,
    depth: Depth,
    (share, of): (usize, usize),
    progress: &mut dyn FnMut(&str),
) -> Vec<Verdict> {
    let only = only_codec();
    let names: Vec<_> = codecs().map(|(_, codec)| codec).skip(share).step_by(of).collect();
    let wanted = |codec: &str| names.contains(&codec) && only.is_none_or(|only| only == codec);
    checks(device, depth, &wanted, &mut |step| {
        if let Step::Next(what) = step {
            progress(what);
        }
    })
}

/// Runs the suite; `observer` hears of everything as it comes, for whoever may be stopped before the end.
pub fn watch(device: &Device, depth: Depth, observer: &mut dyn FnMut(Step<'_>)) -> Vec<Verdict> {
    checks(device, depth, &|_| true, observer)
}

fn checks(
    device: &Device,
    depth: Depth,
    wanted: &dyn Fn(&str) -> bool,
    observer: &mut dyn FnMut(Step<'_>),
) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> = Vec::new();
    // Two closures speak to one observer, never at once.
    let observer = RefCell::new(observer);
    let progress: &mut dyn FnMut(&str) = &mut |what| (observer.borrow_mut())(Step::Next(what));
    let mut note = |codec: &'static str, check: &'static str, outcome: Outcome| {
        (observer.borrow_mut())(Step::Outcome { codec, check, outcome: &outcome });
        let index = verdicts.iter().position(|v| v.codec == codec && v.check == check).unwrap_or_else(|| {
            verdicts.push(Verdict { codec, check, compared: 0, failures: Vec::new() });
            verdicts.len() - 1
        });
        match outcome {
            Ok(compared) => verdicts[index].compared += compared,
            Err(failure) => verdicts[index].failures.push(failure),
        }
    };
    for codec in CodecId::ALL.iter().filter(|codec| wanted(codec.name())) {
        progress(&format!("golden vectors, {}", codec.name()));
        note(codec.name(), "golden vectors of format version 1", vectors::check(device, codec.file()));
    }
    // What the CPU does is held against the oracle in whole, but in an inner loop. Another device's bytes are held
    // against the CPU's, and a sweep of it is of use where kernels tell inputs apart: by the shape of a bucket, by the
    // formula, by type and feedback.
    let whole = is_whole(device, depth);
    let real = crate::data::digits();
    let part = &real[..real.len().min(100_000)];
    let settings = cases::settings();
    for (index, case) in settings.iter().enumerate().filter(|(_, case)| wanted(codec_name(case.kind))) {
        // Five shares no factor with the number of kinds that the settings go through.
        if depth == Depth::Quick && !whole && !index.is_multiple_of(5) {
            continue;
        }
        progress(&case.label());
        let codec = codec_name(case.kind);
        let (edges, reals) = ("bytes equal the oracle's, edge cases", "bytes equal the oracle's, real gradients");
        if whole {
            for (name, fill) in cases::FILLS {
                note(codec, edges, conformance::against_oracle(device, case, &fill(1500), name));
            }
            note(codec, reals, conformance::against_oracle(device, case, part, "real"));
        } else {
            let (name, fill) = cases::FILLS[(index + 5) % cases::FILLS.len()];
            note(codec, edges, conformance::against_oracle(device, case, &fill(1500), name));
            note(codec, reals, conformance::against_oracle(device, case, &part[..2000.min(part.len())], "real"));
        }
        if device.kind() == BackendKind::Cpu {
            continue;
        }
        let (edges, reals) = ("bytes equal the CPU's, edge cases", "bytes equal the CPU's, real gradients");
        if whole {
            note(codec, edges, conformance::edges(device, case));
            let real = if depth == Depth::Full { &real } else { part };
            note(codec, reals, conformance::against_cpu(device, case, real, "real"));
        } else {
            note(codec, edges, conformance::edges_in_turn(device, case, index));
            // More than a block of the kernels, and a tail.
            let some = &part[..20_011.min(part.len())];
            note(codec, reals, conformance::against_cpu_in(device, case, some, "real", index % 3));
        }
    }
    if device.kind() != BackendKind::Cpu {
        let boundaries = boundary_settings().into_iter().enumerate();
        for (index, case) in boundaries.filter(|(_, case)| wanted(codec_name(case.kind))) {
            progress(&format!("lengths, {}", case.label()));
            let outcome = match depth {
                _ if whole => conformance::lengths(device, &case),
                Depth::Quick => conformance::lengths_in_turn(device, &case, index, 4),
                _ => conformance::lengths_in_turn(device, &case, index, 1),
            };
            note(codec_name(case.kind), "bytes equal the CPU's, boundary lengths", outcome);
        }
        if depth == Depth::Full {
            for case in [
                Case::new(Kind::QsgdMax, 4, Some(512)),
                Case::new(Kind::Uniform, 8, Some(8192)),
                Case::new(Kind::QsgdL2, 2, None),
            ]
            .into_iter()
            .filter(|case| wanted(codec_name(case.kind)))
            {
                progress(&format!("above 2^25 elements, {}", case.label()));
                note(codec_name(case.kind), "bytes equal the CPU's, above 2^25 elements", large(device, &case));
            }
        }
    }
    for kind in Kind::ALL.into_iter().filter(|kind| wanted(codec_name(*kind))) {
        let bits = kind.codec().widths().iter().copied().filter(|bits| *bits <= 8).max().unwrap_or(1);
        let buckets = [Some(64), Some(256), Some(2048), None];
        for bucket in buckets.into_iter().filter(|bucket| kind.formula().page().has_bucket(*bucket)) {
            let case = Case::new(kind, bits, bucket);
            // Of 5000 elements; without a bound there is no contraction either.
            let scales = kind.formula().page().flags & 2 != 0;
            let contractive = scales && (1.0..f64::INFINITY).contains(&case.omega(5000));
            let outcome = conformance::keeps_residual(device, &Case { contractive, ..case });
            note(codec_name(kind), "a bucket with a NaN keeps its residual", outcome);
        }
    }
    many_tensors(device, wanted, progress, &mut note);
    if wanted("top-k") {
        top_k(device, whole, progress, &mut note);
    }
    if wanted("PowerSGD") {
        power_sgd(device, depth, progress, &mut note);
    }
    statistics(device, depth, wanted, progress, &mut note);
    verdicts
}

/// Whether a device's sweeps are run whole.
fn is_whole(device: &Device, depth: Depth) -> bool {
    depth.sweeps() || (device.kind() == BackendKind::Cpu && depth == Depth::Default)
}

/// One setting for each shape that a kernel distinguishes.
fn boundary_settings() -> Vec<Case> {
    let mut cases = Vec::new();
    for bucket in [Some(32), Some(128), Some(512), Some(2048), Some(8192), None] {
        cases.push(Case::new(Kind::QsgdL2, 3, bucket));
        cases.push(Case::new(Kind::Uniform, 7, bucket));
    }
    cases
}

/// A tensor that crosses the default 128 MiB binding and what one launch covers.
fn large(device: &Device, case: &Case) -> Outcome {
    let n = (1usize << 25) + 4097;
    let x: Vec<f32> = (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) as i32) as f32 * 1e-12).collect();
    let fail = |e: gradwire::Error| format!("{}, n = {n}: {e}", case.label());
    let cpu = Device::cpu();
    let expected = cpu.encode(&case.codec(), &x, cases::seed()).map_err(fail)?;
    let got = device.encode(&case.codec(), &x, cases::seed()).map_err(fail)?;
    if let Some(at) = got.as_bytes().iter().zip(expected.as_bytes()).position(|(a, b)| a != b) {
        return Err(format!("{}, n = {n}: payload differs first at byte {at}", case.label()));
    }
    let (mut a, mut b) = (x.clone(), x);
    device.decode_add(&expected, 0.5, &mut a).map_err(fail)?;
    cpu.decode_add(&expected, 0.5, &mut b).map_err(fail)?;
    match a.iter().zip(&b).position(|(a, b)| a.to_bits() != b.to_bits()) {
        Some(at) => Err(format!("{}, n = {n}: decode-add differs first at element {at}", case.label())),
        None => Ok(2),
    }
}

fn many_tensors(
    device: &Device,
    wanted: &dyn Fn(&str) -> bool,
    progress: &mut dyn FnMut(&str),
    note: &mut dyn FnMut(&'static str, &'static str, Outcome),
) {
    let layout = models::awkward();
    for case in models::settings().into_iter().filter(|case| wanted(codec_name(case.kind))) {
        progress(&format!("many tensors, {}", case.label()));
        let outcome = models::against_cpu(device, &case, &layout);
        note(codec_name(case.kind), "many tensors at once are what each is alone", outcome);
    }
}

fn top_k(
    device: &Device,
    whole: bool,
    progress: &mut dyn FnMut(&str),
    note: &mut dyn FnMut(&'static str, &'static str, Outcome),
) {
    progress("top-k");
    let golden = vectors::topk::committed().and_then(|v| vectors::topk::check(device, &v));
    note("top-k", "golden vectors of format version 1", golden);
    // As many runs for the CPU, as many tiles for the others.
    let n = if device.kind() == BackendKind::Cpu { 70_001 } else { 20_011 };
    for (index, fill) in sparse::FILLS.into_iter().chain(selections::MISLEADING).enumerate() {
        progress(&format!("top-k, {}", fill.0));
        // A third of the counts with each input, in turn: kernels tell counts and inputs apart, and not each of the one
        // with each of the other.
        let counts: Vec<usize> = sparse::counts(n)
            .into_iter()
            .enumerate()
            .filter(|(at, _)| whole || (at + index) % 3 == 0)
            .map(|c| c.1)
            .collect();
        let outcome = sparse::counts_against_oracle(device, fill, n, &counts);
        note("top-k", "entries equal the oracle's; what is lost is bounded", outcome);
        if whole || index % 3 == 0 {
            note("top-k", "error feedback loses nothing", sparse::feedback(device, fill, 10_007));
        }
    }
    progress("top-k, halves, quantized values and merges");
    note("top-k", "f16 and bf16 keep their bits", sparse::halves(device, 5000));
    note("top-k", "values quantized by QSGD", sparse::quantized(device, 5000));
    for workers in [2, 5, 8] {
        note("top-k", "merges lose nothing", sparse::merges(device, workers, 400, 8));
    }
    note("top-k", "NaN and infinity refused, residual kept", selections::refuses_not_finite(device));
    if device.kind() == BackendKind::Cpu {
        return;
    }
    let fill_of = |wanted: &str| {
        let fill = sparse::FILLS.into_iter().find(|(name, _)| *name == wanted);
        fill.map_or_else(Vec::new, |(_, fill)| fill(n))
    };
    // Of keys that are neighbours, each slot of a kernel has some on either side of the last kept one.
    let (odd, near) = (fill_of("some NaN"), fill_of("the same leading bits"));
    for (index, (label, codec)) in selections::settings(n as u64).into_iter().enumerate() {
        progress(&format!("top-k, {label}"));
        for (turn, x) in [&odd, &near].into_iter().enumerate() {
            let outcome = if whole {
                selections::against_cpu(device, &codec, &label, x)
            } else {
                selections::against_cpu_in(device, &codec, &label, x, if turn == 0 { index % 3 } else { 0 })
            };
            note("top-k", "bytes equal the CPU's, every selection", outcome);
        }
    }
    note("top-k", "bytes equal the CPU's, merges", selections::merges(device, 3001));
}

fn power_sgd(
    device: &Device,
    depth: Depth,
    progress: &mut dyn FnMut(&str),
    note: &mut dyn FnMut(&'static str, &'static str, Outcome),
) {
    progress("golden vectors, PowerSGD");
    note("PowerSGD", "golden vectors", low_rank_checks::golden(device));
    if device.kind() == BackendKind::Cpu {
        return;
    }
    let models: &[(&str, &[gradwire::Matrix])] = match depth {
        Depth::Quick | Depth::Default | Depth::Sweeps => &[("a small model", &SMALL)],
        Depth::Full => &[("a small model", &SMALL), ("a model", &MODEL)],
    };
    for (name, model) in models {
        progress(&format!("PowerSGD, {name}"));
        note("PowerSGD", "factors and output are near the CPU's", low_rank_checks::near_the_cpu(device, model));
        note("PowerSGD", "a state on the device has the same bits", low_rank_checks::resident(device, model));
    }
}

fn statistics(
    device: &Device,
    depth: Depth,
    wanted: &dyn Fn(&str) -> bool,
    progress: &mut dyn FnMut(&str),
    note: &mut dyn FnMut(&'static str, &'static str, Outcome),
) {
    // What holds of the CPU's bytes holds of a device's that are equal to them, and the quick depth compares those.
    if depth == Depth::Quick && device.kind() != BackendKind::Cpu {
        return;
    }
    let runs = match (depth, device.kind()) {
        (Depth::Full, _) => 1000,
        (_, BackendKind::Cpu) => 400,
        (_, _) => 100,
    };
    // What holds of the CPU's bytes holds of a device's that are equal to them. Where that was compared in part only,
    // one setting of each formula is left here.
    let whole = is_whole(device, depth);
    let codecs = || CODECS.iter().filter(|tests| wanted(tests.codec.name()));
    let mut cases: Vec<Case> = codecs().flat_map(|tests| tests.stochastic).copied().collect();
    cases.retain(|case| whole || case.bucket == Some(512));
    let x = cases::normal(4096 + 77, 31);
    for case in cases.iter().copied() {
        progress(&format!("unbiasedness and variance, {}", case.label()));
        let codec = codec_name(case.kind);
        note(codec, "unbiased, with the variance of the theorem", properties::unbiased(device, &case, &x, runs));
        note(codec, "error of an element at most a level", properties::bounded(device, &case, &x));
        note(codec, "scalars do not depend on order", properties::permutation(device, &case, &x));
        note(codec, "payload within 1 % of theory", properties::size(device, &case));
        // With the L2 norm, a bucket of levels is not on levels, but few of its elements are kept.
        if case.kind != Kind::QsgdL2 {
            note(codec, "values on levels are exact", properties::exact_on_levels(device, &case));
        } else {
            note(codec, "support at most s (s + sqrt n)", properties::sparsity(device, &case, &x, 50));
        }
    }
    for case in codecs().flat_map(|tests| tests.independent) {
        let outcome = averages::independent(device, case, &x, 64, |rank| cases::seed().worker(rank));
        note(codec_name(case.kind), "rounding errors of workers average out", outcome);
    }
    for tests in codecs() {
        let codec = tests.codec.name();
        progress(&format!("theorems of its own, {codec}"));
        (tests.theorems)(device, &x, &mut |check, outcome| note(codec, check, outcome));
    }
    let others = codecs().flat_map(|tests| tests.feedback).copied();
    for case in cases.into_iter().chain(others) {
        progress(&format!("error feedback, {}", case.label()));
        let contractive = !case.kind.formula().is_nearest() && case.omega(x.len()) >= 1.0;
        let case = Case { contractive, ..case };
        if case.codec().plan(x.len(), gradwire::Dtype::F32).and_then(|p| p.with_feedback()).is_err() {
            continue;
        }
        note(
            codec_name(case.kind),
            "error feedback loses nothing and stays bounded",
            properties::feedback(device, &case, &x, 30),
        );
    }
}
