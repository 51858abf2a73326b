//! What the replay of its launches says of an operation.

use super::count::Cost;
use super::error::SassError;
use super::jobs::Ran;
use super::machine::Launched;
use super::replay::{Gpu, LAUNCH, Replayed, replay};
use super::resources::of_kernel;
use super::tools::{Resources, Tools};

/// One launch of an operation.
pub(super) struct Part {
    pub(super) kernel: String,
    pub(super) used: Resources,
    /// Whether it may begin before the launch before it is done.
    pub(super) early: bool,
    /// Blocks of a multiprocessor.
    pub(super) blocks: u32,
    pub(super) cost: Cost,
    /// Seconds on each GPU, with what launching adds.
    pub(super) seconds: Vec<f64>,
    /// The part of the cycles in which a scheduler issues, on each GPU.
    pub(super) issued: Vec<f64>,
}

/// An operation.
pub(super) struct Predicted {
    pub(super) codec: String,
    pub(super) op: &'static str,
    pub(super) of: u64,
    pub(super) floor: f64,
    pub(super) parts: Vec<Part>,
    pub(super) reported: Option<[String; 4]>,
}

impl Predicted {
    /// Seconds on a GPU, of all launches.
    pub(super) fn seconds(&self, gpu: usize) -> f64 {
        self.parts.iter().map(|part| part.seconds[gpu]).sum()
    }

    /// The part of that which the floor's bytes would take at the copy rate.
    pub(super) fn share(&self, gpu: usize, of: &Gpu) -> f64 {
        self.floor * self.of as f64 / of.copy / self.seconds(gpu)
    }
}

/// The kernels whose blocks share a factor.
const FACTORS: [&str; 2] = ["powersgd_products", "powersgd_factor"];

/// Replays an operation on each GPU, at the size of which the page speaks.
pub(super) fn predict(tools: &Tools, sm: u32, ran: &Ran, gpus: &[Gpu]) -> Result<Predicted, SassError> {
    let mut parts = Vec::new();
    let times = ran.of as f64 / ran.n as f64;
    for (index, launched) in ran.launched.iter().enumerate() {
        let kernel = launched.kernel.code.name.clone();
        let (blocks, used) = of_kernel(tools, &kernel, sm)?;
        let grid = scaled(launched, times);
        // A block of `powersgd_factor` sums what all blocks of a factor left: more than those of a smaller one.
        let is_factor = FACTORS.contains(&kernel.as_str());
        let of_factor: Vec<&Launched> = ran
            .thin
            .iter()
            .filter(|_| is_factor)
            .filter_map(|thin| thin.get(index).filter(|launched| launched.kernel.code.name == kernel))
            .collect();
        if is_factor && of_factor.len() != ran.thin.len() {
            let why = format!("launch {index} of a thin matrix is not the factor's, so that nothing stands for it");
            return Err(SassError::Job { job: format!("{}, {}", ran.codec, ran.op), why });
        }
        let (cost, early) = (Cost::of(launched, ran.n), launched.early);
        let mut part = Part { kernel, used, early, blocks, cost, seconds: Vec::new(), issued: Vec::new() };
        for gpu in gpus {
            let replayed = of_factor
                .iter()
                .map(|thin| on(thin, *gpu, blocks, grid))
                .max_by(|a, b| a.cycles.total_cmp(&b.cycles))
                .unwrap_or_else(|| on(launched, *gpu, blocks, grid));
            part.seconds.push(replayed.cycles / gpu.clock + LAUNCH);
            part.issued.push(replayed.issued);
        }
        parts.push(part);
    }
    let (codec, reported) = (ran.codec.clone(), ran.reported.clone());
    Ok(Predicted { codec, op: ran.op, of: ran.of, floor: ran.floor, parts, reported })
}

/// One launch on one GPU: the multiprocessor with the most blocks.
fn on(launched: &Launched, gpu: Gpu, resident: u32, grid: u32) -> Replayed {
    let blocks = grid.div_ceil(gpu.multiprocessors);
    if blocks > 1 {
        return replay(launched, gpu, resident, 0, blocks);
    }
    // Each is alone, and the slowest decides.
    let each = (0..launched.traces.len()).map(|first| replay(launched, gpu, resident, first, 1));
    each.max_by(|a, b| a.cycles.total_cmp(&b.cycles)).unwrap_or_default()
}

/// Blocks of a launch over so many times the elements.
fn scaled(launched: &Launched, times: f64) -> u32 {
    let grid = f64::from(launched.grid);
    match launched.kernel.code.name.as_str() {
        // They have a block for some entries of a factor, whose rows are as many as its columns.
        "powersgd_products" | "powersgd_factor" | "powersgd_gather" => (grid * times.sqrt()) as u32,
        _ if launched.grid == 1 => 1,
        _ => (grid * times) as u32,
    }
}
