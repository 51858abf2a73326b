//! `cargo xtask sass`: the machine code of the kernels, without a GPU.

mod alu;
mod chip;
mod count;
mod cubin;
mod inst;
mod jobs;
mod kernel;
mod machine;
mod memory;
mod pipe;
mod predict;
mod replay;
mod resources;
mod run;
mod tools;
mod warp;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::tools::Tools;

/// Read the machine code.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only kernels whose names have this in them.
    #[arg(long)]
    kernel: Option<String>,
    /// Run the code for this target, and compare with the CPU.
    #[arg(long, default_value_t = 90)]
    target: u32,
}

/// Why the machine code could not be read or run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SassError {
    /// A tool is not there.
    #[error("{tool} was not found under target/ptxas; `.ci/run` says how the wheels are unpacked there (or name it in \
             GRADWIRE_PTXAS, GRADWIRE_NVDISASM)")]
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
    #[error("no kernel is named {kernel}")]
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
    fn file(path: &Path, error: &std::io::Error) -> Self {
        Self::File { path: path.to_owned(), why: error.to_string() }
    }
}

/// Reads the machine code, and prints what it is asked for.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let tools = Arc::new(Tools::find().map_err(|e| e.to_string())?);
    let filter = args.kernel.as_deref().unwrap_or("");
    let ran = jobs::all(&tools, args.target, filter).map_err(|e| e.to_string())?;
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read("benches/results/h100.json").unwrap()).unwrap();
    let mut errors = Vec::new();
    for job in &ran {
        let p = predict::predict(&tools, args.target, job, &[replay::H100, replay::H200]).map_err(|e| e.to_string())?;
        let measured = p.reported.as_ref().and_then(|[c, s, o, d]| {
            report["devices"][0]["rows"].as_array()?.iter().find(|r| r["codec"] == **c && r["setting"] == **s && r["op"] == **o && r["dtype"] == **d && r["elements"] == p.of)?["seconds"].as_f64()
        });
        println!("{} {}: H100 {:.1} us {:.0} %, measured {:.1} ({:+.1} %); H200 {:.1} us {:.0} %", p.codec, p.op, 1e6 * p.seconds(0), 100.0 * p.share(0, &replay::H100), 1e6 * measured.unwrap_or(0.0), 100.0 * (p.seconds(0) / measured.unwrap_or(f64::NAN) - 1.0), 1e6 * p.seconds(1), 100.0 * p.share(1, &replay::H200));
        if let Some(m) = measured { errors.push((p.seconds(0) / m).ln().abs()) }
        if p.parts.len() > 1 { for q in &p.parts { println!("      {} {:.1} us, issue {:.2}", q.kernel, q.seconds[0] * 1e6, q.issued[0]); } }
    }
    println!("mean error {:.1} %", 100.0 * errors.iter().sum::<f64>() / errors.len() as f64);
    Ok(())
}
