//! `manifest.json`: what the artifacts are, and what made them.

use gradwire_ptx::FAMILIES;
use gradwire_tools::nightly::Compiler;
use serde_json::json;

use super::build::Target;
use super::text::entries;

/// The manifest of what was built: of each target, the texts of all families in their order. `inputs` is the digest of
/// what they were built from.
pub(super) fn write(
    compiler: &Compiler,
    inputs: &str,
    built: &[(Target, Vec<(&'static str, String)>)],
) -> Result<String, String> {
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
        "inputs": inputs,
        "profile": "ptx",
        "targets": targets,
        "families": families,
    });
    serde_json::to_string_pretty(&manifest).map(|text| text + "\n").map_err(|e| format!("the manifest: {e}"))
}

/// The digest of inputs that a manifest has; none in one that is older than the digest.
pub(super) fn inputs(manifest: &str) -> Result<Option<String>, String> {
    let manifest: serde_json::Value =
        serde_json::from_str(manifest).map_err(|e| format!("ptx/manifest.json is not JSON: {e}"))?;
    Ok(manifest["inputs"].as_str().map(str::to_owned))
}

/// The PTX ISA that a text is written in.
pub(super) fn isa(ptx: &str) -> Option<&str> {
    ptx.lines().find_map(|line| line.strip_prefix(".version ")).map(str::trim)
}
