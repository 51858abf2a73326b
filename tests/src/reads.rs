//! How often top-k reads a gradient, counted on the PTX machine.

use std::fmt::Write as _;
use std::sync::Arc;

use gradwire::backend::cuda::Cuda;
use gradwire::{Device, Error, Gradient, TopK};
use gradwire_ptx_machine::{Counts, Machine};
use half::bf16;

use crate::cases::seed;
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
    /// f32 + residual.
    Feedback,
}

impl Kind {
    /// Bytes an element that have to be read.
    #[must_use]
    pub fn floor(self) -> f64 {
        match self {
            Self::F32 => 4.0,
            Self::Bf16 => 2.0,
            Self::Feedback => 8.0,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Feedback => "f32 + feedback",
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
    /// Bytes an element loaded by all kernels together, in whole sectors.
    pub read: f64,
    /// Bytes an element of the sectors of atomic operations.
    pub atomics: f64,
    /// Bytes an element written.
    pub written: f64,
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

fn run(device: &Device, machine: &Machine, name: &'static str, x: &[f32], kind: Kind, part: f64) -> Result<Row, Error> {
    let n = x.len();
    let codec = TopK::fraction(part);
    machine.take_launched();
    match kind {
        Kind::F32 => drop(device.encode_sparse(&codec, x, seed())?),
        Kind::Bf16 => {
            let halves: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
            drop(device.encode_sparse(&codec, Gradient::Bf16(&halves), seed())?);
        }
        Kind::Feedback => {
            let mut residual = vec![0.0; n];
            drop(device.encode_sparse_with_feedback(&codec, x, &mut residual, seed())?);
        }
    }
    let launched = machine.take_launched();
    let sum = |of: &dyn Fn(&Counts) -> u64| launched.iter().map(|l| of(&l.counts)).sum::<u64>() as f64 / n as f64;
    Ok(Row {
        input: name,
        kind,
        part,
        n,
        read: sum(&|c| c.loads.moved()),
        atomics: sum(&|c| c.atomics.moved()),
        written: sum(&|c| c.stores.moved()),
    })
}

/// Counts every gradient: promised ones at every part, all others at one in a hundred.
///
/// # Errors
/// A kernel's fault, in words.
pub fn count() -> Result<Vec<Row>, String> {
    let machine = Arc::new(Machine::new((9, 0), 1).counting());
    let device = Device::from_cuda(Cuda::with_driver(machine.clone(), None).map_err(|e| e.to_string())?);
    let mut rows = Vec::new();
    let mut add = |name, x: &[f32], kind, part| {
        rows.push(run(&device, &machine, name, x, kind, part).map_err(|e| format!("{name}: {e}"))?);
        Ok::<(), String>(())
    };
    for (name, fill) in sparse::FILLS.into_iter().filter(|(name, _)| PROMISED.contains(name)) {
        let x = fill(SIZES[0]);
        for part in PARTS {
            add(name, &x, Kind::F32, part)?;
        }
    }
    for (name, fill) in sparse::FILLS.into_iter().chain(selections::MISLEADING) {
        let x = fill(SIZES[1]);
        add(name, &x, Kind::F32, 0.01)?;
        if PROMISED.contains(&name) {
            for (kind, part) in [(Kind::F32, 0.1), (Kind::Bf16, 0.01), (Kind::Bf16, 0.1), (Kind::Feedback, 0.01)] {
                add(name, &x, kind, part)?;
            }
        }
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
            row.part * 100.0,
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

- read: bytes an element that are loaded, in whole sectors.
- reads: as a multiple of the gradient's bytes, with feedback of the gradient's and the residual's.
- atomic: bytes an element of the sectors that atomic operations touch. They stay in the L2 cache.
- written: bytes an element, an instruction's sectors each once; a cache writes neighbours together, which this does not
  count. With feedback the residual is in it.

| gradient | type | elements | kept | read | reads | atomic | written |
| --- | --- | --- | --- | --- | --- | --- | --- |
";
