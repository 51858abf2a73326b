//! Which name a misspelled word may mean.

use super::methods::{METHODS, PREFIX};

/// Names of the field for what recipes spell out.
const OTHERS: [(&str, &str); 8] = [
    ("1bit", "onebit"),
    ("3lc", "ternary:stretch=1.9+base3"),
    ("cocktailsgd", "randomk or topk"),
    ("demo", "dct:tiles+topk:k=32,block=4096,clamped+ef:beta=0.999"),
    ("half", "grace:fp16"),
    ("int8", "qsgd:bits=8"),
    ("lowrank", "powersgd"),
    ("randk", "randomk"),
];

/// `found`, and a stage or a method that is near to the word, if there is one.
pub(super) fn of_stage(word: &str, allowed: &str, found: String) -> String {
    let plain = plain(word);
    let other = OTHERS.iter().find(|(name, _)| *name == plain).map(|(_, recipe)| (*recipe).to_owned());
    let method = METHODS.iter().find(|method| method.name == plain).map(|method| format!("{PREFIX}{}", method.name));
    // A stage's own name first: a method may have the same one.
    let stage = names(allowed).find(|name| self::plain(name) == plain).map(str::to_owned);
    asked(found, stage.or(method).or(other).or_else(|| near(&plain, names(allowed)).map(str::to_owned)))
}

/// `found`, and the name of a list that is near to the word, if there is one.
pub(super) fn of_list(word: &str, allowed: &str, found: String) -> String {
    let plain = plain(word);
    let same = names(allowed).find(|name| self::plain(name) == plain);
    asked(found, same.or_else(|| near(&plain, names(allowed))).map(str::to_owned))
}

fn asked(found: String, near: Option<String>) -> String {
    match near {
        Some(near) => format!("{found} (do you mean {near}?)"),
        None => found,
    }
}

/// In small letters, without hyphens and underscores.
fn plain(word: &str) -> String {
    word.chars().filter(|c| !matches!(c, '-' | '_' | ' ')).flat_map(char::to_lowercase).collect()
}

/// The names of a list, without their values; a part of all comes first and has none.
fn names(list: &str) -> impl Iterator<Item = &str> {
    let list = list.rsplit("such as 0.01").next().unwrap_or(list);
    let words = list.split([',', ' ']).map(|word| word.split('=').next().unwrap_or(word));
    words.filter(|word| !word.is_empty() && !matches!(*word, "or" | "a" | "the" | "neither"))
}

/// The one name that a letter or two make of the word, or that it begins.
fn near<'n>(word: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let letters = word.chars().count();
    let most = if letters <= 3 { 1 } else { 2 };
    let cost = |name: &str| match name.strip_prefix(word) {
        Some(_) if letters >= 3 => 0,
        _ => edits(word, name),
    };
    let mut found: Vec<(usize, &str)> =
        names.map(|name| (cost(name), name)).filter(|(cost, _)| *cost <= most.min(letters.saturating_sub(1))).collect();
    found.sort_unstable();
    found.dedup();
    match found[..] {
        [(least, name), ref others @ ..] if others.iter().all(|(cost, _)| *cost > least) => Some(name),
        _ => None,
    }
}

/// Letters to put in, leave out, or change, so that one word becomes the other (Levenshtein 1966).
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, other) in b.iter().enumerate() {
            let changed = corner + usize::from(letter != *other);
            corner = row[j + 1];
            row[j + 1] = changed.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::super::Recipe;

    fn told(text: &str) -> String {
        text.parse::<Recipe>().expect_err(text).to_string()
    }

    #[test]
    fn a_word_that_is_near_is_named() {
        for (text, near) in [
            ("fp16", "grace:fp16"),
            ("demo", "dct:tiles+topk:k=32,block=4096,clamped+ef:beta=0.999"),
            ("QSGD", "qsgd"),
            ("qsgdd:bits=4", "qsgd"),
            ("top-k:0.01", "topk"),
            ("topk:0.01+eff", "ef"),
            ("TernGrad", "grace:terngrad"),
            ("SignSGD", "grace:signsgd"),
            ("power_sgd", "powersgd"),
            ("randk:0.1", "randomk"),
            ("onebit+mom=0.9", "momentum"),
            ("qsgd:bit=4", "bits"),
            ("powersgd:ranks=4", "rank"),
            ("grace:TopK", "topk"),
            ("grace:fp-16", "fp16"),
        ] {
            assert!(told(text).contains(&format!("(do you mean {near}?)")), "{text}: {}", told(text));
        }
        let settings = ["qsgd:x=1", "topk:0.1%", "topk:all=1", "topk:par=1", "topk:x=5", "topk:such"];
        for text in ["", "nothing", "xyz", "x", "é", "grace:no_such"].iter().chain(&settings) {
            assert!(!told(text).contains("do you mean"), "{text}: {}", told(text));
        }
    }

    #[test]
    fn what_is_named_is_a_recipe() {
        for (_, recipe) in super::OTHERS.iter().filter(|(_, recipe)| !recipe.contains(" or ")) {
            // Some want a setting that only the user knows.
            if !matches!(*recipe, "randomk" | "powersgd") {
                recipe.parse::<Recipe>().unwrap_or_else(|error| panic!("{recipe}: {error}"));
            }
        }
    }
}
