//! The passes beside a selection's own: the scan for non-finite values, and the decode of kept entries. Pure.

use gradwire_kernels::params::{ScatterParams, THREADS, scatter_flags};

use crate::codec::Codec;
use crate::codec::uniform::Uniform;
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{Bindings, EncodePlan, Kernel, Limits, NonFinite, Params, Pass, Span};

/// Entries of a part of a payload begin at multiples of this many, which are 256 bytes.
const ENTRIES: u64 = 64;

/// Whether workgroups of these passes wait for one another.
pub(crate) fn waits(passes: &[Pass]) -> bool {
    passes.iter().any(|pass| pass.kernel == Kernel::TopKRest)
}

/// The error that the word stands for in which workgroups leave that they waited in vain.
pub(crate) fn refuse_stuck(word: u32) -> Result<(), Error> {
    if word == 0 { Ok(()) } else { Err(Error::Stuck) }
}

/// The passes that look for an element that is not finite.
pub(crate) fn scan_passes(n: usize, dtype: Dtype, feedback: bool, limits: &Limits) -> Result<Vec<Pass>, Error> {
    // The scan does not depend on the codec.
    let plan = Uniform::bits(1).non_finite(NonFinite::Error).plan(n, dtype)?;
    EncodePlan { feedback, ..plan }.finite_scan(limits)
}

pub(crate) fn scatter(entries: u64, weight: Option<f32>, elements: u64, limits: &Limits) -> Result<Vec<Pass>, Error> {
    let mut passes = Vec::new();
    let most = limits.binding_bytes / 4 / ENTRIES * ENTRIES;
    let per_pass = most.min(u64::from(limits.groups) * u64::from(THREADS));
    if per_pass == 0 {
        let (found, needed) = (limits.binding_bytes, 4 * ENTRIES);
        return Err(Error::Limit { limit: "max_storage_buffer_binding_size", found, needed });
    }
    let span = |first: u64, count: u64| Span { offset: 4 * first, bytes: 4 * count };
    if elements == 0 {
        return Ok(passes);
    }
    if weight.is_none() {
        let bindings = Bindings { output: span(0, elements), ..Bindings::default() };
        let params = Params::Scatter(ScatterParams::default());
        passes.push(Pass { kernel: Kernel::Clear, params, bindings, groups: 1 });
    }
    for first in (0..elements).step_by(most as usize) {
        let bound = most.min(elements - first);
        for entry in (0..entries).step_by(per_pass as usize) {
            let count = per_pass.min(entries - entry);
            let params = ScatterParams {
                entries: count as u32,
                first: first as u32,
                bound: bound as u32,
                flags: weight.map_or(0, |_| scatter_flags::ACCUMULATE),
                weight: weight.unwrap_or(0.0).to_bits(),
                reserved: [0; 3],
            };
            let bindings = Bindings {
                output: span(first, bound),
                indices: span(entry, count),
                values: span(entry, count),
                ..Bindings::default()
            };
            let groups = count.div_ceil(THREADS.into()) as u32;
            passes.push(Pass { kernel: Kernel::Scatter, params: Params::Scatter(params), bindings, groups });
        }
    }
    Ok(passes)
}
