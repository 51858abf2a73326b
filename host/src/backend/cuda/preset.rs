//! Passes whose setting has a kernel of its own.

use bytemuck::bytes_of;
use gradwire_kernels::params::{DECODE_SPAN, FixedParams, SPAN};
use gradwire_kernels::presets::Preset;
use gradwire_kernels::presets::decode::DecodePreset;

use crate::plan::{Kernel, Params, Pass};

/// What is launched for a pass.
pub(super) struct Launch {
    /// The kernel.
    pub(super) kernel: Kernel,
    /// Blocks.
    pub(super) groups: u32,
    /// The kernel's parameters, if they are not the pass's.
    fixed: Option<FixedParams>,
}

impl Launch {
    /// What is launched for a pass: the kernel of its setting, if there is one.
    pub(super) fn of(pass: &Pass) -> Self {
        let of_setting = match (pass.kernel, &pass.params) {
            (Kernel::Encode(codec), Params::Encode(p)) => Preset::of(codec, p, false).map(|preset| (preset, p)),
            (Kernel::EncodeSegments(codec), Params::Encode(p)) => Preset::of(codec, p, true).map(|preset| (preset, p)),
            _ => None,
        };
        if let Some((preset, p)) = of_setting {
            return Self { kernel: Kernel::Fixed(preset), groups: pass.groups, fixed: Some(FixedParams::new(*p)) };
        }
        // A block takes as many elements as one that encodes.
        let of_setting = match (pass.kernel, &pass.params) {
            (Kernel::Decode(codec), Params::Decode(p)) => {
                DecodePreset::of(codec, p, false).map(|preset| (preset, p.n.div_ceil(SPAN)))
            }
            (Kernel::DecodeSegments(codec), Params::Decode(p)) => {
                DecodePreset::of(codec, p, true).map(|preset| (preset, pass.groups / (SPAN / DECODE_SPAN)))
            }
            _ => None,
        };
        let (kernel, groups) =
            of_setting.map_or((pass.kernel, pass.groups), |(preset, groups)| (Kernel::FixedDecode(preset), groups));
        Self { kernel, groups, fixed: None }
    }

    /// The bytes of the kernel's parameters, for the pass that this was made from.
    pub(super) fn params<'a>(&'a self, pass: &'a Pass) -> &'a [u8] {
        self.fixed.as_ref().map_or_else(|| pass.params.as_bytes(), bytes_of)
    }
}
