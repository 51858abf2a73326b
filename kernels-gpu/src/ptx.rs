//! The committed PTX: what `cargo xtask ptx` builds from the kernels of this crate.

/// The kernels, compiled for one target. A device runs those of its own compute capability and of lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// Compute capability times ten: 35 is sm_35.
    pub target: u32,
    /// The PTX.
    pub ptx: &'static str,
}

/// One artifact a target, lowest first.
pub const ARTIFACTS: [Artifact; 5] = [
    Artifact { target: 35, ptx: include_str!("../ptx/sm_35.ptx") },
    Artifact { target: 60, ptx: include_str!("../ptx/sm_60.ptx") },
    Artifact { target: 70, ptx: include_str!("../ptx/sm_70.ptx") },
    Artifact { target: 80, ptx: include_str!("../ptx/sm_80.ptx") },
    Artifact { target: 90, ptx: include_str!("../ptx/sm_90.ptx") },
];
