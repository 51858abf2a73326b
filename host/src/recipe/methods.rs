//! The published methods by name.

/// A published method, as GRACE has it by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// Its name, as it stands in a text behind `grace:`.
    pub name: &'static str,
    /// The recipe that it stands for.
    pub recipe: &'static str,
    /// Who published it, and when.
    pub source: &'static str,
}

/// Names, recipes and sources.
///
/// The settings are the defaults in the code of GRACE (Xu et al., "GRACE: A compressed communication framework for
/// distributed machine learning", ICDCS 2021). Where a memory is an option there, it is on. Scales are of whole
/// tensors, as there. The bound of `inceptionn` is the 2^-10 that its code there comes to, and not the 2e-10 that
/// stands there. `adaq` finds the largest of each sign exactly, where GRACE has thresholds from a sample. Quantiles of
/// `sketchml` are of buckets, and of either side of zero.
pub(super) const METHODS: &[Method] = &[
    of("none", "none", "no compression"),
    of("fp16", "float:f16,nearest", "a cast"),
    of("u8bit", "tree:bucket=whole+ef", "Dettmers 2016"),
    of("onebit", "onebit:bucket=whole", "Seide et al. 2014"),
    of("signsgd", "sign:unit+vote", "Bernstein et al. 2018"),
    of("signum", "signum:momentum=0.9+vote", "Bernstein et al. 2018"),
    of("qsgd", "qsgd:bits=8,bucket=whole,l2", "Alistarh et al. 2017"),
    of("natural", "natural:bits=8+ef", "Horváth et al. 2019"),
    of("terngrad", "ternary:bucket=whole,clip=2.5", "Wen et al. 2017"),
    of("inceptionn", "float:int16,bound=0.0009765625+elias", "Li et al. 2018"),
    of("efsignsgd", "sign:bucket=whole", "Karimireddy et al. 2019"),
    of("sketchml", "quantile:levels=64+ef", "Jiang et al. 2018"),
    of("randomk", "randomk:0.3", "Stich et al. 2018"),
    of("topk", "topk:0.3+ef", "Aji and Heafield 2017"),
    of("threshold", "topk:above=0.01+ef", "GRACE's threshold-v"),
    of("dgc", "dgc:ratio=0.3", "Lin et al. 2018"),
    of("adaq", "topk:0.3,persign+onebit:bucket=whole", "Dryden et al. 2016"),
    of("powersgd", "powersgd:rank=1", "Vogels et al. 2019"),
];

const fn of(name: &'static str, recipe: &'static str, source: &'static str) -> Method {
    Method { name, recipe, source }
}

/// The text of a recipe in the place of a method's name, where a text begins with one; or the names that there are,
/// where it begins with another.
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
