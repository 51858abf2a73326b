//! The published methods by name.

/// A published method, as GRACE has it by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// Its name, as it stands in a text after `grace:`.
    pub name: &'static str,
    /// The recipe that it stands for.
    pub recipe: &'static str,
    /// Who published it, and when.
    pub source: &'static str,
    /// What a step gives otherwise than GRACE's code, one after another; nothing if the mean has its values. Random
    /// draws, and what becomes of NaN and infinity, are the crate's own in every method.
    pub differs: &'static [&'static str],
}

const TIES: &str = "a tie of votes is 0; theirs is 1";
const ROUNDED: &str = "k is rounded up; theirs is rounded down";

/// Names, recipes, sources and differences.
///
/// The settings are the defaults in the code of GRACE (Xu et al., "GRACE: A compressed communication framework for
/// distributed machine learning", ICDCS 2021), but for what a method's differences say. Where a memory is an option
/// there, it is on. Scales are of whole tensors, as there. The bound of `inceptionn` is the 2^-10 that its code there
/// comes to, and not the 2e-10 that stands there.
pub(super) const METHODS: &[Method] = &[
    of("none", "none", "no compression", &[]),
    of(
        "fp16",
        "float:f16,nearest",
        "a cast",
        &["a finite number beyond the range of f16 becomes its largest; theirs becomes infinity"],
    ),
    of(
        "u8bit",
        "tree:bucket=whole+ef",
        "Dettmers 2016",
        &["a magnitude goes to the nearest level; theirs to the lower edge of its interval"],
    ),
    of("onebit", "onebit:bucket=whole", "Seide et al. 2014", &[]),
    of("signsgd", "sign:unit+vote", "Bernstein et al. 2018", &[TIES]),
    of(
        "signum",
        "signum:momentum=0.9+vote",
        "Bernstein et al. 2018",
        &[TIES, "the momentum starts at zero, as in their TensorFlow code; in their torch code at the first gradient"],
    ),
    of(
        "qsgd",
        "qsgd:bits=8,bucket=whole,l2",
        "Alistarh et al. 2017",
        &["127 levels in 8 bits; theirs are 256 in 16 bits"],
    ),
    of(
        "natural",
        "natural:bits=8+ef",
        "Horváth et al. 2019",
        &["powers of two from 2^-126 to 2^127; theirs are from 2^-110 to 2^17"],
    ),
    of(
        "terngrad",
        "ternary:bucket=whole,clip=2.5",
        "Wen et al. 2017",
        &["elements that are all equal stay; theirs are clipped to zero"],
    ),
    of(
        "inceptionn",
        "float:int16,bound=0.0009765625+elias",
        "Li et al. 2018",
        &["numbers are multiples of 2^-9; theirs keep leading bits of each"],
    ),
    of(
        "efsignsgd",
        "sign:bucket=whole",
        "Karimireddy et al. 2019",
        &["the mean over the ranks; theirs is the sum divided by the learning rate"],
    ),
    of(
        "sketchml",
        "quantile:levels=64+ef",
        "Jiang et al. 2018",
        &["exact quantiles of each bucket, one of them for zeros; theirs are of a sketch of the tensor"],
    ),
    of("randomk", "randomk:0.3", "Stich et al. 2018", &[ROUNDED]),
    of("topk", "topk:0.3+ef", "Aji and Heafield 2017", &[ROUNDED]),
    of("threshold", "topk:above=0.01+ef", "GRACE's threshold-v", &["the threshold is 0.01; theirs is 256"]),
    of(
        "dgc",
        "dgc:ratio=0.3",
        "Lin et al. 2018",
        &[ROUNDED, "exactly k entries; theirs are those above a threshold that a sample gives"],
    ),
    of(
        "adaq",
        "topk:0.3,persign+onebit:bucket=whole",
        "Dryden et al. 2016",
        &["exactly a part of each sign, rounded up; theirs are those above thresholds that a sample gives"],
    ),
    of(
        "powersgd",
        "powersgd:rank=1",
        "Vogels et al. 2019",
        &["the factor of the last step goes on; theirs is drawn anew"],
    ),
];

const fn of(
    name: &'static str,
    recipe: &'static str,
    source: &'static str,
    differs: &'static [&'static str],
) -> Method {
    Method { name, recipe, source, differs }
}

/// The text of a recipe in place of a method's name, if a text begins with one; or the names that there are,
/// if it begins with another.
pub(super) fn expanded(text: &str) -> Option<Result<String, String>> {
    let behind = text.strip_prefix(PREFIX)?;
    let name = behind.split(['+', ':', '=']).next().unwrap_or(behind);
    Some(match METHODS.iter().find(|method| method.name == name) {
        Some(method) => Ok([method.recipe, &behind[name.len()..]].concat()),
        None => Err(METHODS.iter().map(|method| method.name).collect::<Vec<_>>().join(", ")),
    })
}

/// What stands before a method's name.
pub(super) const PREFIX: &str = "grace:";
