//! Stages as they stand in a text.

use crate::codec::topk::{Keep, TopK};

pub(super) fn word(name: &str, settings: Vec<String>) -> String {
    if settings.is_empty() { name.into() } else { format!("{name}:{}", settings.join(",")) }
}

/// A selection as it stands in a text.
pub(super) fn words_of(select: &TopK) -> String {
    let mut settings = vec![match select.keep() {
        Keep::Count(k) => format!("k={k}"),
        Keep::Fraction(part) => part.to_string(),
        Keep::Blocks { elements, k } => format!("k={k},block={elements}"),
        Keep::Above(threshold) => format!("above={threshold}"),
        Keep::Estimate { part, by } => format!("{part},estimate={}", by.word()),
        Keep::PerSign(part) => format!("{part},persign"),
        Keep::Segments(segments) => {
            let all: Vec<_> = segments.iter().map(|s| format!("{}of{}", s.k, s.elements)).collect();
            format!("segments={}", all.join("/"))
        }
    }];
    settings.extend(select.is_clamped().then(|| "clamped".into()));
    word("topk", settings)
}
