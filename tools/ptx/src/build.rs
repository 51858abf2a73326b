//! Compiling the kernels, and what of the compiler's output is kept.

use std::fs;
use std::path::{Path, PathBuf};

use gradwire_kernels::params::THREADS;
use gradwire_ptx::family_of;
use gradwire_tools::checkout::root;
use gradwire_tools::nightly::{Compiler, clean, stdout};

/// One artifact to build.
#[derive(Clone, Copy)]
pub(super) struct Target {
    /// Compute capability times ten.
    pub(super) sm: u32,
    /// The PTX ISA it is written in, where it is not the lowest that rustc's own target has for the capability.
    ///
    /// rustc refuses capabilities below 7.0 by a list in its target's specification and nothing else; a specification
    /// without that list builds them. ISA 6.0 is the first with shuffles that name the lanes which take part.
    old: Option<&'static str>,
}

/// Every artifact, lowest first.
pub(super) const TARGETS: [Target; 5] = [
    Target { sm: 35, old: Some("+ptx60") },
    Target { sm: 60, old: Some("+ptx60") },
    Target { sm: 70, old: None },
    Target { sm: 80, old: None },
    Target { sm: 90, old: None },
];

/// Flags of every crate, beside the one that names the target.
const RUSTFLAGS: [&str; 5] = [
    "-Zunstable-options",
    "-Cpanic=immediate-abort",
    // An array that is indexed in a loop lives in memory unless the loop is unrolled, and the loops over a tile are
    // long.
    "-Cllvm-args=-unroll-threshold=20000",
    // Both passes make once, in front of two branches, what is cheap to make in each, and carry it in a register for
    // every element of a tile. `ptxas` finds common subexpressions by itself, and knows what registers cost.
    "-Cllvm-args=-disable-machine-cse",
    "-Cllvm-args=-simplifycfg-hoist-common=false",
];

impl Target {
    /// The artifact's name.
    pub(super) fn file(self) -> String {
        format!("sm_{}.ptx", self.sm)
    }

    /// What it is built as, in one line.
    pub(super) fn described(self) -> String {
        format!("sm_{} {} {}", self.sm, self.old.unwrap_or("stock"), self.rustflags().join(" "))
    }

    /// The flags of every crate.
    pub(super) fn rustflags(self) -> Vec<String> {
        let cpu = format!("-Ctarget-cpu=sm_{}", self.sm);
        std::iter::once(cpu).chain(RUSTFLAGS.map(str::to_owned)).collect()
    }

    /// Its PTX.
    pub(super) fn build(self, compiler: &Compiler) -> Result<String, String> {
        // A folder for each target: cargo lets one build at a time into a folder.
        let folder = root().join("target/ptx").join(format!("sm_{}", self.sm));
        let (triple, specification) = self.triple(compiler, &folder)?;
        let assembly = folder.join(&triple).join("ptx/deps/gradwire_kernels.s");
        let _ = fs::remove_file(&assembly);
        let mut cargo = compiler.cargo();
        cargo.args(["rustc", "--package", "gradwire-kernels", "--lib", "--locked"]);
        // A cdylib under fat link-time optimisation is one module without externals. Its assembly is all that is
        // wanted, so what would link it is a program that does nothing.
        cargo.args(["--profile", "ptx", "--crate-type", "cdylib", "-Zbuild-std=core"]);
        cargo.arg("--target-dir").arg(&folder);
        match &specification {
            Some(path) => cargo.arg("-Zjson-target-spec").arg("--target").arg(path),
            None => cargo.arg("--target").arg(&triple),
        };
        cargo.args(["--", "--emit=asm", "-Clinker=true"]);
        cargo.env("CARGO_ENCODED_RUSTFLAGS", self.rustflags().join("\u{1f}")).current_dir(root());
        let output = cargo.output().map_err(|e| format!("cargo could not be started: {e}"))?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stderr);
            return Err(format!(
                "the kernels did not build for sm_{}; where the log misses core's sources, run \
                 `rustup component add rust-src --toolchain {}`\n{log}",
                self.sm, compiler.toolchain
            ));
        }
        let text = fs::read_to_string(&assembly)
            .map_err(|e| format!("the compiler left no assembly at {}: {e}", assembly.display()))?;
        Ok(normalise(self, &text))
    }

    /// The target's name, and the specification where rustc's own will not do.
    fn triple(self, compiler: &Compiler, folder: &Path) -> Result<(String, Option<PathBuf>), String> {
        const STOCK: &str = "nvptx64-nvidia-cuda";
        let Some(features) = self.old else { return Ok((STOCK.to_owned(), None)) };
        let mut rustc = clean("rustc");
        rustc.arg(format!("+{}", compiler.toolchain)).args(["-Zunstable-options", "--print=target-spec-json"]);
        let text = stdout(rustc.args(["--target", STOCK]))?;
        let mut specification: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&text).map_err(|e| format!("rustc's target specification is not JSON: {e}"))?;
        specification.remove("unsupported-cpus");
        specification.insert("cpu".into(), format!("sm_{}", self.sm).into());
        specification.insert("features".into(), features.into());
        let name = format!("{STOCK}-sm_{}", self.sm);
        let path = folder.join(format!("{name}.json"));
        let text = serde_json::Value::from(specification).to_string();
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, text))
            .map_err(|e| format!("{} could not be written: {e}", path.display()))?;
        Ok((name, Some(path)))
    }
}

/// What is kept: directives and instructions.
///
/// Comments go, which are the compiler's name, a mark around every `asm!`, and names of symbols; so does white space
/// that says nothing. Nothing else of the output depends on the machine: there are no debug sections, and every
/// function but the kernels is inlined, so that no mangled name with a crate's hash is left.
fn normalise(target: Target, text: &str) -> String {
    let mut out = format!("// Gradwire's kernels for sm_{}, built by `cargo xtask ptx`.\n", target.sm);
    for line in text.lines() {
        let code = line.split("//").next().unwrap_or("");
        let mut words = code.split_ascii_whitespace();
        if let Some(first) = words.next() {
            let mut line = first.to_owned();
            words.for_each(|word| line.extend([" ", word]));
            out.push_str(&half(line));
            out.push('\n');
        }
    }
    chained(target, &at_once(target, &out))
}

/// A line that takes half of a pair, as PTX ISAs before 7.1 write it: so a target that differs in nothing else needs no
/// text of its own.
fn half(line: String) -> String {
    let halves = line.strip_prefix("mov.b64 {").and_then(|rest| rest.split_once('}'));
    let half = match halves.and_then(|(halves, from)| Some((halves.split_once(", ")?, from))) {
        Some((("_", high), from)) => format!("{{tmp, {high}}}{from}"),
        Some(((low, "_"), from)) => format!("{{{low}, tmp}}{from}"),
        _ => return line,
    };
    format!("{{ .reg .b32 tmp; mov.b64 {half} }}")
}

/// Kernels of which so many blocks are to fit a multiprocessor's registers, and the capability of the first target
/// whose text does so without a spill, whichever of its GPUs and assemblers it meets: 128 registers per thread for two
/// blocks, 80 for three, 64 for four and 48 for five. Left to itself the assembler takes a few more. Fewer blocks then
/// cover too little of the waiting for memory.
const AT_ONCE: [(&str, u32, u32); 20] = [
    ("qsgd_fixed_sum_4", 5, 90),
    ("qsgd_fixed_sum_4_segments", 5, 90),
    ("qsgd_fixed_sum_4_small", 5, 90),
    ("qsgd_fixed_sum_4_small_segments", 5, 90),
    ("uniform_fixed_sum_4", 5, 90),
    ("uniform_fixed_sum_4_segments", 5, 90),
    ("uniform_fixed_sum_4_small", 5, 90),
    ("uniform_fixed_sum_4_small_segments", 5, 90),
    ("uniform_fixed_f32_4_segments", 3, 90),
    ("uniform_fixed_f32_8_segments", 3, 90),
    ("uniform_fixed_bf16_4_segments", 3, 90),
    ("uniform_fixed_bf16_8_segments", 3, 90),
    ("powersgd_right", 2, 80),
    ("powersgd_left", 2, 80),
    ("powersgd_factor", 2, 80),
    // ptxas 11.8 spills for sm_80 and sm_86. Of `uniform_decode`, which wants five as well, every ptxas spills for
    // sm_120.
    ("qsgd_decode", 5, 90),
    // Its shared memory lets no more than three fit before sm_90.
    ("topk_filter", 4, 90),
    ("topk_filter", 3, 80),
    ("topk_filter_again", 3, 80),
    ("topk_rest", 2, 90),
];

/// Tells the assembler so: Rust has no words for it.
fn at_once(target: Target, text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut wanted = None;
    for line in text.lines() {
        if let Some(name) = super::text::entries(line).next() {
            let found = AT_ONCE.iter().find(|(kernel, _, from)| *kernel == name && target.sm >= *from);
            wanted = found.map(|(_, blocks, _)| blocks);
        }
        if line == "{"
            && let Some(blocks) = wanted.take()
        {
            out.push_str(&format!(".maxntid {THREADS}, 1, 1\n.minnctapersm {blocks}\n"));
        }
        out.push_str(line);
        out.push('\n');
    }
    out
}

/// Families whose calls are several launches in a row, and the capability of the first target that can start the blocks
/// of one while the one before drains.
const CHAINED: [&str; 2] = ["topk", "powersgd"];
const CHAINED_FROM: u32 = 90;

/// What lets the blocks of the next launch become resident, on the multiprocessors that this launch leaves free. They
/// wait there for the end of this one.
const TRIGGER: &str = "griddepcontrol.launch_dependents;\n";
/// What every kernel of these families does before any access to memory: it waits for the end of the launch before it.
const WAIT: &str = "griddepcontrol.wait;\n";

/// Kernels that let no blocks become resident before their end. Few blocks work on a matrix, so that most
/// multiprocessors have none of them. Blocks that wait there take them from other streams: when one block worked on a
/// matrix, a matrix product beside steps of rank 32 took 1.65 times as long on an H100 with the trigger, and 1.05 times
/// without (docs/h100.md).
const UNTRIGGERED: [&str; 1] = ["powersgd_factor"];

/// Puts both after the declarations of registers, and before all instructions.
fn chained(target: Target, text: &str) -> String {
    if target.sm < CHAINED_FROM {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    // What the kernel begins with, if it is of such a family; whether its body has begun.
    let (mut wanted, mut inside) = (None, false);
    for line in text.lines() {
        if let Some(name) = super::text::entries(line).next() {
            let is_chained = family_of(name).is_some_and(|family| CHAINED.contains(&family.name));
            wanted = is_chained.then_some(if UNTRIGGERED.contains(&name) { "" } else { TRIGGER });
            inside = false;
        }
        if inside
            && !line.starts_with('.')
            && let Some(trigger) = wanted.take()
        {
            out.push_str(trigger);
            out.push_str(WAIT);
        }
        inside |= line == "{";
        out.push_str(line);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{TARGETS, chained, half};

    #[test]
    fn chained_kernels_wait_before_all_else() {
        let kernel = |name: &str, chain: &str| {
            format!(
                ".visible .entry {name}(\n)\n{{\n.reg .b32 %r<2>;\n.reg .b64 %rd<2>;\n{chain}ld.param.b32 %r1, [a];\n{{ ret; }}\n}}\n"
            )
        };
        let text = |trigger: &str, wait: &str| {
            let both = [trigger, wait].concat();
            let all = [
                ("topk_emit", both.as_str()),
                ("qsgd_encode", ""),
                ("powersgd_left", both.as_str()),
                ("powersgd_factor", wait),
                ("topk_sketch", ""),
            ];
            all.map(|(name, chain)| kernel(name, chain)).concat()
        };
        let [.., sm_80, sm_90] = TARGETS;
        assert_eq!(chained(sm_80, &text("", "")), text("", ""));
        let expected = text("griddepcontrol.launch_dependents;\n", "griddepcontrol.wait;\n");
        assert_eq!(chained(sm_90, &text("", "")), expected);
    }

    #[test]
    fn half_of_a_pair_is_taken_as_every_isa_writes_it() {
        for (newer, older) in [
            ("mov.b64 {_, %r1}, %rd2;", "{ .reg .b32 tmp; mov.b64 {tmp, %r1}, %rd2; }"),
            ("mov.b64 {%r1, _}, %rd2;", "{ .reg .b32 tmp; mov.b64 {%r1, tmp}, %rd2; }"),
            ("mov.b64 {%r1, %r2}, %rd2;", "mov.b64 {%r1, %r2}, %rd2;"),
            ("mov.b64 %rd1, {%r1, %r2};", "mov.b64 %rd1, {%r1, %r2};"),
        ] {
            assert_eq!(half(newer.to_owned()), older);
        }
    }
}
