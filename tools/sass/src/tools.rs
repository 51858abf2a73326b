//! NVIDIA's assembler and disassembler: what they make of one family's PTX for one device.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use gradwire_ptx_build::{Assembler, assemblers, search};
use gradwire_tools::checkout::root;

use super::cubin::Cubin;
use super::error::SassError;

/// The releases of the assembler that the page is made with.
const RELEASES: [&str; 2] = ["12.9", "13.5"];

/// The newest assembler of each capability, and the disassembler.
pub(super) struct Tools {
    assemblers: Vec<Assembler>,
    disassembler: PathBuf,
}

/// What `ptxas -v` says of one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Resources {
    /// 32-bit registers of a thread.
    pub(super) registers: u32,
    /// Bytes of shared memory that the kernel declares.
    pub(super) shared: u32,
    /// Bytes of a thread's local memory, spills included.
    pub(super) stack: u32,
    /// Bytes that a thread stores and loads because registers did not suffice.
    pub(super) spills: u32,
}

/// One family, assembled for one capability.
pub(super) struct Assembled {
    pub(super) cubin: Cubin,
    /// Kernels in the order of the assembler's report.
    pub(super) resources: Vec<(String, Resources)>,
    /// The file, for the disassembler.
    pub(super) path: PathBuf,
}

impl Tools {
    /// Finds the tools.
    ///
    /// # Errors
    /// [`SassError::Missing`] where one of them is not there.
    pub(super) fn find() -> Result<Self, SassError> {
        let missing = |tool: &'static str| SassError::Missing { tool };
        let mut assemblers = assemblers();
        assemblers.sort_by_key(|a| a.version());
        if assemblers.is_empty() {
            return Err(missing("ptxas"));
        }
        let mut paths: Vec<PathBuf> = std::env::var_os("GRADWIRE_NVDISASM").map(PathBuf::from).into_iter().collect();
        if paths.is_empty() {
            search(&root().join("target/ptxas"), "bin/nvdisasm", 8, &mut paths);
        }
        let disassembler = paths.into_iter().next().ok_or_else(|| missing("nvdisasm"))?;
        Ok(Self { assemblers, disassembler })
    }

    /// Fails where these are not the releases that the page is made with: another assembler gives other code.
    pub(super) fn require_the_pages(&self) -> Result<(), SassError> {
        let found: Vec<&str> = self.assemblers.iter().map(|a| a.release.as_str()).collect();
        let newest = found.last() == RELEASES.last();
        let all = RELEASES.iter().all(|release| found.contains(release));
        if newest && all { Ok(()) } else { Err(SassError::OtherTools { found: found.join(", ") }) }
    }

    /// The newest assembler that knows a capability.
    fn assembler(&self, sm: u32) -> Result<&Assembler, SassError> {
        self.assemblers.iter().rfind(|a| a.knows.contains(&sm)).ok_or(SassError::NoAssembler { sm })
    }

    /// The release of the assembler for a capability.
    pub(super) fn release(&self, sm: u32) -> Result<&str, SassError> {
        self.assembler(sm).map(|a| a.release.as_str())
    }

    /// Assembles a text. What was assembled before is kept under `target/sass`, by the text's checksum.
    pub(super) fn assemble(&self, ptx: &str, sm: u32) -> Result<Assembled, SassError> {
        let by = self.assembler(sm)?;
        let folder = root().join("target/sass");
        fs::create_dir_all(&folder).map_err(|e| SassError::file(&folder, &e))?;
        let stem = format!("{:08x}-{}-sm_{sm}-{}", crc32fast::hash(ptx.as_bytes()), ptx.len(), by.release);
        let [path, report] = ["cubin", "txt"].map(|end| folder.join(format!("{stem}.{end}")));
        let read = |path: &Path| fs::read(path).map_err(|e| SassError::file(path, &e));
        if !path.exists() || !report.exists() {
            // Another thread or process may do the same: each writes files of its own, and renaming one is one step.
            let [source, part, told] =
                ["ptx", "part", "told"].map(|end| folder.join(format!("{stem}.{}.{end}", own())));
            fs::write(&source, ptx).map_err(|e| SassError::file(&source, &e))?;
            let mut command = Command::new(&by.path);
            command.arg("-v").arg(format!("-arch=sm_{sm}")).arg(&source).arg("-o").arg(&part);
            let output = command.output().map_err(|e| SassError::file(&by.path, &e))?;
            let text = [output.stdout, output.stderr].concat();
            if !output.status.success() {
                return Err(SassError::Refused { sm, why: String::from_utf8_lossy(&text).into_owned() });
            }
            fs::write(&told, text).map_err(|e| SassError::file(&told, &e))?;
            fs::rename(&told, &report).map_err(|e| SassError::file(&report, &e))?;
            fs::rename(&part, &path).map_err(|e| SassError::file(&path, &e))?;
            let _ = fs::remove_file(&source);
        }
        let resources = resources(&String::from_utf8_lossy(&read(&report)?));
        Ok(Assembled { cubin: Cubin::read(read(&path)?)?, resources, path })
    }

    /// What the disassembler prints of a cubin, as JSON.
    pub(super) fn disassemble(&self, cubin: &Path) -> Result<Vec<u8>, SassError> {
        let kept = cubin.with_extension("json");
        if let Ok(bytes) = fs::read(&kept) {
            return Ok(bytes);
        }
        let tool = &self.disassembler;
        let output = Command::new(tool).arg("-json").arg(cubin).output().map_err(|e| SassError::file(tool, &e))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(SassError::NotDisassembled { path: cubin.to_owned(), why });
        }
        let part = cubin.with_extension(format!("{}.part", own()));
        let stored = fs::write(&part, &output.stdout).and_then(|()| fs::rename(&part, &kept));
        stored.map_err(|e| SassError::file(&kept, &e))?;
        Ok(output.stdout)
    }
}

/// Reads the assembler's report.
fn resources(report: &str) -> Vec<(String, Resources)> {
    let mut all: Vec<(String, Resources)> = Vec::new();
    // What is said of a function that a kernel calls belongs to no kernel.
    let mut of_kernel = false;
    for line in report.lines() {
        if let Some(name) = line.split("Compiling entry function '").nth(1).and_then(|rest| rest.split('\'').next()) {
            all.push((name.to_owned(), Resources::default()));
        }
        if let Some(name) = line.split("Function properties for ").nth(1) {
            of_kernel = all.last().is_some_and(|(kernel, _)| kernel == name.trim());
        }
        let Some((_, of)) = all.last_mut() else { continue };
        let number = |before: &str| -> u32 {
            let words = line.split(before).next().unwrap_or("").split_whitespace();
            words.last().and_then(|word| word.parse().ok()).unwrap_or(0)
        };
        if line.contains(" bytes stack frame") && of_kernel {
            of.stack = number(" bytes stack frame");
            of.spills = number(" bytes spill stores") + number(" bytes spill loads");
        } else if line.contains("Used ") && line.contains(" registers") {
            of.registers = number(" registers");
            of.shared = if line.contains(" bytes smem") { number(" bytes smem") } else { 0 };
        }
    }
    all
}

/// What no other call's files have in their names.
fn own() -> String {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), CALLS.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_assemblers_report_is_read() {
        let report = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'topk_rest' for 'sm_90'
ptxas info    : Function properties for topk_rest
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 48896 bytes smem, 8 bytes cumulative stack size
ptxas info    : Function properties for $__internal_0
    16 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Compiling entry function 'sparse_scatter' for 'sm_90'
ptxas info    : Function properties for sparse_scatter
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
";
        let rest = Resources { registers: 128, shared: 48896, stack: 8, spills: 16 };
        let scatter = Resources { registers: 12, ..Resources::default() };
        assert_eq!(resources(report), [("topk_rest".to_owned(), rest), ("sparse_scatter".to_owned(), scatter)]);
    }
}
