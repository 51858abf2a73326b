//! Gradwire's kernels as PTX: one text per family of kernels and target, as `cargo xtask ptx` builds them.
//!
//! A *family* is the kernels that a driver compiles together: those of one codec, or those that several codecs share. A
//! *target* is a compute capability; a device runs the texts of its own capability and of lower ones.
//!
//! ```
//! let family = gradwire_ptx::family_of("qsgd_encode").expect("QSGD's encoder is among the kernels");
//! assert_eq!(family.name, "qsgd");
//! let artifact = family.artifacts.iter().rfind(|a| a.target <= 86).expect("the lowest target is 35");
//! let ptx = [artifact.head, artifact.instructions()].concat();
//! assert!(ptx.contains(".target sm_80") && ptx.contains(".visible .entry qsgd_encode("));
//! ```
#![no_std]

/// Kernels that are compiled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// The name, which is also that of its folder.
    pub name: &'static str,
    /// The beginnings of its kernels' names. Where those of two families fit a name, the longer one decides.
    pub prefixes: &'static [&'static str],
    /// One artifact per target, lowest first.
    pub artifacts: [Artifact; TARGETS.len()],
}

/// The kernels of one family, compiled for one target.
///
/// Targets whose instructions are the same share them, and a program holds them once: the PTX is the head, and then the
/// instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// Compute capability times ten: 35 is sm_35.
    pub target: u32,
    /// A comment, `.version` and `.target`: three lines.
    pub head: &'static str,
    /// A whole PTX text with this target's instructions and the head of the lowest target that has them.
    pub shared: &'static str,
}

impl Artifact {
    /// The text after the head.
    pub fn instructions(&self) -> &'static str {
        self.shared.splitn(HEAD_LINES + 1, '\n').nth(HEAD_LINES).unwrap_or("")
    }
}

/// Lines of a head.
pub const HEAD_LINES: usize = 3;

/// The targets, as compute capabilities times ten.
pub const TARGETS: [u32; 5] = [35, 60, 70, 80, 90];

macro_rules! artifact {
    ($target:literal, $isa:literal, $shared:expr) => {
        Artifact {
            target: $target,
            head: concat!(
                "// Gradwire's kernels for sm_",
                $target,
                ", built by `cargo xtask ptx`.\n.version ",
                $isa,
                "\n.target sm_",
                $target,
                "\n"
            ),
            shared: $shared,
        }
    };
}

/// A family by its name and prefixes, and by the targets whose files sm_80 and sm_90 use. sm_60 and sm_70 use that of
/// sm_35.
macro_rules! family {
    ($name:literal, $prefixes:expr, $sm_80:literal, $sm_90:literal) => {{
        const SM_35: &str = include_str!(concat!("../", $name, "/sm_35.ptx"));
        Family {
            name: $name,
            prefixes: &$prefixes,
            artifacts: [
                artifact!(35, "6.0", SM_35),
                artifact!(60, "6.0", SM_35),
                artifact!(70, "7.0", SM_35),
                artifact!(80, "7.0", include_str!(concat!("../", $name, "/sm_", $sm_80, ".ptx"))),
                artifact!(90, "7.8", include_str!(concat!("../", $name, "/sm_", $sm_90, ".ptx"))),
            ],
        }
    }};
}

macro_rules! codec_families {
    ($($(#[$doc:meta])* $codec:ident {
        file: $file:literal,
        shaders: $shaders:tt,
        texts: { sm_80: $sm_80:literal, sm_90: $sm_90:literal },
        $($rest:tt)*
    })+) => {
        /// Those of the bucketed codecs.
        const OF_CODECS: &[Family] = &[$(family!($file, [concat!($file, "_")], $sm_80, $sm_90)),+];
    };
}
gradwire_kernels::bucketed_codecs!(codec_families);

/// All others.
const OTHERS: &[Family] = &[
    // The search for elements that are not finite, which every codec may ask for, momentum, and steps taken back.
    family!("common", ["finite_", "memory_"], 80, 80),
    // Encoding and decoding by the settings that are used most.
    family!("qsgd_fixed", ["qsgd_fixed_"], 80, 90),
    family!("uniform_fixed", ["uniform_fixed_"], 80, 90),
    family!("quantile", ["quantile_"], 35, 35),
    // Packing codes as Elias codes and in base 3, and unpacking them.
    family!("elias", ["elias_", "base3_", "entropy_"], 80, 80),
    // Rotating blocks before a quantizer, and back.
    family!("rotation", ["rotate_"], 35, 35),
    // Transforming blocks by cosines, and back.
    family!("dct", ["dct_"], 35, 35),
    // Taking entries that a seed draws, and putting them back.
    family!("random", ["random_"], 35, 35),
    // Decoding entries, whichever codec selected them.
    family!("sparse", ["sparse_"], 35, 35),
    family!("topk", ["topk_"], 80, 90),
    // Top-k launches these instead of `topk_rest` on devices whose blocks may not wait for one another.
    family!("topk_launches", ["topk_sketch", "topk_filter_again", "topk_histogram"], 80, 80),
    family!("powersgd", ["powersgd_"], 80, 90),
];

/// Every family. Each kernel is in exactly one of them.
///
/// sm_80 has `redux.sync`, and tensor cores for PowerSGD above rank 8; for sm_90 some kernels ask that more blocks fit
/// a multiprocessor, and those whose calls are launches in a row wait by themselves for the launch before. A family that
/// uses none of it has no text of its own for that target.
pub static FAMILIES: [Family; OF_CODECS.len() + OTHERS.len()] = {
    let mut all = [OTHERS[0]; OF_CODECS.len() + OTHERS.len()];
    let mut at = 0;
    while at < all.len() {
        all[at] = if at < OF_CODECS.len() { OF_CODECS[at] } else { OTHERS[at - OF_CODECS.len()] };
        at += 1;
    }
    all
};

/// The family of a kernel, by the name of its entry point; none for a name that no family's prefixes fit.
pub fn family_of(kernel: &str) -> Option<&'static Family> {
    let length = |family: &Family| family.prefixes.iter().filter(|p| kernel.starts_with(**p)).map(|p| p.len()).max();
    FAMILIES
        .iter()
        .filter_map(|family| Some((length(family)?, family)))
        .max_by_key(|(length, _)| *length)
        .map(|(_, f)| f)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::BTreeSet;
    use std::vec::Vec;

    use super::*;

    fn entries(ptx: &str) -> Vec<&str> {
        ptx.lines().filter_map(|line| line.strip_prefix(".visible .entry ")?.split('(').next()).collect()
    }

    #[test]
    fn a_text_has_the_kernels_of_its_family_and_every_target_has_the_same() {
        let mut all = BTreeSet::new();
        for family in &FAMILIES {
            let first = entries(family.artifacts[0].instructions());
            assert!(!first.is_empty(), "{}", family.name);
            for artifact in &family.artifacts {
                assert_eq!(entries(artifact.instructions()), first, "{} for sm_{}", family.name, artifact.target);
            }
            for kernel in first {
                assert_eq!(family_of(kernel).map(|f| f.name), Some(family.name), "{kernel}");
                assert!(all.insert(kernel), "{kernel} is there twice");
            }
        }
        assert_eq!(family_of("clear"), None);
    }

    #[test]
    fn heads_name_the_targets_and_replace_heads_of_as_many_lines() {
        for artifact in FAMILIES.iter().flat_map(|family| &family.artifacts) {
            assert_eq!(artifact.head.lines().count(), HEAD_LINES);
            assert!(artifact.head.ends_with(&std::format!(".target sm_{}\n", artifact.target)));
            assert!(artifact.instructions().starts_with(".address_size 64\n"), "sm_{}", artifact.target);
        }
        assert!(FAMILIES.iter().all(|f| f.artifacts.iter().map(|a| a.target).eq(TARGETS)));
    }
}
