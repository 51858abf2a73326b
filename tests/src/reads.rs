//! How often top-k reads a gradient, counted on the PTX machine.

use std::cell::Cell;
use std::fmt::Write as _;
use std::sync::Arc;

use gradwire::backend::cuda::Cuda;
use gradwire::{Device, Error, Gradient, LazyResidual, NonFinite, Segment, TopK};
use gradwire_ptx_machine::{Counts, Machine};
use half::{bf16, f16};

use crate::cases::{normal, seed};
use crate::{selections, sparse};

/// Elements of the gradients for which the reads are promised, and of all others.
pub const SIZES: [usize; 2] = [1 << 24, 1 << 20];

/// What is kept.
pub const PARTS: [f64; 4] = [0.0001, 0.001, 0.01, 0.1];

/// The type of a gradient, or f32 with feedback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// f32.
    F32,
    /// bf16.
    Bf16,
    /// f16.
    F16,
    /// f32 + residual; a second step.
    Feedback,
    /// f32 + residual, what was sent of which is taken off late; a second step.
    Lazy,
}

impl Kind {
    /// Bytes an element that have to be read.
    #[must_use]
    pub fn floor(self) -> f64 {
        match self {
            Self::F32 => 4.0,
            Self::Bf16 | Self::F16 => 2.0,
            Self::Feedback | Self::Lazy => 8.0,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Feedback => "f32 + feedback",
            Self::Lazy => "f32 + lazy feedback",
        }
    }
}

/// What one selection read.
#[derive(Clone, Debug)]
pub struct Row {
    /// The gradient.
    pub input: &'static str,
    /// Its type.
    pub kind: Kind,
    /// The part that is kept.
    pub part: f64,
    /// How many elements.
    pub n: usize,
    /// Whether its sample is wrong.
    pub misled: bool,
    /// Bytes an element loaded by all kernels together, in whole sectors.
    pub read: f64,
    /// Bytes an element of the sectors of atomic operations.
    pub atomics: f64,
    /// Bytes an element written.
    pub written: f64,
    /// Instructions of a thread for an element.
    pub instructions: f64,
    /// Launches.
    pub launches: usize,
    /// How often blocks wait within one, for all of a pass.
    pub hand_overs: usize,
}

impl Row {
    /// As a multiple of the bytes that have to be read.
    #[must_use]
    pub fn reads(&self) -> f64 {
        self.read / self.kind.floor()
    }
}

/// The distributions for which the reads are promised.
pub const PROMISED: [&str; 4] = ["normal", "Laplace", "Student t, 3 degrees", "real gradients"];

fn run(
    device: &Device,
    machine: &Machine,
    name: &'static str,
    x: &[f32],
    kind: Kind,
    codec: &TopK,
) -> Result<Row, String> {
    // What a row counts depends on no other row.
    machine.rewind();
    let n = x.len();
    let fail = |e: Error| format!("{name}, {}: {e}", kind.name());
    let bf16s: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
    let f16s: Vec<f16> = x.iter().map(|v| f16::from_f32(*v)).collect();
    let gradient = match kind {
        Kind::F32 | Kind::Feedback | Kind::Lazy => Gradient::F32(x),
        Kind::Bf16 => Gradient::Bf16(&bf16s),
        Kind::F16 => Gradient::F16(&f16s),
    };
    let mut residuals = [vec![0.0; n], vec![0.0; n]];
    let mut pending = LazyResidual::zeros(n);
    if kind == Kind::Lazy {
        device.encode_sparse_lazily(codec, gradient, &mut pending, seed()).map_err(fail)?;
        residuals = [(); 2].map(|()| pending.clone().into_values());
    } else if kind == Kind::Feedback {
        // The second step of the same, to be compared.
        Device::cpu().encode_sparse_with_feedback(codec, gradient, &mut residuals[0], seed()).map_err(fail)?;
        residuals[1] = residuals[0].clone();
    }
    let mut encode = |device: &Device, residual: usize| match kind {
        Kind::Lazy if residual == 0 => device.encode_sparse_lazily(codec, gradient, &mut pending, seed()),
        Kind::Lazy => device.encode_sparse_with_feedback(codec, gradient, &mut residuals[1], seed()),
        Kind::Feedback => device.encode_sparse_with_feedback(codec, gradient, &mut residuals[residual], seed()),
        _ => device.encode_sparse(codec, gradient, seed()),
    };
    machine.take_launched();
    let payload = encode(device, 0).map_err(fail)?;
    let launched = machine.take_launched();
    let expected = encode(&Device::cpu(), 1).map_err(fail)?;
    if kind == Kind::Lazy {
        residuals[0] = pending.into_values();
    }
    if payload.as_bytes() != expected.as_bytes() || bits(&residuals[0]) != bits(&residuals[1]) {
        return Err(format!("{name}, {}: not what the CPU selects", kind.name()));
    }
    let sum = |of: &dyn Fn(&Counts) -> u64| launched.iter().map(|l| of(&l.counts)).sum::<u64>() as f64 / n as f64;
    Ok(Row {
        input: name,
        kind,
        part: payload.indices().len() as f64 / n as f64,
        n,
        misled: false,
        read: sum(&|c| c.loads.moved()),
        atomics: sum(&|c| c.atomics.moved()),
        written: sum(&|c| c.stores.moved()),
        instructions: 32.0 * sum(&|c| c.instructions),
        launches: launched.len(),
        hand_overs: launched.iter().map(|l| l.counts.waited as usize).sum(),
    })
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// So many that a workgroup's tiles are of several.
const SEGMENTS: usize = 20;

/// Counts every gradient: promised ones at every part, all others at one in a hundred; and what misleads the sample in
/// every setting that has reads of its own. Rows are left out that `wanted` refuses by their number.
///
/// # Errors
/// A kernel's fault, or a difference from what the CPU selects, in words.
pub fn count(wanted: &dyn Fn(usize) -> bool) -> Result<Vec<Row>, String> {
    let machine = Arc::new(Machine::new((9, 0), 1).counting().trusting());
    let device = Device::from_cuda(Cuda::with_driver(machine.clone(), None).map_err(|e| e.to_string())?);
    let (mut rows, number) = (Vec::new(), Cell::new(0));
    // Whether the next row is wanted.
    let next = || wanted(number.replace(number.get() + 1));
    let mut add = |name, x: &[f32], kind, part| {
        if next() {
            rows.push(Row { part, ..run(&device, &machine, name, x, kind, &TopK::fraction(part))? });
        }
        Ok::<(), String>(())
    };
    for (name, fill) in sparse::FILLS.into_iter().filter(|(name, _)| PROMISED.contains(name)) {
        let x = fill(SIZES[0]);
        for part in PARTS {
            add(name, &x, Kind::F32, part)?;
        }
    }
    for (name, fill) in sparse::FILLS {
        let x = fill(SIZES[1]);
        add(name, &x, Kind::F32, 0.01)?;
        if PROMISED.contains(&name) {
            for (kind, part) in [(Kind::F32, 0.1), (Kind::Bf16, 0.01), (Kind::Bf16, 0.1)] {
                add(name, &x, kind, part)?;
            }
            for part in [0.001, 0.01, 0.1].into_iter().filter(|_| name == "normal" || name == "real gradients") {
                add(name, &x, Kind::Feedback, part)?;
                add(name, &x, Kind::Lazy, part)?;
            }
        }
    }
    for row in misled(&device, &machine, &next)? {
        rows.push(Row { misled: true, ..row });
    }
    Ok(rows)
}

fn misled(device: &Device, machine: &Machine, next: &dyn Fn() -> bool) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    let mut add = |name, x: &[f32], kind, codec: &TopK| {
        if next() {
            rows.push(run(device, machine, name, x, kind, codec)?);
        }
        Ok::<(), String>(())
    };
    // What is nothing but a wrong sample, ties that are far apart, and keys that are close together.
    const EVERY_SETTING: [usize; 4] = [0, 1, 7, 9];
    for (index, (name, fill)) in selections::MISLEADING.into_iter().enumerate() {
        let x = fill(SIZES[1]);
        add(name, &x, Kind::F32, &TopK::fraction(0.01))?;
        if !EVERY_SETTING.contains(&index) {
            continue;
        }
        for (kind, part) in [
            (Kind::F32, 0.1),
            (Kind::F32, 0.32),
            (Kind::F32, 0.34),
            (Kind::F32, 0.9),
            (Kind::F16, 0.01),
            (Kind::Bf16, 0.105),
            (Kind::Bf16, 0.115),
            (Kind::Feedback, 0.01),
            (Kind::Feedback, 0.5),
        ] {
            add(name, &x, kind, &TopK::fraction(part))?;
        }
    }
    // Segments, none of which is a whole number of tiles.
    let name = "20 segments, each with a huge sample";
    let n = SIZES[1];
    let mut lens = vec![n / SEGMENTS / 2 * 2 - 1; SEGMENTS - 1];
    lens.push(n - lens.iter().sum::<usize>());
    for part in [100, 10, 8] {
        let segments: Vec<Segment> =
            lens.iter().map(|len| Segment { elements: *len as u64, k: (len / part) as u64 }).collect();
        let x = selections::misleading_in(normal(n, 101), &lens, |v| 1e6 * (v.abs() + 1.0));
        add(name, &x, Kind::F32, &TopK::segments(&segments))?;
        add(name, &x, Kind::Bf16, &TopK::segments(&segments))?;
    }
    let (_, fill) = selections::MISLEADING[0];
    let guarded = TopK::fraction(0.1).non_finite(NonFinite::Error);
    add("the sample is huge, NaN is refused", &fill(SIZES[1]), Kind::F32, &guarded)?;
    for index in [0, 1, 7] {
        let (name, fill) = selections::MISLEADING[index];
        add(name, &fill(SIZES[0]), Kind::F32, &TopK::fraction(0.01))?;
    }
    Ok(rows)
}

/// The table as Markdown.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from(HEAD);
    for row in rows {
        let _ = writeln!(
            text,
            "| {} | {} | 2^{} | {} % | {:.3} | {:.3} | {:.3} | {:.3} |",
            row.input,
            row.kind.name(),
            row.n.ilog2(),
            (row.part * 1e6).round() / 1e4,
            row.read,
            row.reads(),
            row.atomics,
            row.written,
        );
    }
    text
}

const HEAD: &str = "
## Top-k: how often a gradient is read

All kernels of one selection together, on sm_90.

- read: bytes per element that are loaded, in whole sectors.
- reads: as a multiple of the gradient's bytes, with feedback of the gradient's and the residual's.
- atomic: bytes per element of the sectors that atomic operations touch. They stay in the L2 cache.
- written: bytes per element, an instruction's sectors each once; a cache writes neighbours together, which this does not
  count. With feedback the residual is in it.

| gradient | type | elements | kept | read | reads | atomic | written |
| --- | --- | --- | --- | --- | --- | --- | --- |
";
