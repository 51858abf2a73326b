//! What a step of PowerSGD moves for an element, counted on the PTX machine.

use std::fmt::Write as _;
use std::sync::Arc;

use gradwire::backend::cuda::Cuda;
use gradwire::{Device, Error, Gradient, Matrix, PowerSgd, Seed};
use gradwire_ptx_machine::{Counts, Machine};
use half::bf16;

use crate::cases;
use crate::low_rank::alone;

/// The matrix for which the bytes are promised.
pub const SHAPE: (u64, u64) = (2048, 2048);
/// One whose rows begin anywhere.
pub const ODD: (u64, u64) = (512, 4607);
/// Kernels in the order of a step.
const KERNELS: [&str; 6] =
    ["powersgd_products", "powersgd_factor", "powersgd_left", "powersgd_right", "powersgd_gather", "powersgd_expand"];

/// What one step moved.
#[derive(Clone, Debug)]
pub struct Row {
    /// Rows and columns of the one matrix.
    pub shape: (u64, u64),
    /// Whether the gradient is bf16, or f32.
    pub half: bool,
    /// Half an iteration a step, the one that forms the right factor.
    pub one_sided: bool,
    /// Columns of a factor.
    pub rank: u32,
    /// Bytes an element of each kernel, in the order of a step.
    pub moved: [f64; KERNELS.len()],
    /// Instructions of a thread for an element, of all kernels together, for sm_90.
    pub instructions: f64,
    /// Launches.
    pub launches: usize,
}

impl Row {
    /// Bytes an element that a step cannot do without: gradient, sums read and written, sums read again, output.
    #[must_use]
    pub fn floor(&self) -> f64 {
        let gradient = if self.half { 2.0 } else { 4.0 };
        gradient + 8.0 + if self.one_sided { 0.0 } else { 4.0 } + 4.0
    }

    /// Bytes an element of all kernels.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.moved.iter().sum()
    }

    /// As a multiple of the floor.
    #[must_use]
    pub fn multiple(&self) -> f64 {
        self.total() / self.floor()
    }
}

/// Counts the second step, which has a residual to take something off.
fn run(device: &Device, machine: &Machine, mut row: Row) -> Result<Row, Error> {
    let matrix = Matrix::new(row.shape.0, row.shape.1);
    let n = matrix.elements() as usize;
    let codec = PowerSgd::rank(row.rank);
    let codec = if row.one_sided { codec.one_sided() } else { codec };
    let mut state = codec.state(&[matrix], Seed::new(3))?;
    let (x, mut output) = (cases::normal(n, 5), vec![0.0; n]);
    let halves: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
    // The first may be the CPU's: what a step costs does not depend on the numbers in its residual.
    for on in [&Device::cpu(), device] {
        machine.take_launched();
        let gradient: Gradient<'_> = if row.half { (&halves).into() } else { (&x).into() };
        on.low_rank_step(&mut state, gradient, &mut output, alone)?;
    }
    let mut instructions = 0;
    for launched in machine.take_launched() {
        row.launches += 1;
        let moved = |counts: &Counts| counts.global().moved() as f64 / n as f64;
        instructions += launched.counts.instructions;
        if let Some(at) = KERNELS.iter().position(|kernel| *kernel == launched.kernel) {
            row.moved[at] += moved(&launched.counts);
        }
    }
    row.instructions = instructions as f64 * 32.0 / n as f64;
    Ok(row)
}

/// Counts the promised matrix at some ranks, and others for comparison.
///
/// # Errors
/// A kernel's fault, in words.
pub fn count() -> Result<Vec<Row>, String> {
    let machine = Arc::new(Machine::new((9, 0), 1).counting().trusting());
    let device = Device::from_cuda(Cuda::with_driver(machine.clone(), None).map_err(|e| e.to_string())?);
    let row = |shape, half, one_sided, rank| Row {
        shape,
        half,
        one_sided,
        rank,
        moved: [0.0; KERNELS.len()],
        instructions: 0.0,
        launches: 0,
    };
    let mut jobs: Vec<Row> = [1, 2, 4, 8, 16, 32].map(|rank| row(SHAPE, false, false, rank)).into();
    jobs.extend([row(SHAPE, true, false, 4), row(SHAPE, false, true, 4)]);
    // Rows that begin anywhere, which are promised as well, and matrices that are little more than a tile.
    jobs.extend([row(ODD, false, false, 4), row((512, 512), false, false, 4)]);
    jobs.into_iter().map(|row| run(&device, &machine, row).map_err(|e| e.to_string())).collect()
}

/// The table as Markdown.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from(HEAD);
    for row in rows {
        let moved: Vec<String> = row.moved.iter().map(|bytes| format!("{bytes:.3}")).collect();
        let _ = writeln!(
            text,
            "| {} x {} | {} | {} | {} | {} | {:.3} | {:.3} | {:.1} |",
            row.shape.0,
            row.shape.1,
            if row.half { "bf16" } else { "f32" },
            if row.one_sided { "one-sided" } else { "whole" },
            row.rank,
            moved.join(" | "),
            row.total(),
            row.multiple(),
            row.instructions,
        );
    }
    text
}

const HEAD: &str = "
## PowerSGD: what a step moves

All kernels of the second step of one matrix, in bytes per element, on sm_90. The floor of a step with f32 is 20: gradient, sums
read and written, sums read again, output.

- products: takes what was all-reduced, and multiplies its columns with one another. factor: makes them orthonormal. Both stay in
  the L2 cache, which this does not count.
- left, right: form gradient + residual, and multiply. Above rank 8 right forms it in a pass of its own, and each reads it once.
- gather: sums what the tiles gave. expand: writes the output.
- 512 x 4607: rows begin at no sector. Up to rank 8 a tile's row is in one sector more than it must be, of 32.

| matrix | type | step | rank | products | factor | left | right | gather | expand | all | all / floor | instructions |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
";
