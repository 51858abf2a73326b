//! What must be true of an artifact, whatever the kernels do.

use std::collections::BTreeSet;

use gradwire::plan::Kernel;
use gradwire_kernels::presets::decode::DecodePreset;

use super::build::Target;
use super::text::entries;

/// What no artifact may contain, and why. Each is looked for at the start of a word.
const FORBIDDEN: [(&str, &str); 8] = [
    (".extern", "a symbol that nobody defines: a function was not inlined, or panics"),
    (".func", "a function: whatever is not inlined costs a call, and has a name with the checkout's hash in it"),
    ("call", "a call"),
    (".local", "an array in local memory: it is indexed at run time, or by a loop that was not unrolled"),
    ("fma.", "a fused multiply-add, which rounds once where the CPU rounds twice"),
    ("mad.rn.", "a fused multiply-add, which rounds once where the CPU rounds twice"),
    (".ftz", "an instruction that flushes subnormal numbers, which the CPU does not"),
    (".approx", "an approximate instruction, whose result no standard fixes"),
];

/// Checks the text of an artifact.
pub(super) fn text(target: Target, ptx: &str) -> Result<(), String> {
    let file = target.file();
    let mut entry = "";
    for (number, line) in ptx.lines().enumerate().filter(|(_, line)| !line.starts_with("//")) {
        entry = entries(line).next().unwrap_or(entry);
        for (word, why) in FORBIDDEN {
            if holds(line, word) && !may_fuse(entry, word) {
                return Err(format!("{file}, line {}: `{}` has {why}", number + 1, line.trim()));
            }
        }
    }
    let sm = format!(".target sm_{}", target.sm);
    if !ptx.lines().any(|line| line == sm) {
        return Err(format!("{file} has no line `{sm}`: the compiler took another target"));
    }
    let found: BTreeSet<_> = entries(ptx).collect();
    let expected: BTreeSet<_> = Kernel::ALL.iter().map(|kernel| kernel.name()).collect();
    if found != expected {
        return Err(format!("{file} has the entry points {found:?}, and the plans call {expected:?}"));
    }
    parameters(&file, ptx)
}

/// PowerSGD's sums are of no bits that a CPU would have to agree with, and its kernels fuse where they say so: the
/// compiler may not (the PTX machine refuses what it could).
fn may_fuse(entry: &str, word: &str) -> bool {
    word == "fma." && entry.starts_with("powersgd_")
}

/// Whether a line has `word`, or a word that starts with it if it ends in a dot or starts with one.
fn holds(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let inside = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
        (word.starts_with('.') || !inside(before)) && (word.ends_with('.') || !inside(after))
    })
}

/// Checks that every kernel takes its params struct by value, of the size that the host passes, and then pointers.
fn parameters(file: &str, ptx: &str) -> Result<(), String> {
    for entry in ptx.split(".visible .entry ").skip(1) {
        let (name, rest) = entry.split_once('(').unwrap_or((entry, ""));
        let list = rest.split(')').next().unwrap_or("");
        let mut found = list.split(',').map(str::trim);
        let (bytes, pointers) = match name {
            "sparse_scatter" => (32, 3),
            "memory_momentum" | "sign_vote" => (16, 2),
            "memory_restore" => (20, 3),
            "rotate_blocks" => (48, 2),
            "dct_blocks" => (16, 2),
            "dct_tiles" => (36, 2),
            "random_gather" => (64, 3),
            "random_scatter" => (64, 2),
            _ if DecodePreset::ALL.iter().any(|preset| preset.name() == name) => {
                (48, if name.ends_with("_segments") { 4 } else { 3 })
            }
            _ if name.contains("_fixed_") => (120, 6),
            _ if ["elias_", "base3_", "entropy_"].iter().any(|prefix| name.starts_with(prefix)) => (20, 4),
            _ if name.starts_with("topk_") => (112, 5),
            _ if name.starts_with("powersgd_") => (96, 6),
            _ if name.ends_with("_decode") => (48, 3),
            _ if name.ends_with("_decode_segments") => (48, 4),
            _ => (64, 6),
        };
        let first = format!(".param .align 4 .b8 {name}_param_0[{bytes}]");
        let is_first = found.next() == Some(&*first);
        let rest: Vec<_> = found.collect();
        if !is_first || rest.len() != pointers || !rest.iter().all(|p| p.starts_with(".param .u64 ")) {
            return Err(format!("{file}: {name} should take `{first}` and {pointers} pointers, and takes ({list})"));
        }
    }
    Ok(())
}

/// Checks that a committed text is the one that was built.
pub(super) fn same(name: &str, committed: &str, built: &str) -> Result<(), String> {
    if committed == built {
        return Ok(());
    }
    let pairs = committed.lines().zip(built.lines());
    let number = pairs.take_while(|(a, b)| a == b).count();
    let line = |text: &str| text.lines().nth(number).unwrap_or("(nothing)").to_owned();
    Err(format!(
        "ptx/{name} is not what the sources give; run `cargo xtask ptx` and commit the result. First at line \
         {}:\n  committed: {}\n  built:     {}",
        number + 1,
        line(committed),
        line(built)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_as_words() {
        assert!(holds("\tcall.uni foo;", "call"));
        assert!(!holds("recall", "call"));
        assert!(!holds("\tcalled", "call"));
        assert!(holds("\tfma.rn.f32 \t%r1;", "fma."));
        assert!(holds("\tadd.rn.ftz.f32", ".ftz"));
        assert!(holds("\t.local .align 4 .b8 \t__local_depot0[64];", ".local"));
        assert!(holds("\tst.local.b32", ".local"));
    }

    #[test]
    fn powersgd_alone_may_fuse() {
        assert!(may_fuse("powersgd_left", "fma."));
        assert!(!may_fuse("powersgd_left", "mad.rn.") && !may_fuse("qsgd_encode", "fma.") && !may_fuse("", "fma."));
    }

    #[test]
    fn the_first_line_that_differs_is_named() {
        assert!(same("x", "a\nb\n", "a\nb\n").is_ok());
        let error = same("x", "a\nb\nc\n", "a\nB\nc\n").unwrap_err();
        assert!(
            error.contains("line 2") && error.contains("committed: b") && error.contains("built:     B"),
            "{error}"
        );
    }
}
