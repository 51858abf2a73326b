//! What a change is tried with.

use std::collections::BTreeSet;
use std::fmt;

use crate::codecs::{CODECS, find};

/// The tests of the suite in the program `cpu`: one for each vector width.
const WIDTHS: [&str; 3] = ["baseline", "avx2", "avx512"];
/// Beginnings of the paths on which every codec depends.
const OF_ALL: [&str; 6] = ["kernels-gpu/src", "host/src", "tests/src", "tests/tests/cpu", "Cargo", "host/Cargo"];
/// Beginnings of the paths whose tests are those of the compressor.
const OF_COMPRESSOR: [&str; 4] = ["host/src/compressor", "host/src/collective", "collectives", "tests/tests/ranks"];

/// Tests of one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Suite<'a> {
    /// The program.
    pub(crate) program: &'static str,
    /// The profile that it is built with: `try` compiles fast, and `dev` runs fast.
    pub(crate) profile: &'static str,
    /// Parts of the names of those tests.
    pub(crate) filters: Vec<&'a str>,
    /// The one codec that the suite checks; none for all.
    pub(crate) codec: Option<&'a str>,
}

/// The tests to run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct What {
    codecs: BTreeSet<&'static str>,
    /// Every codec, whichever are named.
    all: bool,
    compressor: bool,
}

impl What {
    /// From a word of the command line.
    pub(crate) fn of_word(word: &str) -> Result<Self, String> {
        let mut what = Self::default();
        match word {
            "compressor" => what.compressor = true,
            "cpu" => what.all = true,
            _ => {
                let codec = find(word).map_err(|why| format!("{why}, and neither `compressor` nor `cpu`"))?;
                what.codecs.insert(codec.name);
            }
        }
        Ok(what)
    }

    /// From the paths of changed files. A file that is named after a codec is of that codec alone.
    pub(crate) fn of_paths<'p>(paths: impl Iterator<Item = &'p str>) -> Self {
        let mut what = Self::default();
        for path in paths {
            let begins = |places: &[&str]| places.iter().any(|place| path.starts_with(place));
            let names: Vec<&str> = path.split(['/', '.']).collect();
            if begins(&OF_COMPRESSOR) {
                what.compressor = true;
            } else if let Some(codec) = CODECS.iter().find(|codec| begins(&OF_ALL) && names.contains(&codec.name)) {
                what.codecs.insert(codec.name);
            } else if begins(&OF_ALL) {
                what.all = true;
            }
        }
        what
    }

    /// Whether it has no tests.
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// The tests.
    pub(crate) fn suites(&self) -> Vec<Suite<'static>> {
        let mut suites = Vec::new();
        let suite = |codec| Suite { program: "cpu", profile: "try", filters: WIDTHS.to_vec(), codec };
        if self.all {
            suites.push(suite(None));
        } else {
            suites.extend(self.codecs.iter().map(|codec| suite(Some(codec))));
        }
        // A selection and PowerSGD have tests of their own beside the suite's, which take long if they are not optimised.
        for codec in CODECS.iter().filter(|codec| self.all || self.codecs.contains(codec.name)) {
            let filters: Vec<&str> =
                codec.own.iter().filter(|(program, _)| *program == "cpu").map(|own| own.1).collect();
            if !filters.is_empty() {
                suites.push(Suite { program: "cpu", profile: "dev", filters, codec: Some(codec.name) });
            }
        }
        if self.compressor {
            suites.push(Suite { program: "ranks", profile: "dev", filters: vec!["compressor"], codec: None });
        }
        suites
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = if self.all { vec!["every codec"] } else { self.codecs.iter().copied().collect() };
        let compressor = self.compressor.then_some("the compressor");
        let parts: Vec<&str> = all.into_iter().chain(compressor).collect();
        f.write_str(if parts.is_empty() { "no CPU test covers the change; cargo check" } else { "" })?;
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(paths: &[&str]) -> String {
        What::of_paths(paths.iter().copied()).to_string()
    }

    #[test]
    fn files_say_what_is_tried() {
        assert_eq!(told(&["kernels-gpu/src/arith/qsgd.rs"]), "qsgd");
        assert_eq!(told(&["kernels-gpu/src/kernels/topk/sample.rs", "host/src/codec/powersgd.rs"]), "powersgd, topk");
        assert_eq!(told(&["host/src/wire/header.rs", "host/src/codec/powersgd.rs"]), "every codec");
        assert_eq!(told(&["host/src/compressor/step.rs", "README.md"]), "the compressor");
        assert_eq!(told(&["ptx/topk/sm_35.ptx", "docs/topk.md"]), "no CPU test covers the change; cargo check");
        assert!(What::of_paths(["xtask/src/main.rs"].into_iter()).is_nothing());
    }

    #[test]
    fn a_word_is_a_codec_or_a_part() {
        let suites = |word: &str| What::of_word(word).map(|what| what.suites());
        let of = |program, profile, filters: &[&'static str], codec| Suite {
            program,
            profile,
            filters: filters.to_vec(),
            codec,
        };
        assert_eq!(suites("qsgd"), Ok(vec![of("cpu", "try", &WIDTHS, Some("qsgd"))]));
        let of_topk = [
            of("cpu", "try", &WIDTHS, Some("topk")),
            of("cpu", "dev", &["topk", "thresholds", "selection"], Some("topk")),
        ];
        assert_eq!(suites("topk"), Ok(of_topk.to_vec()));
        assert_eq!(suites("compressor"), Ok(vec![of("ranks", "dev", &["compressor"], None)]));
        assert!(suites("qsdg").is_err_and(|why| why.contains("`qsdg` is none of") && why.contains("compressor")));
    }
}
