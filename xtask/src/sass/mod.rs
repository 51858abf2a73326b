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
    for job in &ran {
        let mut us = [0.0; 2];
        for l in &job.launched {
            let c = count::Cost::of(l, job.n);
            let (blocks, _) = resources::of_kernel(&tools, &l.kernel.code.name, args.target).map_err(|e| e.to_string())?;
            let grid = if l.grid == 1 { 1 } else { l.grid * ((1 << 26) / job.n) as u32 };
            println!("{} {} {}: grid {} blocks {blocks} ipe {:.1} {:?} bytes {:.2} loads {:.1} inflight {:.0} B/thr {:.1} KB/SM bar {:.1} inner {} br {}", job.codec, job.op, l.kernel.code.name, l.grid, c.instructions(), c.by_pipe.map(|v| (v*10.0).round()/10.0), c.bytes, c.loads, c.in_flight, c.in_flight * f64::from(blocks) * 256.0 / 1024.0, c.barriers, c.inner, c.branches);
            for (k, gpu) in [replay::H100, replay::H200].into_iter().enumerate() {
                let r = replay::replay(l, gpu, blocks, grid.div_ceil(132));
                us[k] += 1e6 * (r.cycles / gpu.clock + gpu.launch);
                println!("    {} {:.1} us issued {:.2}", gpu.name, 1e6 * (r.cycles / gpu.clock + gpu.launch), r.issued);
            }
        }
        let n = (1u64 << 26) as f64;
        println!("  {} {}: H100 {:.1} us {:.0} %  H200 {:.1} us {:.0} %", job.codec, job.op, us[0], job.floor * n / 3.0e12 * 1e8 / us[0], us[1], job.floor * n / 4.3e12 * 1e8 / us[1]);
    }
    Ok(())
}
