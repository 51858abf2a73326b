//! `manifest.json`: what the artifacts are, and what made them.

use gradwire_ptx::FAMILIES;
use serde_json::json;

use super::build::{Compiler, Target};
use super::text::entries;

/// The manifest of what was built: of each target, the texts of all families in their order.
pub(super) fn write(compiler: &Compiler, built: &[(Target, Vec<(&'static str, String)>)]) -> Result<String, String> {
    let mut targets = Vec::new();
    for (target, texts) in built {
        let isa = texts.first().and_then(|(_, ptx)| isa(ptx));
        targets.push(json!({
            "target": target.sm,
            "isa": isa.ok_or_else(|| format!("the text for sm_{} does not say which PTX ISA it is written in", target.sm))?,
            "flags": target.rustflags(),
        }));
    }
    let mut families = Vec::new();
    for (index, family) in FAMILIES.iter().enumerate() {
        let of = |(target, texts): &(Target, Vec<(&str, String)>)| {
            let (_, ptx) = &texts[index];
            json!({
                "target": target.sm,
                "bytes": ptx.len(),
                "crc32": format!("{:08x}", crc32fast::hash(ptx.as_bytes())),
            })
        };
        families.push(json!({
            "family": family.name,
            "entry_points": built.first().map(|(_, texts)| entries(&texts[index].1).collect::<Vec<_>>()),
            "texts": built.iter().map(of).collect::<Vec<_>>(),
        }));
    }
    let manifest = json!({
        "compiler": {
            "release": compiler.release,
            "commit_hash": compiler.commit_hash,
            "llvm": compiler.llvm,
        },
        "profile": "ptx",
        "targets": targets,
        "families": families,
    });
    serde_json::to_string_pretty(&manifest).map(|text| text + "\n").map_err(|e| format!("the manifest: {e}"))
}

/// The PTX ISA that a text is written in.
pub(super) fn isa(ptx: &str) -> Option<&str> {
    ptx.lines().find_map(|line| line.strip_prefix(".version ")).map(str::trim)
}
