//! Entries of a gradient.

use gradwire_kernels::arith::float::{accumulate, canonical};
use gradwire_kernels::params::EncodeParams;

use crate::backend::cpu::Cpu;
use crate::codec::topk::SparsePlan;
use crate::error::Error;
use crate::plan::EncodePlan;
use crate::seed::Seed;
use crate::sparse::{Entries, Late, LazyResidual, STATISTICS, Source, Sparse};
use crate::words::zeros;

impl Sparse for Cpu {
    fn select(&self, plan: &SparsePlan, source: Source<'_>, sums: Option<&mut [f32]>) -> Result<Entries, Error> {
        if plan.guarded
            && let Some(index) = Self::first_not_finite(source)
        {
            return Err(Error::NotFinite { index });
        }
        let entries = self.largest_of(source, sums, &plan.select)?;
        let found = entries.bits.len() as u64;
        match plan.kept() {
            Some(expected) if found != expected => Err(Error::Changed { expected, found }),
            _ => Ok(entries),
        }
    }

    fn partials(&self, plans: &[EncodePlan], source: Source<'_>) -> Result<Vec<Vec<u32>>, Error> {
        let of_plan = |plan: &EncodePlan| {
            let bytes = plan.statistic_bytes();
            let mut words = zeros((bytes.end - bytes.start) / 4, STATISTICS)?;
            let p = EncodeParams { n: source.len() as u32, ..plan.params(Seed::new(0)) };
            self.statistics(plan.header().codec, &p, source.gradient, source.residual, &mut words);
            Ok(words)
        };
        plans.iter().map(of_plan).collect()
    }

    /// The entries are gone over anyway.
    fn late(&self) -> Option<&dyn Late> {
        None
    }

    fn settle(&self, residual: &mut LazyResidual) -> Result<(), Error> {
        residual.materialize();
        Ok(())
    }

    fn scatter(&self, indices: &[u32], values: &[f32], weight: Option<f32>, output: &mut [f32]) -> Result<(), Error> {
        if weight.is_none() {
            output.fill(0.0);
        }
        for (index, value) in indices.iter().zip(values) {
            let place = &mut output[*index as usize];
            *place = weight.map_or_else(|| canonical(*value), |weight| accumulate(*place, weight, *value));
        }
        Ok(())
    }

    fn scatter_sum(&self, payloads: &[(&[u32], &[f32])], weight: f32, output: &mut [f32]) -> Result<(), Error> {
        output.fill(0.0);
        payloads.iter().try_for_each(|(indices, values)| self.scatter(indices, values, Some(weight), output))
    }
}
