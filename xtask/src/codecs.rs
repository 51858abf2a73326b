//! The codecs, and the tests that are theirs alone.

/// A codec, and the modules that test it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Codec {
    /// The name that GRADWIRE_CODEC takes.
    pub(crate) name: &'static str,
    /// The modules that test it alone, each with its program. Quantizers are tested by the suite, whose checks name
    /// their codec, and have none.
    pub(crate) own: &'static [(&'static str, &'static str)],
}

const fn quantizer(name: &'static str) -> Codec {
    Codec { name, own: &[] }
}

/// Every codec.
pub(crate) const CODECS: [Codec; 13] = [
    quantizer("drive"),
    quantizer("eden"),
    quantizer("float"),
    quantizer("natural"),
    quantizer("onebit"),
    Codec {
        name: "powersgd",
        own: &[
            ("cpu", "powersgd"),
            ("cpu", "powersgd_state"),
            ("cpu", "powersgd_faults"),
            ("gpu", "powersgd_gpu"),
            ("gpu", "resident"),
        ],
    },
    quantizer("qsgd"),
    quantizer("quantile"),
    quantizer("sign"),
    quantizer("ternary"),
    Codec {
        name: "topk",
        own: &[
            ("cpu", "topk"),
            ("cpu", "thresholds"),
            ("cpu", "selection"),
            ("gpu", "topk_gpu"),
            ("gpu", "settle"),
            ("gpu", "late"),
        ],
    },
    quantizer("tree"),
    quantizer("uniform"),
];

/// The codec of a name.
///
/// # Errors
/// A message with the names that there are.
pub(crate) fn find(name: &str) -> Result<Codec, String> {
    let known = CODECS.into_iter().find(|codec| codec.name == name);
    known.ok_or_else(|| format!("`{name}` is none of {}", CODECS.map(|codec| codec.name).join(", ")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_codecs_are_those_of_the_library() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../host/src/codec");
        let names = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
        let stems = names.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()));
        let shared = ["mod", "estimate", "quantizer", "settings", "stage", "table"];
        let found: BTreeSet<String> = stems.filter(|stem| !shared.contains(&stem.as_str())).collect();
        assert_eq!(found, CODECS.map(|codec| codec.name.to_owned()).into());
        assert!(find("qsdg").is_err_and(|why| why.contains("`qsdg` is none of drive")));
    }
}
