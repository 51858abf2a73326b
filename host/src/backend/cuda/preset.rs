//! Passes whose setting has a kernel of its own.

use gradwire_kernels::params::FixedParams;
use gradwire_kernels::presets::Preset;

use crate::plan::{Kernel, Params, Pass};

/// What is launched for a pass: the kernel, and its parameters where they are not the pass's.
pub(super) fn launched(pass: &Pass) -> (Kernel, Option<FixedParams>) {
    let preset = match (pass.kernel, &pass.params) {
        (Kernel::Encode(codec), Params::Encode(p)) => Preset::of(codec, p, false).map(|preset| (preset, p)),
        (Kernel::EncodeSegments(codec), Params::Encode(p)) => Preset::of(codec, p, true).map(|preset| (preset, p)),
        _ => None,
    };
    match preset {
        Some((preset, p)) => (Kernel::Fixed(preset), Some(FixedParams::new(*p))),
        None => (pass.kernel, None),
    }
}
