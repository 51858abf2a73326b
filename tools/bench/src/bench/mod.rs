//! `cargo xtask bench`: what each codec costs in time and accuracy, and saves in bytes, on this machine.

mod calls;
mod chart;
mod collective;
mod labels;
mod measure;
mod peers;
mod quality;
mod report;
mod schema;
mod settings;
mod show;
pub(crate) mod size;
pub(crate) mod source;
pub(crate) mod table;
mod trade;
mod trade_chart;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gradwire::backend::cpu::{Cpu, Simd};
use gradwire::{BackendKind, Device, Dtype};
use gradwire_tools::checkout;
use indicatif::{ProgressBar, ProgressStyle};

use self::measure::{Measured, Planned, Stage};
use self::report::Report;
use self::schema::PeerRow;
use self::source::Source;
use crate::jobs::list::{self, Entry};

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which backend: cpu, wgpu or cuda. Without it, the best device of this machine.
    #[arg(long, value_parser = gradwire_tests::require::parse_kind)]
    device: Option<BackendKind>,
    /// On the CPU, with these vector instructions instead of the widest that it has: what other machines get.
    #[arg(long, conflicts_with = "trade")]
    simd: Option<Width>,
    /// Only this codec, such as qsgd, topk or powersgd; a name that is none tells them all.
    #[arg(long, value_parser = list::codec)]
    codec: Option<&'static str>,
    /// Gradients in a safetensors file. Without it, the real ones in benches/data.
    #[arg(long, value_name = "FILE", conflicts_with = "size")]
    input: Option<PathBuf>,
    /// A synthetic gradient of this many elements, up to 2^28: 1000000, 2^24 or 16M.
    #[arg(long, value_name = "N")]
    size: Option<String>,
    /// Type of the gradient that is encoded [default: that of the file's tensors, if it is one, or f32].
    #[arg(long)]
    dtype: Option<Type>,
    /// Where the JSON goes [default: target/bench/bench.json of the checkout, or bench.json in the current folder].
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where the chart goes, without .svg and .png [default: beside the JSON's default, bench].
    #[arg(long, value_name = "STEM")]
    chart: Option<PathBuf>,
    /// Time numpy, torch and the standard library on the CPU too, and print ours over theirs.
    #[arg(long)]
    peers: bool,
    /// Draw only what is left of a gradient for the bytes sent: PowerSGD of rank 1 to 32 beside top-k and QSGD.
    #[arg(long, conflicts_with_all = ["codec", "dtype", "list", "size", "peers", "device"])]
    trade: bool,
    /// Print the settings and the devices, and measure nothing.
    #[arg(long)]
    list: bool,
    /// Measure an engine of collectives: messages between ranks, and the exchange of each algorithm.
    #[arg(long, conflicts_with_all = ["codec", "dtype", "list", "size", "peers", "device", "simd", "input", "trade", "chart"])]
    collective: bool,
    /// Which engine.
    #[arg(long, value_enum, default_value = "threads", requires = "collective")]
    engine: collective::Engine,
    /// How many ranks there are, of threads and GPUs; of MPI, the launcher says it.
    #[arg(long, default_value_t = 4, requires = "collective")]
    ranks: u32,
    /// The gradient is a square matrix with so many rows.
    #[arg(long, default_value_t = 1024, requires = "collective")]
    side: u64,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Width {
    Baseline,
    Avx2,
    Avx512,
}

impl From<Width> for Simd {
    fn from(of: Width) -> Self {
        match of {
            Width::Baseline => Self::Baseline,
            Width::Avx2 => Self::Avx2,
            Width::Avx512 => Self::Avx512,
        }
    }
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

/// Measures an engine, prints the tables, and writes the JSON where one was asked for.
fn exchanges(args: &Args) -> Result<(), String> {
    if let Some(json) = &args.json {
        checkout::check_writable(json, "--json")?;
    }
    let Some(measured) = collective::measure(args.engine, args.ranks, args.side)? else { return Ok(()) };
    measured.print();
    let Some(path) = &args.json else { return Ok(()) };
    let text = serde_json::to_string_pretty(&measured).map_err(|e| e.to_string())?;
    std::fs::write(path, text).map_err(|e| format!("{} cannot be written: {e}", path.display()))
}

/// Measures, prints the table, and writes the JSON and the chart.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let start = Instant::now();
    if args.collective {
        return exchanges(args);
    }
    if let Some(kind) = args.device.filter(|kind| args.simd.is_some() && *kind != BackendKind::Cpu) {
        return Err(format!("--simd is of the CPU, and --device asks for {kind}; leave one out"));
    }
    let mut entries = list::all();
    entries.retain(|entry| args.codec.is_none_or(|codec| codec == entry.codec()));
    let dtype = args.dtype.map(Dtype::from);
    if args.list {
        return show::list(&entries, dtype.unwrap_or(Dtype::F32), args.device);
    }
    let size = args.size.as_deref().map(size::parse).transpose()?;
    let peers = if args.peers { peers::of(args.codec) } else { Vec::new() };
    if let Some(codec) = args.codec.filter(|_| args.peers && peers.is_empty()) {
        return Err(format!("--peers has no script for {codec}, which --codec asks for; leave one out"));
    }
    if let Some(dtype) = dtype.filter(|dtype| args.peers && *dtype != Dtype::F32) {
        return Err(format!("--peers compares f32 gradients, and --dtype asks for {}; leave one out", dtype.name()));
    }
    if args.peers && checkout::checkout().is_none() {
        return Err("--peers runs the scripts in benches/peers; call it in a checkout of the repository".to_owned());
    }
    if args.trade {
        return trade_alone(args);
    }
    let json = args.json.clone().unwrap_or_else(|| checkout::results().join("bench.json"));
    let chart = args.chart.clone().unwrap_or_else(|| checkout::results().join("bench"));
    // Before the measurements, so that a mistyped path does not cost them.
    check_writable(&json, &[&chart, &beside(&chart)])?;
    let source = source::load(args.input.as_deref(), size, dtype)?;
    show::left_out(&source.left_out);
    let dtype = source.dtype;
    if args.peers && dtype != Dtype::F32 {
        return Err(format!("--peers compares f32 gradients, and the source is {}; add --dtype f32", source.label));
    }
    let device = match args.simd {
        Some(width) => Device::from_cpu(Cpu::with_simd(width.into()).map_err(|e| e.to_string())?),
        None => crate::verify::open(args.device)?,
    };
    let chosen = match args.device {
        _ if args.simd.is_some() => "asked for with --simd".to_owned(),
        Some(kind) => format!("asked for with --device {kind}"),
        None if device.why().is_empty() => "the first choice".to_owned(),
        None => "the best that this machine offers".to_owned(),
    };
    show::device(&device, &chosen);
    let Staged { mut stage, elements, planned, left_out: mut missing } = stage(&device, &source, size, &entries)?;
    let bar = progress(planned.len() + peers.len())?;
    let timed = measure_all(&device, &source, &planned, &mut stage, &bar)?;
    let (copy, range) = stage.copy_rate();
    // The peers need the memory and the caches.
    drop(stage);
    let rows = timed.iter().zip(&planned).map(|(m, planned)| m.row(&planned.entry, &device, dtype, copy)).collect();
    let mut theirs = Vec::new();
    if args.peers {
        theirs = peers::standard_library(&source.repeated(elements), &entries)?;
        theirs.extend(run_peers(&peers, &bar, &json, elements, &entries, &mut missing));
    }
    let traded = if args.codec.is_none() && !source.synthetic {
        bar.set_position(0);
        trade::measure(&source, &bar)?
    } else {
        Vec::new()
    };
    bar.finish_and_clear();

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
        peers: theirs,
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

/// Fails where results could not be written; says where they go, where that is not where everybody looks.
fn check_writable(json: &Path, charts: &[&Path]) -> Result<(), String> {
    checkout::check_writable(json, "--json")?;
    for file in charts.iter().flat_map(|stem| chart::files(stem)) {
        checkout::check_writable(&file, "--chart")?;
    }
    if checkout::checkout().is_none() {
        show::outside(json);
    }
    Ok(())
}

/// What is left for the bytes sent, and nothing that takes time: the numbers, a table and the chart.
fn trade_alone(args: &Args) -> Result<(), String> {
    let json = args.json.clone().unwrap_or_else(|| checkout::results().join("low-rank.json"));
    let chart = args.chart.clone().unwrap_or_else(|| checkout::results().join("low-rank"));
    check_writable(&json, &[&chart])?;
    let source = &source::load(args.input.as_deref(), None, Dtype::F32)?;
    show::left_out(&source.left_out);
    let bar = progress(0)?;
    let rows = trade::measure(source, &bar)?;
    bar.finish_and_clear();
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
    let bar = ProgressBar::new(steps as u64).with_style(style);
    // An entry of a model of thousands of tensors takes seconds: the time that is shown goes on.
    bar.enable_steady_tick(Duration::from_millis(200));
    Ok(bar)
}

/// The tensor to time on a device, and what is timed.
struct Staged<'d> {
    stage: Stage<'d>,
    elements: usize,
    planned: Vec<Planned>,
    /// Why entries are not timed.
    left_out: Vec<String>,
}

/// Where no size was asked for and the device cannot hold the usual one, half of it will do, and half of that.
fn stage<'d>(
    device: &'d Device,
    source: &Source,
    size: Option<usize>,
    entries: &[Entry],
) -> Result<Staged<'d>, String> {
    let mut elements = size.unwrap_or_else(|| measure::default_elements(device));
    loop {
        let staged = measure::plan(device, source, elements, entries).and_then(|(planned, left_out)| {
            Ok(Staged { stage: Stage::new(device, source, elements, &planned)?, elements, planned, left_out })
        });
        match staged {
            Ok(staged) if staged.planned.is_empty() => return Err(staged.left_out.join("\n")),
            Ok(staged) => return Ok(staged),
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
    planned: &[Planned],
    stage: &mut Stage<'_>,
    bar: &ProgressBar,
) -> Result<Vec<Measured>, String> {
    let mut all = Vec::with_capacity(planned.len());
    for planned in planned {
        let entry = &planned.entry;
        bar.set_message(format!("{} {}", entry.series(), entry.label()));
        bar.tick();
        let mut measured = stage.measure(planned)?;
        // A quantizer's synthetic tensor is what was timed; a file's tensors are compressed one by one.
        if !source.synthetic || measured.accuracy.is_none() {
            measured.accuracy = Some(quality::of_tensors(device, entry, source)?);
        }
        let row = measured.row(entry, device, source.dtype, f64::NAN);
        bar.suspend(|| show::measured(&format!("{} {}", entry.series(), entry.label()), &row));
        all.push(measured);
        bar.inc(1);
    }
    Ok(all)
}

fn run_peers(
    peers: &[&peers::Peer],
    bar: &ProgressBar,
    json: &Path,
    elements: usize,
    entries: &[Entry],
    missing: &mut Vec<String>,
) -> Vec<PeerRow> {
    let mut rows = Vec::new();
    let (scripts, scratch) =
        (checkout::root().join("benches/peers"), json.parent().unwrap_or(Path::new(".")).join("peers"));
    for peer in peers {
        bar.set_message(format!("{}, in Python", peer.name));
        bar.tick();
        match peer.run(&scripts, &scratch, elements, entries) {
            Ok(theirs) => rows.extend(theirs),
            Err(line) => missing.push(line),
        }
        bar.inc(1);
    }
    rows
}
