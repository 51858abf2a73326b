//! The list of what can be timed: every codec with its settings. `bench` shows all of them, and `report` those that are
//! marked.

use gradwire::{CodecId, Entropy, Matrix, Recipe};
use gradwire_tests::cases::Case;
use gradwire_tests::formula::CODECS;
use gradwire_tests::oracle::Kind;
use gradwire_tests::suite::codecs;

/// A codec's parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Setting {
    /// A quantizer of buckets.
    Buckets(Case),
    /// A quantizer with its codes packed.
    Packed(Case, Entropy),
    /// Top-k, by the part of the entries that it keeps.
    TopK(f64),
    /// PowerSGD, by its rank.
    PowerSgd(u32),
}

/// A codec with a setting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) setting: Setting,
    /// Whether the report times it too.
    pub(crate) reported: bool,
}

/// Every entry, those of a codec together.
pub(crate) fn all() -> Vec<Entry> {
    let mut all = Vec::new();
    let mut add = |setting, reported| all.push(Entry { setting, reported });
    for tests in CODECS {
        (tests.timed)().into_iter().for_each(|(case, reported)| add(Setting::Buckets(case), reported));
        if tests.codec == CodecId::Qsgd {
            // Behind the L2 norm, where most levels are small and packing pays.
            add(Setting::Packed(Case::new(Kind::QsgdL2, 4, Some(512)), Entropy::Elias), true);
            // Of a whole tensor nearly all of them are zero.
            add(Setting::Packed(Case::new(Kind::QsgdL2, 2, None), Entropy::Sparse), false);
        }
        if tests.codec == CodecId::Ternary {
            add(Setting::Packed(Case::new(Kind::Ternary, 2, Some(512)), Entropy::Base3), true);
        }
    }
    [0.0001, 0.001, 0.01, 0.1].into_iter().for_each(|part| add(Setting::TopK(part), part > 0.0001));
    [1, 4, 8, 32].into_iter().for_each(|rank| add(Setting::PowerSgd(rank), true));
    all
}

/// The codec that `--codec` names, by the name that tables have.
pub(crate) fn codec(name: &str) -> Result<&'static str, String> {
    let names = || codecs().map(|(name, _)| name).collect::<Vec<_>>().join(", ");
    let found = codecs().find(|(known, _)| *known == name);
    found.map(|(_, codec)| codec).ok_or_else(|| format!("`{name}` is none of {}", names()))
}

impl Setting {
    /// Whether it runs as passes on every device. The CPU packs, selects and does PowerSGD without.
    pub(crate) fn is_passes_everywhere(&self) -> bool {
        matches!(self, Self::Buckets(_))
    }
}

impl Entry {
    /// The codec's name.
    pub(crate) fn codec(&self) -> &'static str {
        match self.setting {
            Setting::Buckets(case) | Setting::Packed(case, _) => case.kind.codec().name(),
            Setting::TopK(_) => "top-k",
            Setting::PowerSgd(_) => "PowerSGD",
        }
    }

    /// The name of the codec's variant: of QSGD with its norm and its packing, of uniform with its rounding.
    pub(crate) fn series(&self) -> &'static str {
        match self.setting {
            Setting::Buckets(case) => case.kind.name(),
            Setting::Packed(_, Entropy::Base3) => "ternary, base 3",
            Setting::Packed(_, Entropy::Sparse) => "QSGD L2, places",
            Setting::Packed(..) => "QSGD L2, Elias",
            _ => self.codec(),
        }
    }

    /// The setting in a few words.
    pub(crate) fn label(&self) -> String {
        match self.setting {
            Setting::Buckets(case) => format!("{} bit / {}", case.bits, bucket_text(case.bucket)),
            Setting::Packed(case, Entropy::Base3) => {
                format!("{} bit / {}, base 3", case.bits, bucket_text(case.bucket))
            }
            Setting::Packed(case, Entropy::Sparse) => {
                format!("{} bit / {}, L2, places", case.bits, bucket_text(case.bucket))
            }
            Setting::Packed(case, _) => format!("{} bit / {}, L2, Elias", case.bits, bucket_text(case.bucket)),
            Setting::TopK(part) => format!("{} %", 100.0 * part),
            Setting::PowerSgd(rank) => format!("rank {rank}"),
        }
    }
}

impl Entry {
    /// The text of the recipe, as a plan has it: codecs that bring error feedback have it.
    pub(crate) fn recipe(&self) -> String {
        let of = |case: Case| Recipe::from(case.codec()).to_string().replace("+noef", "");
        match self.setting {
            Setting::Buckets(case) => of(case),
            Setting::Packed(case, entropy) => format!("{}+{}", of(case), entropy.name()),
            Setting::TopK(part) => format!("topk:{part}"),
            Setting::PowerSgd(rank) => format!("powersgd:rank={rank}"),
        }
    }
}

/// A bucket's size as a table shows it.
pub(crate) fn bucket_text(bucket: Option<usize>) -> String {
    bucket.map_or_else(|| "whole".to_owned(), |size| size.to_string())
}

/// Rows and columns of the matrix that PowerSGD makes of so many elements: as square as it can be with a power of two
/// as its rows.
pub(crate) fn sides(n: usize) -> (u64, u64) {
    let rows = 1 << (n.max(1).ilog2() / 2);
    (rows, n as u64 / rows)
}

/// That matrix.
pub(crate) fn matrix(n: usize) -> Matrix {
    let (rows, columns) = sides(n);
    Matrix::new(rows, columns)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use gradwire::{Codec, Dtype};

    use super::*;

    /// A plan gives the recipe to a training, in two phases or with the tree if it says so.
    #[test]
    fn every_entry_has_a_recipe_of_its_own() {
        let all = all();
        let recipes: BTreeSet<String> = all.iter().map(Entry::recipe).collect();
        assert_eq!(recipes.len(), all.len());
        for entry in &all {
            let text = entry.recipe();
            let recipe: Recipe = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(recipe.to_string(), text);
            let more = match entry.setting {
                Setting::TopK(_) => "+ef+gtopk",
                Setting::PowerSgd(_) => "",
                // Both are rotated, and two phases cut no rotated gradient.
                Setting::Buckets(case) if matches!(case.kind.codec(), CodecId::Drive | CodecId::Eden) => "",
                Setting::Buckets(_) | Setting::Packed(..) => "+twophase",
            };
            let refused = format!("{text}{more}").parse::<Recipe>().err();
            assert!(refused.is_none(), "{text}{more}: {refused:?}");
        }
    }

    #[test]
    fn every_codec_is_there_by_its_name_and_no_setting_twice() {
        let all = all();
        let buckets: Vec<_> = CODECS.iter().flat_map(|tests| (tests.timed)()).collect();
        let reported = buckets.iter().filter(|(_, reported)| *reported).count();
        // Beside them three packed, four top-k and four PowerSGD, all reported but places and the sparsest of top-k.
        let counts = (all.len(), all.iter().filter(|entry| entry.reported).count());
        assert_eq!(counts, (buckets.len() + 3 + 4 + 4, reported + 2 + 3 + 4));
        let mut names: Vec<_> = all.iter().map(Entry::codec).collect();
        names.dedup();
        assert_eq!(names, codecs().map(|(_, codec)| codec).collect::<Vec<_>>());
        let labels: BTreeSet<_> = all.iter().map(|entry| (entry.series(), entry.label())).collect();
        assert_eq!(labels.len(), all.len());
        for label in ["4 bit / 512", "4 bit / whole", "0.01 %", "0.1 %", "1 %", "10 %", "rank 32"] {
            assert!(all.iter().any(|entry| entry.label() == label), "{label}");
        }
        for entry in &all {
            if let Setting::Buckets(case) = entry.setting {
                assert!(case.codec().plan(1000, Dtype::F32).is_ok(), "{}", entry.label());
            }
        }
    }

    #[test]
    fn a_codec_is_chosen_by_its_name() {
        assert_eq!(["qsgd", "onebit", "topk"].map(codec), ["QSGD", "1-bit SGD", "top-k"].map(Ok));
        let buckets = gradwire::CodecId::ALL.iter().map(|codec| codec.file());
        let names = buckets.chain(["topk", "powersgd"]).collect::<Vec<_>>().join(", ");
        assert_eq!(codec("foo"), Err(format!("`foo` is none of {names}")));
    }

    #[test]
    fn a_matrix_is_nearly_square() {
        assert_eq!(
            [1 << 24, 1 << 21, 11008 * 4096, 1000, 1].map(sides),
            [(4096, 4096), (1024, 2048), (4096, 11008), (16, 62), (1, 1)]
        );
    }
}
