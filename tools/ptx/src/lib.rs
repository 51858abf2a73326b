//! `cargo xtask ptx`: builds the committed PTX from the Rust kernels, and checks that it is what they give.

mod assembled;
mod build;
mod check;
mod inputs;
mod manifest;
mod nvvm;
mod ptxas;
mod split;
mod text;

use std::fs;
use std::path::PathBuf;

use gradwire_ptx::{FAMILIES, HEAD_LINES};
use gradwire_tests::Depth;
use gradwire_tools::checkout::root;
use gradwire_tools::nightly::Compiler;
use gradwire_tools::repository::drawn;
use gradwire_tools::side_by_side::side_by_side;

use build::{TARGETS, Target};
pub use ptxas::{Ptxas as Assembler, find as assemblers, search};

/// Build the PTX, or check it.
#[derive(clap::Args)]
pub struct Args {
    /// Change nothing: compare the digest of the inputs with the manifest's, build one target into target/ and compare
    /// it, byte for byte; then assemble every artifact with those ptxas that are found in GRADWIRE_PTXAS (paths with `:`
    /// between), on PATH, or under target/ptxas. The tree of the commit draws the target; the depth `full` builds all.
    #[arg(long)]
    check: bool,
    /// For which capabilities to assemble: one of each generation, with the oldest and the newest ptxas that know it; or
    /// at the depth `full` every one, with every ptxas. Without it, what GRADWIRE_DEPTH says.
    #[arg(long, value_parser = Depth::parse, requires = "check")]
    depth: Option<Depth>,
    /// Write ptx/assembled.txt, the list of what need not be assembled again.
    #[arg(long, requires = "check", conflicts_with = "depth")]
    accept: bool,
    /// What compiles: rustc's own target, or Rust-CUDA's backend over libNVVM, whose output goes to target/nvvm and is
    /// never committed.
    #[arg(long, value_enum, default_value_t = Codegen::Llvm, conflicts_with = "check")]
    codegen: Codegen,
}

/// A way from Rust to PTX.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Codegen {
    /// rustc's target nvptx64-nvidia-cuda.
    Llvm,
    /// rustc_codegen_nvvm.
    Nvvm,
}

/// Where the committed artifacts lie.
fn artifacts() -> PathBuf {
    root().join("ptx")
}

/// Builds the artifacts, or checks them.
///
/// # Errors
/// If a tool is missing or fails, or the artifacts are not what their sources give.
pub fn run(args: &Args) -> Result<(), String> {
    if args.codegen == Codegen::Nvvm {
        return nvvm::run();
    }
    let depth = args.depth.map_or_else(Depth::from_environment, Ok)?;
    let now = inputs::digest(&root())?;
    if args.check {
        same_inputs(&now)?;
    }
    let compiler = Compiler::find()?;
    println!("building with rustc {} ({})", compiler.release, compiler.commit_hash);
    let drawn = if args.check && !depth.sweeps() { drawn(&root(), TARGETS.len()) } else { None };
    let numbered: Vec<(usize, Target)> = TARGETS.into_iter().enumerate().collect();
    let built = side_by_side(
        &numbered,
        || (),
        |(), (index, target)| {
            if drawn.is_some_and(|drawn| drawn != *index) {
                return Ok((*target, committed(*target)?));
            }
            let ptx = target.build(&compiler)?;
            check::text(*target, &ptx)?;
            println!("built the kernels for sm_{}: {} lines", target.sm, ptx.lines().count());
            Ok((*target, split::families(&ptx)?))
        },
    );
    let built = built.into_iter().collect::<Result<Vec<_>, String>>()?;
    let mut files: Vec<(String, String)> = Vec::new();
    for (index, family) in FAMILIES.iter().enumerate() {
        let first = files.len();
        for (target, texts) in &built {
            let (_, ptx) = &texts[index];
            // A target whose instructions an earlier one has needs no text of its own.
            if !files[first..].iter().any(|(_, text)| instructions(text) == instructions(ptx)) {
                files.push((format!("{}/{}", family.name, target.file()), ptx.clone()));
            }
        }
    }
    files.push(("manifest.json".to_owned(), manifest::write(&compiler, &now, &built)?));
    let stale = stale(&files)?;
    if !args.check {
        for (name, text) in &files {
            let path = artifacts().join(name);
            let folder = path.parent().unwrap_or(&path);
            fs::create_dir_all(folder)
                .and_then(|()| fs::write(&path, text))
                .map_err(|e| format!("{} could not be written: {e}", path.display()))?;
        }
        for path in stale {
            fs::remove_file(&path).map_err(|e| format!("{} could not be removed: {e}", path.display()))?;
        }
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        println!(
            "written: {}; rows of codecs.rs and of ptx/src/lib.rs say which targets share a text",
            names.join(", ")
        );
        return Ok(());
    }
    if let Some(path) = stale.first() {
        return Err(format!("{} is no longer built; run `cargo xtask ptx` and commit the result", path.display()));
    }
    for (name, text) in &files {
        let path = artifacts().join(name);
        let committed = fs::read_to_string(&path).map_err(|e| format!("{} could not be read: {e}", path.display()))?;
        check::same(name, &committed, text)?;
    }
    // What a program holds is composed from the files; ptxas gets the same text from a folder of its own.
    let folder = root().join("target/ptx/artifacts");
    for (index, family) in FAMILIES.iter().enumerate() {
        let folder = folder.join(family.name);
        fs::create_dir_all(&folder).map_err(|e| format!("{} could not be made: {e}", folder.display()))?;
        for ((target, texts), artifact) in built.iter().zip(&family.artifacts) {
            let (_, ptx) = &texts[index];
            let name = format!("{}/{}", family.name, target.file());
            check::same(&name, &[artifact.head, artifact.instructions()].concat(), ptx)?;
            let path = folder.join(target.file());
            fs::write(&path, ptx).map_err(|e| format!("{} could not be written: {e}", path.display()))?;
        }
    }
    match drawn {
        Some(index) => println!(
            "the committed artifact for sm_{} is what this compiler makes of these sources, and the others were made of \
             the same; `--depth full` builds those too",
            TARGETS[index].sm
        ),
        None => println!("the committed artifacts are what this compiler makes of these sources"),
    }
    ptxas::assemble(&folder, depth, args.accept)
}

/// Fails where the committed artifacts were made of other inputs than these.
fn same_inputs(now: &str) -> Result<(), String> {
    let path = artifacts().join("manifest.json");
    let text = fs::read_to_string(&path).map_err(|e| format!("{} could not be read: {e}", path.display()))?;
    let then = manifest::inputs(&text)?.unwrap_or_else(|| "none".to_owned());
    if then == now {
        return Ok(());
    }
    Err(format!(
        "the committed PTX was not made of these sources: ptx/manifest.json has the digest {then} of its inputs, and \
         they have {now}; run `cargo xtask ptx` and commit the result"
    ))
}

/// The texts of all families for a target, as they are committed.
fn committed(target: Target) -> Result<Vec<(&'static str, String)>, String> {
    let of = |family: &'static gradwire_ptx::Family| {
        let found = family.artifacts.iter().find(|artifact| artifact.target == target.sm);
        let artifact =
            found.ok_or_else(|| format!("ptx/src/lib.rs has no text of {} for sm_{}", family.name, target.sm))?;
        Ok((family.name, [artifact.head, artifact.instructions()].concat()))
    };
    FAMILIES.iter().map(of).collect()
}

/// Texts that lie among the artifacts, and are none of these files.
fn stale(files: &[(String, String)]) -> Result<Vec<PathBuf>, String> {
    let wanted: Vec<PathBuf> = files.iter().map(|(name, _)| artifacts().join(name)).collect();
    let read = |folder: PathBuf| -> Result<Vec<PathBuf>, String> {
        let failed = |e: std::io::Error| format!("{} could not be read: {e}", folder.display());
        fs::read_dir(&folder).map_err(failed)?.map(|entry| entry.map(|e| e.path()).map_err(failed)).collect()
    };
    let mut stale = Vec::new();
    for folder in read(artifacts())?.into_iter().filter(|path| path.is_dir()) {
        let texts = read(folder)?.into_iter().filter(|path| path.extension().is_some_and(|e| e == "ptx"));
        stale.extend(texts.filter(|path| !wanted.contains(path)));
    }
    Ok(stale)
}

/// A text without the lines that say what it is for.
fn instructions(ptx: &str) -> Option<&str> {
    ptx.splitn(HEAD_LINES + 1, '\n').nth(HEAD_LINES)
}
