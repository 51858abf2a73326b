//! `manifest.json`: what the artifacts are, and what made them.

use serde_json::json;

use super::build::{Compiler, Target};
use super::text::entries;

/// The manifest of some artifacts.
pub(super) fn write(compiler: &Compiler, built: &[(Target, String)]) -> Result<String, String> {
    let mut artifacts = Vec::new();
    for (target, ptx) in built {
        let file = target.file();
        artifacts.push(json!({
            "target": target.sm,
            "isa": isa(ptx).ok_or_else(|| format!("{file} does not say which PTX ISA it is written in"))?,
            "bytes": ptx.len(),
            "crc32": format!("{:08x}", crc32fast::hash(ptx.as_bytes())),
            "flags": target.rustflags(),
            "entry_points": entries(ptx).collect::<Vec<_>>(),
        }));
    }
    let manifest = json!({
        "compiler": {
            "release": compiler.release,
            "commit_hash": compiler.commit_hash,
            "llvm": compiler.llvm,
        },
        "profile": "ptx",
        "artifacts": artifacts,
    });
    serde_json::to_string_pretty(&manifest).map(|text| text + "\n").map_err(|e| format!("the manifest: {e}"))
}

/// The PTX ISA that a text is written in.
pub(super) fn isa(ptx: &str) -> Option<&str> {
    ptx.lines().find_map(|line| line.strip_prefix(".version ")).map(str::trim)
}
