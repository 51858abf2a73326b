//! `cargo xtask bench`: what each codec costs in time and accuracy, and saves in bytes, on this machine.

mod chart;
mod labels;
mod measure;
mod peers;
mod powersgd;
mod quality;
mod report;
mod settings;
mod show;
mod size;
mod source;
mod table;
mod timing;
mod topk;
mod trade;
mod trade_chart;

use std::path::{Path, PathBuf};
use std::time::Instant;

use gradwire::{BackendKind, Device, Dtype};
use gradwire_tests::cases::Case;
use indicatif::{ProgressBar, ProgressStyle};

use self::measure::{Measured, Stage};
use self::peers::PeerRow;
use self::report::Report;
use self::settings::Chosen;
use self::source::Source;

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which backend: cpu, wgpu or cuda. Without it, the best device of this machine.
    #[arg(long, value_parser = crate::verify::parse_kind)]
    device: Option<BackendKind>,
    /// Only this codec.
    #[arg(long)]
    codec: Option<Chosen>,
    /// Gradients in a safetensors file. Without it, the real ones in benches/data.
    #[arg(long, value_name = "FILE", conflicts_with = "size")]
    input: Option<PathBuf>,
    /// A synthetic gradient of this many elements, up to 2^28: 1000000, 2^24 or 16M.
    #[arg(long, value_name = "N")]
    size: Option<String>,
    /// Type of the gradient that is encoded.
    #[arg(long, default_value = "f32")]
    dtype: Type,
    /// Where the JSON goes [default: target/bench/bench.json].
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where the chart goes, without .svg and .png [default: target/bench/bench].
    #[arg(long, value_name = "STEM")]
    chart: Option<PathBuf>,
    /// Time numpy and torch too, and print ours over theirs.
    #[arg(long)]
    peers: bool,
    /// Time top-k on the CPU instead, beside the standard library's selection, and numpy's with --peers.
    #[arg(long, conflicts_with_all = ["codec", "dtype", "json", "chart", "list"])]
    top_k: bool,
    /// Time a step of PowerSGD on the CPU instead, beside numpy's and torch's with --peers.
    #[arg(long, conflicts_with_all = ["codec", "dtype", "json", "chart", "list", "top_k", "input", "size"])]
    powersgd: bool,
    /// Draw only what is left of a gradient for the bytes sent: PowerSGD of rank 1 to 32 beside top-k and QSGD.
    #[arg(long, conflicts_with_all = ["codec", "dtype", "list", "top_k", "powersgd", "size", "peers", "device"])]
    trade: bool,
    /// Print the settings and the devices, and measure nothing.
    #[arg(long)]
    list: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Type {
    F32,
    F16,
    Bf16,
}

impl From<Type> for Dtype {
    fn from(of: Type) -> Self {
        match of {
            Type::F32 => Self::F32,
            Type::F16 => Self::F16,
            Type::Bf16 => Self::Bf16,
        }
    }
}

/// Measures, prints the table, and writes the JSON and the chart.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let start = Instant::now();
    let (cases, dtype) = (settings::cases(args.codec), args.dtype.into());
    if args.list {
        return show::list(&cases, dtype);
    }
    let size = args.size.as_deref().map(size::parse).transpose()?;
    if args.peers && (args.codec == Some(Chosen::Uniform) || dtype != Dtype::F32) {
        return Err("--peers compares QSGD of f32 gradients; leave out --codec uniform and --dtype".to_owned());
    }
    if args.top_k {
        let source = args.input.as_deref().map(|path| source::load(Some(path), None, dtype)).transpose()?;
        return topk::run(source.as_ref(), size, args.peers);
    }
    if args.powersgd {
        return powersgd::run(args.peers);
    }
    let source = source::load(args.input.as_deref(), size, dtype)?;
    let json = args.json.clone().unwrap_or_else(|| crate::test::root().join("target/bench/bench.json"));
    let chart = args.chart.clone().unwrap_or_else(|| crate::test::root().join("target/bench/bench"));
    if args.trade {
        return trade_alone(&source, args);
    }
    let device = crate::verify::open(args.device)?;
    let chosen = match args.device {
        Some(kind) => format!("asked for with --device {kind}"),
        None if device.why().is_empty() => "the first choice".to_owned(),
        None => "the best that this machine offers".to_owned(),
    };
    show::device(&device, &chosen);
    // Before the measurements, so that a mistyped path does not cost them.
    report::make_folder(&json)?;
    report::make_folder(&chart)?;

    let steps = cases.len() + if args.peers { peers::PEERS.len() } else { 0 };
    let bar = progress(steps)?;
    let (mut stage, elements) = stage(&device, &source, size, &cases)?;
    let timed = measure_all(&device, &source, &cases, &mut stage, &bar)?;
    let (copy, range) = stage.copy_rate();
    // The peers need the memory and the caches.
    drop(stage);
    let rows = timed.iter().zip(&cases).map(|(m, case)| m.row(case, &device, dtype, copy)).collect();
    let (peers, missing) = if args.peers { run_peers(&bar, &json, elements) } else { Default::default() };
    bar.finish_and_clear();
    let traded = if args.codec.is_none() && !source.synthetic { trade::measure(&source)? } else { Vec::new() };

    let report = Report {
        device: device.to_string(),
        chosen,
        why: device.why().iter().map(ToString::to_string).collect(),
        copy_gbps: copy / 1e9,
        copy_gbps_range: range.map(|r| r / 1e9),
        source: source.label.clone(),
        elements_compared: source.elements(),
        elements_timed: elements,
        seconds: start.elapsed().as_secs_f64(),
        rows,
        peers,
        traded,
    };
    show::results(&report, source.synthetic, &missing);
    report.write(&json)?;
    let mut drawn = chart::draw(&chart, &report)?.to_vec();
    if !report.traded.is_empty() {
        drawn.extend(trade_chart::draw(&beside(&chart), &report.traded)?);
    }
    show::files(&report, &json, &drawn);
    Ok(())
}

/// The stem of the second chart.
fn beside(chart: &Path) -> PathBuf {
    let mut stem = chart.as_os_str().to_owned();
    stem.push("-low-rank");
    PathBuf::from(stem)
}

/// What is left for the bytes sent, and nothing that takes time: the numbers, a table and the chart.
fn trade_alone(source: &Source, args: &Args) -> Result<(), String> {
    let named = |given: &Option<PathBuf>, usual: &str| given.clone().unwrap_or_else(|| crate::test::root().join(usual));
    let json = named(&args.json, "target/bench/low-rank.json");
    let chart = named(&args.chart, "target/bench/low-rank");
    report::make_folder(&json)?;
    report::make_folder(&chart)?;
    let rows = trade::measure(source)?;
    if rows.is_empty() {
        return Err(format!(
            "{}: no tensor is a matrix that PowerSGD would compress; give --input a file with one",
            source.label
        ));
    }
    let text = serde_json::to_string_pretty(&rows).map_err(|e| format!("the results do not fit JSON: {e}"))?;
    std::fs::write(&json, text + "\n")
        .map_err(|e| format!("{} could not be written: {e}; name another with --json", json.display()))?;
    let drawn = trade_chart::draw(&chart, &rows)?;
    show::traded(&source.label, &rows, &json, &drawn);
    Ok(())
}

fn progress(steps: usize) -> Result<ProgressBar, String> {
    let style =
        ProgressStyle::with_template("{bar:30} {pos}/{len}, {elapsed}  {wide_msg}").map_err(|e| e.to_string())?;
    Ok(ProgressBar::new(steps as u64).with_style(style))
}

/// The tensor to time on the device. Where no size was asked for and the device cannot hold the usual one, half of it
/// will do, and half of that.
fn stage<'d>(
    device: &'d Device,
    source: &Source,
    size: Option<usize>,
    cases: &[Case],
) -> Result<(Stage<'d>, usize), String> {
    let mut elements = size.unwrap_or_else(|| measure::default_elements(device));
    loop {
        match Stage::new(device, source, elements, cases) {
            Ok(stage) => return Ok((stage, elements)),
            Err(_) if size.is_none() && elements > 1 << 20 => elements /= 2,
            Err(e) => {
                return Err(format!("{} elements on {device}: {e}; try a smaller --size", size::grouped(elements)));
            }
        }
    }
}

fn measure_all(
    device: &Device,
    source: &Source,
    cases: &[Case],
    stage: &mut Stage<'_>,
    bar: &ProgressBar,
) -> Result<Vec<Measured>, String> {
    let mut all = Vec::with_capacity(cases.len());
    for case in cases {
        bar.set_message(settings::label(case));
        bar.tick();
        let mut measured = stage.measure(case)?;
        // A synthetic tensor is what was timed; a file's tensors are compressed one by one.
        if !source.synthetic {
            measured.accuracy = quality::of_tensors(device, case, source)?;
        }
        all.push(measured);
        bar.inc(1);
    }
    Ok(all)
}

fn run_peers(bar: &ProgressBar, json: &Path, elements: usize) -> (Vec<PeerRow>, Vec<String>) {
    let (mut rows, mut missing) = (Vec::new(), Vec::new());
    let scratch = json.parent().unwrap_or(Path::new(".")).join("peers");
    for peer in peers::PEERS {
        bar.set_message(format!("{}, in Python", peer.0));
        bar.tick();
        match peers::run(peer, &crate::test::root().join("benches/peers"), &scratch, elements) {
            Ok(theirs) => rows.extend(theirs),
            Err(line) => missing.push(line),
        }
        bar.inc(1);
    }
    (rows, missing)
}
