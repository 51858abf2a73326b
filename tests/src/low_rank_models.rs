//! What a step of PowerSGD costs for whole models, counted on the PTX machine.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;

use gradwire::backend::cuda::Cuda;
use gradwire::plan::Limits;
use gradwire::session::Role;
use gradwire::{Device, Dtype, Error, Matrix, PowerSgd, Seed};
use gradwire_ptx_machine::{Launched, Machine};

use crate::cases;
use crate::low_rank::{LAYERS, WIDTH, alone, resnet50, transformer};

/// Columns of a factor.
pub const RANK: u32 = 4;
/// Bytes an element that a step with f32 cannot do without.
const FLOOR: f64 = 20.0;

/// What Vulkan gives through wgpu where the hardware has no limit of its own, and what WebGPU promises everywhere.
const WGPU: [Limits; 2] = [
    Limits { binding_bytes: (1 << 31) - 256, groups: 65535, shares_factors: false, ..Limits::NONE },
    Limits { binding_bytes: 1 << 27, groups: 65535, shares_factors: false, ..Limits::NONE },
];

/// What a step of a model costs.
#[derive(Clone, Debug)]
pub struct Row {
    /// The model.
    pub name: &'static str,
    /// How often what was counted is in it.
    pub layers: usize,
    /// Elements of all tensors.
    pub elements: u64,
    /// Matrices that are compressed.
    pub matrices: usize,
    /// Their shapes.
    pub shapes: usize,
    /// Bytes an element, of all kernels.
    pub bytes: f64,
    /// Instructions of a thread for an element, of all kernels.
    pub instructions: f64,
    /// Launches on CUDA.
    pub launches: usize,
    /// Launches through wgpu on Vulkan, and within what every WebGPU has; `None` if that is not enough.
    pub launches_wgpu: [Option<usize>; WGPU.len()],
}

impl Row {
    /// As a multiple of the floor.
    #[must_use]
    pub fn multiple(&self) -> f64 {
        self.bytes / FLOOR
    }
}

/// The launches of a model's second step, which has a residual to take something off.
///
/// # Errors
/// Where the machine finds a fault.
pub fn launched(tensors: &[Matrix]) -> Result<Vec<Launched>, Error> {
    let machine = Arc::new(Machine::new((9, 0), 1).counting().trusting());
    let device = Device::from_cuda(Cuda::with_driver(machine.clone(), None)?);
    let (codec, seed) = (PowerSgd::rank(RANK), Seed::new(3));
    let mut host = codec.state(tensors, seed)?;
    let mut steps = codec.resident(tensors, Dtype::F32, seed)?;
    let x = cases::normal(steps.elements(), 5);
    // The first step is the CPU's, which an interpreter would take as long for as for the one that is counted.
    Device::cpu().low_rank_step(&mut host, &x, &mut vec![0.0; x.len()], alone)?;
    let (state, residual) = steps.upload(&host)?;
    let mut session = device.session(steps.sizes())?;
    session.write(Role::Input, 0, bytemuck::cast_slice(&x))?;
    session.write(Role::Residual, 0, bytemuck::cast_slice(&residual))?;
    session.write(Role::Workspace, 0, &state)?;
    machine.take_launched();
    // SAFETY: a whole step over the image that begins a state.
    unsafe { session.run_trusted(&steps.passes_of_step(&Limits::NONE)?.concat())? };
    Ok(machine.take_launched())
}

/// Launches of a step within these limits; `None` if they are too small.
///
/// # Errors
/// As [`PowerSgd::resident`].
pub fn launches(tensors: &[Matrix], limits: &Limits) -> Result<Option<usize>, Error> {
    let steps = PowerSgd::rank(RANK).resident(tensors, Dtype::F32, Seed::new(3))?;
    match steps.passes_of_step(limits) {
        Ok(calls) => Ok(Some(calls.concat().len())),
        Err(Error::Limit { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Bytes and instructions of a warp, of all launches.
#[must_use]
pub fn sum(launched: &[Launched]) -> (u64, u64) {
    let add = |(bytes, instructions), launched: &Launched| {
        (bytes + launched.counts.global().moved(), instructions + launched.counts.instructions)
    };
    launched.iter().fold((0, 0), add)
}

/// Counts `part`, of which the model has so many.
fn row(name: &'static str, part: &[Matrix], parts: usize) -> Result<Row, Error> {
    let model = part.repeat(parts);
    let matrices: Vec<Matrix> = model.iter().filter(|tensor| tensor.columns > 1).copied().collect();
    let (bytes, instructions) = sum(&launched(part)?);
    let counted = part.iter().map(Matrix::elements).sum::<u64>() as f64;
    Ok(Row {
        name,
        layers: parts,
        elements: model.iter().map(Matrix::elements).sum(),
        matrices: matrices.len(),
        shapes: matrices.iter().collect::<HashSet<_>>().len(),
        bytes: bytes as f64 / counted,
        instructions: instructions as f64 * 32.0 / counted,
        launches: launches(&model, &Limits::NONE)?.unwrap_or(usize::MAX),
        launches_wgpu: [launches(&model, &WGPU[0])?, launches(&model, &WGPU[1])?],
    })
}

/// Counts ResNet-50, and one of the transformer's layers.
///
/// # Errors
/// A kernel's fault, in words.
pub fn count() -> Result<Vec<Row>, String> {
    let rows = [row("ResNet-50", &resnet50(), 1), row("100 layers of 1024", &transformer(1, WIDTH), LAYERS)];
    rows.into_iter().map(|row| row.map_err(|e| e.to_string())).collect()
}

/// Where the page's part begins.
pub const HEADING: &str = "\n## PowerSGD: whole models";

/// The table as Markdown.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text = format!("{HEADING}{HEAD}");
    for row in rows {
        let on_wgpu = row.launches_wgpu.map(|n| n.map_or_else(|| "refused".to_owned(), |n| n.to_string()));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {:.2} | {:.3} | {:.1} | {} | {} | {} |",
            row.name,
            row.elements,
            row.matrices,
            row.shapes,
            row.bytes,
            row.multiple(),
            row.instructions,
            row.launches,
            on_wgpu[0],
            on_wgpu[1],
        );
    }
    text + TAIL
}

const HEAD: &str = "

The second step at rank 4 of f32 gradients, with the state on the device: counted as above, for sm_90.

- ResNet-50: its 161 tensors, each as a matrix of its first dimension by the others, counted whole. The 54 that are no vectors are compressed;
  vectors are sent as they are.
- 100 layers: of a transformer of width 1024, embeddings left out: 3072 x 1024, 1024 x 1024, 4096 x 1024 and 1024 x 4096 with their biases, and
  two normalisations. One layer is counted and stands for all, since a workgroup works on one tile, or some rows of a factor; to find that in a longer table takes
  it some steps more, which a test bounds.
- launches: all tensors are in each, so their number does not grow with the layers; CUDA bounds none of them. 2 GiB: what a binding has at most on
  Vulkan, through wgpu, with 65535 workgroups a launch. 128 MiB: the least that WebGPU promises, which a model is refused at whose state does not fit.

| model | elements | matrices | shapes | bytes | bytes / floor | instructions | launches | 2 GiB | 128 MiB |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
";

const TAIL: &str = "
torch's hook moves 44 bytes per element for it, and makes two factorisations of each matrix in a step: 108 calls for ResNet-50, 800
for the layers. The shortest call that was measured took 85 us (pytorch/pytorch #76673; 110 to 117 at rank 4). `cargo xtask
report` times both sides on a GPU.
";
