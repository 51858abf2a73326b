//! The passes of a vote. Pure.

use gradwire_kernels::params::{SPAN, VoteParams};

use crate::error::Error;
use crate::plan::{Bindings, Kernel, Limits, Params, Pass, Span};

/// Elements of a unit, and bytes of its codes.
pub(crate) const UNIT: u64 = 256;
pub(crate) const UNIT_BYTES: u64 = 32;

/// Where the codes of each pass begin in the input, and the passes, within a device's limits. The input of a pass is
/// that of every payload, one after another.
pub(crate) fn passes(n: u64, payloads: u32, limits: &Limits) -> Result<Vec<Pass>, Error> {
    let chunk = limits.chunk(4.max(u64::from(payloads).div_ceil(8)), SPAN)?;
    let (mut passes, mut first, mut at) = (Vec::new(), 0, 0);
    while first < n {
        let own = (n - first).min(chunk);
        let bytes = own.div_ceil(UNIT) * UNIT_BYTES;
        let params = VoteParams { n: own as u32, payloads, words: (bytes / 4) as u32, reserved: 0 };
        let all = bytes * u64::from(payloads);
        passes.push(Pass {
            kernel: Kernel::Vote,
            params: Params::Vote(params),
            bindings: Bindings {
                input: Span { offset: at, bytes: all },
                output: Span { offset: 4 * first, bytes: 4 * own },
                ..Bindings::default()
            },
            groups: own.div_ceil(u64::from(SPAN)) as u32,
        });
        first += own;
        at += all;
    }
    Ok(passes)
}
