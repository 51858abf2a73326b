//! How often top-k reads a gradient, counted on the PTX machine.

use std::fmt::Write as _;
use std::sync::Arc;

use gradwire::backend::cuda::Cuda;
use gradwire::{Device, Error, Gradient, TopK};
use gradwire_ptx_machine::Machine;
use half::bf16;

use crate::cases::{Fill, seed};
use crate::{selections, sparse};

/// Elements of each gradient.
pub const N: usize = 1 << 20;

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
    /// Bytes an element read by all kernels together, in whole sectors, atomic operations with them.
    pub read: f64,
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

fn run(device: &Device, machine: &Machine, input: Fill, kind: Kind, part: f64) -> Result<Row, Error> {
    let x = (input.1)(N);
    let codec = TopK::fraction(part);
    machine.take_launched();
    match kind {
        Kind::F32 => drop(device.encode_sparse(&codec, &x, seed())?),
        Kind::Bf16 => {
            let halves: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
            drop(device.encode_sparse(&codec, Gradient::Bf16(&halves), seed())?);
        }
        Kind::Feedback => {
            let mut residual = vec![0.0; N];
            drop(device.encode_sparse_with_feedback(&codec, &x, &mut residual, seed())?);
        }
    }
    let launched = machine.take_launched();
    let bytes = |of: u64| of as f64 / N as f64;
    let read = launched.iter().map(|l| l.counts.loads.moved() + l.counts.atomics.moved()).sum();
    let written = launched.iter().map(|l| l.counts.stores.moved()).sum();
    Ok(Row { input: input.0, kind, part, read: bytes(read), written: bytes(written) })
}

/// Counts every gradient: promised ones at every part and type, all others at one in a hundred.
///
/// # Errors
/// A kernel's fault, in words.
pub fn count() -> Result<Vec<Row>, String> {
    let machine = Arc::new(Machine::new((9, 0), 1).counting());
    let device = Device::from_cuda(Cuda::with_driver(machine.clone(), None).map_err(|e| e.to_string())?);
    let mut rows = Vec::new();
    for input in sparse::FILLS.into_iter().chain(selections::MISLEADING) {
        let promised = PROMISED.contains(&input.0);
        for part in PARTS.into_iter().filter(|p| promised || *p == 0.01) {
            for kind in [Kind::F32, Kind::Bf16, Kind::Feedback] {
                if kind == Kind::F32 || (promised && part >= 0.01) {
                    rows.push(run(&device, &machine, input, kind, part).map_err(|e| format!("{}: {e}", input.0))?);
                }
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
            "| {} | {} | {} % | {:.3} | {:.3} | {:.3} |",
            row.input,
            row.kind.name(),
            row.part * 100.0,
            row.read,
            row.reads(),
            row.written,
        );
    }
    text
}

const HEAD: &str = "
## Top-k: how often a gradient is read

All kernels of one selection together, over 2^20 elements, sm_90.

- read: bytes an element in whole sectors, those of atomic operations with them.
- reads: as a multiple of the gradient's bytes, with feedback of the gradient's and the residual's.
- written: bytes an element. Here the residual counts, and the entries themselves.

| gradient | type | kept | read | reads | written |
| --- | --- | --- | --- | --- | --- |
";
