//! Whole models, of which a step of PowerSGD is timed: those whose traffic docs/traffic.md has.

use gradwire::plan::Limits;
use gradwire::session::Role;
use gradwire::{Dtype, Error, Matrix};
use gradwire_tests::low_rank::{LAYERS, WIDTH, resnet50, transformer};

use super::place::Place;
use crate::bench::source::synthetic;
use crate::jobs::rotate::repeated;
use crate::jobs::{self, Job};

/// Columns of a factor, and how a table says so.
const RANK: (u32, &str) = (4, "rank 4");
/// Elements that a gradient repeats: no multiple of a row, so that no two tensors are alike.
const PATTERN: usize = (1 << 22) + 4093;

/// A model.
pub(super) struct Model {
    /// As a table has it, and `benches/peers/gpu_powersgd.py`.
    pub(super) name: String,
    tensors: Vec<Matrix>,
}

/// Those that a device is measured with: on a GPU the two that others are timed with too, and in its place one that an
/// interpreter comes to the end of. The CPU's sessions have no passes of PowerSGD.
pub(super) fn all(place: Place, is_software: bool, quick: bool) -> Vec<Model> {
    let model = |name: String, tensors| Model { name, tensors };
    let layers = |layers, width| model(format!("{layers} layers of {width}"), transformer(layers, width));
    let resnet = model("ResNet-50".to_owned(), resnet50());
    match place {
        Place::Cpu => vec![],
        Place::PtxMachine(_) => vec![layers(2, 32)],
        Place::Wgpu if is_software => vec![layers(2, 32)],
        _ if quick => vec![resnet],
        _ => vec![resnet, layers(LAYERS, WIDTH)],
    }
}

impl Model {
    /// Elements of all tensors.
    pub(super) fn elements(&self) -> usize {
        self.tensors.iter().map(Matrix::elements).sum::<u64>() as usize
    }

    /// Its step. The gradient is written with all else that a run reads, since no other job has one of its length.
    ///
    /// # Errors
    /// [`Error::Limit`] if the device's limits are too small.
    pub(super) fn job(&self, limits: &Limits) -> Result<Option<Job>, Error> {
        let Some(job) = jobs::step(RANK.0, format!("{}, {}", RANK.1, self.name), &self.tensors, Dtype::F32, limits)?
        else {
            return Ok(None);
        };
        let (bytes, others) = (4 * self.elements() as u64, job.prepare);
        let pattern = synthetic(self.elements().min(PATTERN));
        let prepare: jobs::Prepare = Box::new(move |session, at| {
            let from = at(Role::Input);
            repeated(session, Role::Input, from..from + bytes, bytemuck::cast_slice(&pattern))?;
            others.as_ref().map_or(Ok(()), |others| others(session, at))
        });
        Ok(Some(Job { prepare: Some(prepare), ..job }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other side's script knows its models by their elements, and prints their names.
    #[test]
    fn the_script_has_the_same_models() {
        let script = include_str!("../../../../benches/peers/gpu_powersgd.py");
        for model in all(Place::Cuda(None), false, false) {
            let (elements, job) = (model.elements(), model.job(&Limits::NONE).unwrap().unwrap());
            assert!(script.contains(&format!("{elements}: (\"{}\", ", model.name)), "{}", model.name);
            assert_eq!((job.floor, job.passes.len()), (20 * elements as u64, 14));
            assert_eq!(job.setting, format!("rank 4, {}", model.name));
        }
        for ours in ["setting=f\"rank {rank}, {what}\"", "op=\"step with feedback\"", "f\"{side} x {side}\""] {
            assert!(script.contains(ours), "a row stands beside ours by its words: {ours}");
        }
    }
}
