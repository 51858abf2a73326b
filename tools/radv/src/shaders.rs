//! `cargo xtask shaders`: writes out every WGSL module that the WGPU backend can create, for compilers that are not in
//! Rust.

use std::fs;
use std::path::PathBuf;

use gradwire_shaders::SHADERS;

/// Where to.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder for ENTRY.wgsl files; it is made, and must hold no other .wgsl file.
    #[arg(long)]
    out: PathBuf,
}

/// Writes the modules.
///
/// The backend has no text of its own: it makes one pipeline a kernel, from the table's module, with no override and no
/// header. So the table is the whole list; a test in gradwire-tests holds it to the kernels.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let out = args.out.display();
    fs::create_dir_all(&args.out).map_err(|e| format!("{out} could not be made: {e}"))?;
    let name = |entry: &str| format!("{entry}.wgsl");
    // A shader of an earlier run that is gone from the table would be checked as if it were still one.
    for file in fs::read_dir(&args.out).map_err(|e| format!("{out} could not be read: {e}"))? {
        let file = file.map_err(|e| format!("{out} could not be read: {e}"))?.file_name();
        let file = file.to_string_lossy();
        if file.ends_with(".wgsl") && !SHADERS.iter().any(|shader| name(shader.name) == file) {
            return Err(format!(
                "{out} holds {file}, which is none of the shaders; remove it or choose another folder"
            ));
        }
    }
    for shader in &SHADERS {
        let path = args.out.join(name(shader.name));
        fs::write(&path, shader.source).map_err(|e| format!("{} could not be written: {e}", path.display()))?;
    }
    println!("{} shaders in {out}", SHADERS.len());
    Ok(())
}
