//! The operations that are run, and whether the machine code gives what the CPU gives.

use std::sync::Arc;

use gradwire::backend::cuda::Cuda;
use gradwire::{Device, Gradient, Matrix, PowerSgd, Seed, TopK};
use gradwire_kernels::presets::Preset;
use gradwire_kernels::presets::decode::DecodePreset;
use gradwire_tests::traffic::{self, Op};
use gradwire_tests::{cases, low_rank};
use gradwire_tools::side_by_side::side_by_side;
use half::bf16;

use super::error::SassError;
use super::machine::{Launched, Machine};
use super::tools::Tools;

/// Blocks of each launch of which is kept what they executed.
const KEPT: usize = 16;
/// Elements of a selection: as many as the page speaks of, since how many tiles a warp takes depends on it.
const SELECTED: usize = 1 << 26;
/// Elements of another one, for what becomes of it with the length.
const FEWER: usize = 1 << 24;
/// Rows and columns of a matrix.
const SIDE: u64 = 1024;
/// The shorter side of a matrix that is run for the longer one: one that compresses at this rank, since no factor is
/// computed of others.
fn thin(rank: u32) -> u64 {
    (4 * u64::from(rank)).max(64)
}

/// An operation that was run.
pub(super) struct Ran {
    pub(super) codec: String,
    pub(super) op: &'static str,
    /// Elements.
    pub(super) n: usize,
    /// Elements of which the page speaks.
    pub(super) of: u64,
    /// Bytes per element that it cannot do without.
    pub(super) floor: f64,
    pub(super) launched: Vec<Launched>,
    /// The same launches over matrices with as many rows, or as many columns, as that of which the page speaks, and few
    /// of the other; of PowerSGD alone.
    pub(super) thin: Vec<Vec<Launched>>,
    /// Codec, setting, operation and type by which a report of a GPU has it.
    pub(super) reported: Option<[String; 4]>,
}

/// What is asked for.
#[derive(Clone, Copy)]
enum What {
    Bucketed(traffic::Job),
    /// The part that is kept, of which type, and whether with feedback.
    TopK {
        part: f64,
        half: bool,
        feedback: bool,
        n: usize,
    },
    /// The rank, and the side of the matrix of which the page speaks.
    PowerSgd {
        rank: u32,
        side: u64,
    },
}

/// All operations of the page.
fn jobs() -> Vec<What> {
    let mut all: Vec<What> = traffic::jobs().into_iter().map(What::Bucketed).collect();
    let top_k = |part, half, feedback, n| What::TopK { part, half, feedback, n };
    all.extend([0.001, 0.01, 0.1].map(|part| top_k(part, false, false, SELECTED)));
    all.push(top_k(0.01, false, false, FEWER));
    all.push(top_k(0.01, true, false, SELECTED));
    all.push(top_k(0.01, false, true, SELECTED));
    all.extend([1, 4, 8, 32].map(|rank| What::PowerSgd { rank, side: 8192 }));
    all.push(What::PowerSgd { rank: 4, side: 2048 });
    all
}

/// The kernels of settings alone that a codec has.
fn of_setting(prefix: &str, names: impl Iterator<Item = &'static str>) -> Vec<String> {
    names.filter(|name| name.starts_with(prefix)).map(str::to_owned).collect()
}

impl What {
    /// The kernels that it may launch.
    fn kernels(self) -> Vec<String> {
        let named = |prefix: &str, names: &[&str]| names.iter().map(|name| format!("{prefix}_{name}")).collect();
        match self {
            Self::TopK { .. } => named("topk", &["sample", "filter", "rest", "emit", "settle", "count"]),
            Self::PowerSgd { .. } => named("powersgd", &["products", "factor", "left", "right", "gather", "expand"]),
            Self::Bucketed(job) => {
                let prefix = job.label.split(' ').next().unwrap_or("").to_lowercase().replace("1-bit", "onebit");
                match job.op {
                    Op::Decode | Op::DecodeAdd | Op::DecodeSum => {
                        let mut all: Vec<String> = named(&prefix, &["decode"]);
                        all.extend(of_setting(&prefix, DecodePreset::ALL.iter().map(|preset| preset.name())));
                        all
                    }
                    _ => {
                        let mut all: Vec<String> = named(&prefix, &["encode", "stats", "combine"]);
                        all.extend(of_setting(&prefix, Preset::ALL.iter().map(|preset| preset.name())));
                        all.push("finite_scan".to_owned());
                        all
                    }
                }
            }
        }
    }

    fn name(self) -> (String, &'static str) {
        match self {
            Self::Bucketed(job) => (job.label.to_owned(), job.op.name()),
            Self::TopK { part, half, feedback, n } => {
                let op = match (half, feedback) {
                    (true, _) => "select bf16",
                    (_, true) => "select f32 + feedback",
                    _ => "select f32",
                };
                let size = if n == SELECTED { String::new() } else { format!(", 2^{}", n.ilog2()) };
                (format!("top-k {} %{size}", (part * 1e4).round() / 1e2), op)
            }
            Self::PowerSgd { rank, side } => (format!("PowerSGD rank {rank}, {side} x {side}"), "step f32"),
        }
    }

    /// By which a report of a GPU has it: codec, setting, operation, type.
    fn reported(self) -> Option<[String; 4]> {
        let (name, op) = self.name();
        let of =
            |codec: &str, setting: &str, op: &str, dtype: &str| Some([codec, setting, op, dtype].map(str::to_owned));
        match self {
            Self::Bucketed(job) => {
                let (codec, setting) = name.split_once(' ')?;
                match job.op {
                    Op::EncodeF32 => of(codec, setting, "encode", "f32"),
                    Op::EncodeBf16 => of(codec, setting, "encode", "bf16"),
                    Op::EncodeFeedback => of(codec, setting, "encode + feedback", "f32"),
                    Op::Decode | Op::DecodeAdd => of(codec, setting, op, "f32"),
                    Op::DecodeSum => None,
                }
            }
            Self::TopK { half, feedback, .. } => {
                let setting = name.strip_prefix("top-k ")?;
                let op = if feedback { "encode + feedback" } else { "encode" };
                of("top-k", setting, op, if half { "bf16" } else { "f32" })
            }
            Self::PowerSgd { rank, side } => {
                of("PowerSGD", &format!("rank {rank}, {side} x {side}"), "step with feedback", "f32")
            }
        }
    }

    /// Runs it on the machine and on the CPU.
    fn run(self, machine: &Machine, device: &Device) -> Result<Ran, SassError> {
        let (codec, op) = self.name();
        let job = || format!("{codec}, {op}");
        let failed = |e: gradwire::Error| SassError::Job { job: job(), why: e.to_string() };
        let differs = || SassError::Differs { job: job() };
        machine.take_launched();
        let mut thin = Vec::new();
        let (n, of, floor) = match self {
            Self::Bucketed(what) => {
                let x = cases::normal(traffic::N, 5);
                let payload = Device::cpu().encode(&what.codec, &x, cases::seed()).map_err(failed)?;
                let payloads = vec![payload; traffic::SUMMED];
                let found = what.run(device, &x, &payloads).map_err(failed)?;
                if found != what.run(&Device::cpu(), &x, &payloads).map_err(failed)? {
                    return Err(differs());
                }
                (traffic::N, 1 << 26, None)
            }
            Self::TopK { part, half, feedback, n } => {
                let x = cases::normal(n, 5);
                let halves: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
                let gradient: Gradient<'_> = if half { (&halves).into() } else { (&x).into() };
                let codec = TopK::fraction(part);
                let mut results = Vec::new();
                for on in [device, &Device::cpu()] {
                    let mut residual = vec![0.0f32; if feedback { n } else { 0 }];
                    let payload = match feedback {
                        true => on.encode_sparse_with_feedback(&codec, gradient, &mut residual, cases::seed()),
                        false => on.encode_sparse(&codec, gradient, cases::seed()),
                    };
                    let bits: Vec<u32> = residual.iter().map(|v| v.to_bits()).collect();
                    results.push((payload.map_err(failed)?.as_bytes().to_vec(), bits));
                }
                if results[0] != results[1] {
                    return Err(differs());
                }
                let gradient = if half { 2.0 } else { 4.0 };
                (n, n as u64, Some(gradient + if feedback { 8.0 } else { 0.0 } + 8.0 * part))
            }
            Self::PowerSgd { rank, side } => {
                let n = (SIDE * SIDE) as usize;
                let x = cases::normal(n, 5);
                // The second step, which has a residual to take something off.
                let step = |on: &Device, rows: u64, columns: u64| -> Result<Vec<f32>, gradwire::Error> {
                    let mut state = PowerSgd::rank(rank).state(&[Matrix::new(rows, columns)], Seed::new(3))?;
                    let x = &x[..(rows * columns) as usize];
                    let mut output = vec![0.0f32; x.len()];
                    for on in [&Device::cpu(), on] {
                        on.low_rank_step(&mut state, x, &mut output, low_rank::alone)?;
                    }
                    Ok(output)
                };
                let short = self::thin(rank);
                for (rows, columns) in [(side, short), (short, side)] {
                    step(device, rows, columns).map_err(failed)?;
                    thin.push(machine.take_launched());
                }
                let results =
                    [step(&Device::cpu(), SIDE, SIDE).map_err(failed)?, step(device, SIDE, SIDE).map_err(failed)?];
                // Between backends a step differs by 4 * 514 * 2^-24 sqrt(r) |M| at most (docs/powersgd.md), where M is
                // the gradient and what the first step left of it.
                let norm = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt() * 2.0;
                let most = 4.0 * 514.0 / f64::from(1 << 24) * f64::from(rank).sqrt() * norm;
                let apart =
                    results[0].iter().zip(&results[1]).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
                if apart.is_nan() || apart > most {
                    return Err(differs());
                }
                (n, side * side, Some(20.0))
            }
        };
        let launched = machine.take_launched();
        let floor = match self {
            // A kernel's floor is beside those of the others; an operation's is that of its last one, which reads the
            // gradient.
            Self::Bucketed(job) => launched.iter().map(|l| job.floor(&l.kernel.code.name)).fold(0.0, f64::max),
            _ => floor.unwrap_or(0.0),
        };
        Ok(Ran { codec, op, n, of, floor, launched, thin, reported: self.reported() })
    }
}

/// Runs every operation that may launch a kernel whose name has `filter` in it, and keeps those that do. `wanted`
/// chooses among them by number.
///
/// # Errors
/// [`SassError::Job`] if one fails, [`SassError::Differs`] if it does not give what the CPU gives.
pub(super) fn all(
    tools: &Arc<Tools>,
    sm: u32,
    filter: &str,
    wanted: impl Fn(usize) -> bool,
) -> Result<Vec<Ran>, SassError> {
    let may = jobs().into_iter().filter(|job| job.kernels().iter().any(|name| name.contains(filter)));
    let jobs: Vec<What> = may.enumerate().filter(|(index, _)| wanted(*index)).map(|(_, job)| job).collect();
    let open = || {
        let machine = Arc::new(Machine::new(tools.clone(), sm, KEPT));
        let device = Cuda::with_driver(machine.clone(), None).map(Device::from_cuda);
        device
            .map(|device| (machine, device))
            .map_err(|e| SassError::Job { job: "opening".to_owned(), why: e.to_string() })
    };
    let done = side_by_side(&jobs, open, |opened, job| match opened {
        Ok((machine, device)) => job.run(machine, device),
        Err(e) => Err(SassError::Job { job: "opening the device".to_owned(), why: e.to_string() }),
    });
    let all: Vec<Ran> = done.into_iter().collect::<Result<_, _>>()?;
    Ok(all.into_iter().filter(|ran| ran.launched.iter().any(|l| l.kernel.code.name.contains(filter))).collect())
}
