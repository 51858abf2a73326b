//! The committed PTX: what `cargo xtask ptx` builds from the kernels of this crate.

/// The kernels, compiled for one target. A device runs those of its own compute capability and of lower ones.
///
/// Targets whose instructions are the same share them, and a program holds them once: the PTX is the head, and then the
/// instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// Compute capability times ten: 35 is sm_35.
    pub target: u32,
    /// A comment, `.version` and `.target`: three lines.
    pub head: &'static str,
    /// A whole PTX text with this target's instructions, and a head of its own.
    pub shared: &'static str,
}

impl Artifact {
    /// What follows the head.
    pub fn instructions(&self) -> &'static str {
        self.shared.splitn(HEAD_LINES + 1, '\n').nth(HEAD_LINES).unwrap_or("")
    }
}

/// Lines of a head.
pub const HEAD_LINES: usize = 3;

/// From sm_35 on.
const SM_35: &str = include_str!("../ptx/sm_35.ptx");
/// From sm_80 on: `redux.sync`, and PowerSGD above rank 8 on tensor cores.
const SM_80: &str = include_str!("../ptx/sm_80.ptx");
/// From sm_90 on: its PTX ISA writes half of a pair shorter.
const SM_90: &str = include_str!("../ptx/sm_90.ptx");

macro_rules! artifact {
    ($target:literal, $isa:literal, $shared:expr) => {
        Artifact {
            target: $target,
            head: concat!(
                "// Gradwire's kernels for sm_",
                $target,
                ", built by `cargo xtask ptx`.\n.version ",
                $isa,
                "\n.target sm_",
                $target,
                "\n"
            ),
            shared: $shared,
        }
    };
}

/// One artifact a target, lowest first.
pub const ARTIFACTS: [Artifact; 5] = [
    artifact!(35, "6.0", SM_35),
    artifact!(60, "6.0", SM_35),
    artifact!(70, "7.0", SM_35),
    artifact!(80, "7.0", SM_80),
    artifact!(90, "7.8", SM_90),
];
