//! What may go wrong while machine code is read and run.

use std::path::{Path, PathBuf};

/// Why the machine code could not be read or run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SassError {
    /// A tool is not there.
    #[error(
        "{tool} was not found under target/ptxas; `.ci/install ptxas` unpacks the wheels there (or name it in \
             GRADWIRE_PTXAS, GRADWIRE_NVDISASM)"
    )]
    Missing {
        /// Its name.
        tool: &'static str,
    },
    /// No assembler knows the capability.
    #[error("no ptxas that was found assembles for sm_{sm}; CUDA 12.9's knows sm_50 to sm_120, 13.5's sm_75 and later")]
    NoAssembler {
        /// The capability, times ten.
        sm: u32,
    },
    /// A capability that the page does not speak of.
    #[error("nothing is known of sm_{sm}; take 60, 70, 80, 90 or 120")]
    UnknownTarget {
        /// The capability, times ten.
        sm: u32,
    },
    /// A kernel that no family has.
    #[error("no kernel has {kernel} in its name")]
    UnknownKernel {
        /// The name.
        kernel: String,
    },
    /// The assembler refused a text.
    #[error("ptxas refused a text for sm_{sm}: {why}")]
    Refused {
        /// The capability, times ten.
        sm: u32,
        /// Its words.
        why: String,
    },
    /// The disassembler refused a cubin.
    #[error("nvdisasm refused {path}: {why}")]
    NotDisassembled {
        /// The cubin.
        path: PathBuf,
        /// Its words.
        why: String,
    },
    /// A file failed.
    #[error("{path}: {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's words.
        why: String,
    },
    /// What the assembler wrote is no cubin.
    #[error("a file of {bytes} bytes is no cubin that is understood")]
    NoCubin {
        /// Its size.
        bytes: usize,
    },
    /// A text of the disassembler's that is written otherwise than what is known.
    #[error("the disassembler's text is not understood: {text}")]
    NotRead {
        /// The text.
        text: String,
    },
    /// An instruction that the machine does not know.
    #[error("an instruction that this machine does not know")]
    Unknown,
    /// An access outside of memory, or one that is not aligned.
    #[error("{bytes} bytes at {address:#x} of {} memory are outside of it, or not aligned",
            if *shared { "shared" } else { "global" })]
    OutOfBounds {
        /// Where.
        address: u64,
        /// Bytes of a lane.
        bytes: u32,
        /// Whether it is the block's memory.
        shared: bool,
    },
    /// What failed at an instruction.
    #[error("{kernel} at {at:#06x}, {text}: {why}")]
    At {
        /// The kernel.
        kernel: String,
        /// The instruction's offset in bytes.
        at: u32,
        /// The instruction.
        text: String,
        /// What failed.
        why: Box<SassError>,
    },
    /// Lanes that wait for lanes that never come.
    #[error("{kernel} waits for what does not come, or runs for ever")]
    Stuck {
        /// The kernel.
        kernel: String,
    },
    /// A launch that may begin before the one before it is done, and does not wait for that.
    #[error("{kernel} may begin before the launch before it is done, and does not wait for it before all else")]
    TooEarly {
        /// The kernel.
        kernel: String,
    },
    /// The tools are of other releases than the page's.
    #[error(
        "the page is made with ptxas and nvdisasm 13.5 and ptxas 12.9, and {found} were found; `.ci/install ptxas` unpacks them"
    )]
    OtherTools {
        /// The releases that were found.
        found: String,
    },
    /// The page's reasons are about something that its tables do not have.
    #[error("docs/sass.md gives a reason for {what}, which its tables no longer have; change tools/sass/src/why.rs")]
    NotThere {
        /// The operation, and the kernel.
        what: String,
    },
    /// The page says something else.
    #[error(
        "the machine code is no longer what docs/sass.md says. Where registers, blocks, loads in flight or integer \
             instructions got worse, find out why; else `cargo xtask sass --write`:\n{lines}"
    )]
    Changed {
        /// The lines that differ.
        lines: String,
    },
    /// An operation that gave something else than the CPU.
    #[error("{job}: the machine code does not give what the CPU gives")]
    Differs {
        /// The operation.
        job: String,
    },
    /// An operation that failed.
    #[error("{job}: {why}")]
    Job {
        /// The operation.
        job: String,
        /// What failed.
        why: String,
    },
}

impl SassError {
    /// An error of a file.
    pub(super) fn file(path: &Path, error: &std::io::Error) -> Self {
        Self::File { path: path.to_owned(), why: error.to_string() }
    }
}
