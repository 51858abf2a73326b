//! Comments and pages keep to plain words: phrases of `words.txt` are rare, and become rarer.

use std::path::{Path, PathBuf};

const LIST: &str = include_str!("words.txt");

/// The most occurrences of each line of the list in 1,000 lines of comments. A number is lowered when the comments get
/// better, and is not raised.
const COMMENTS: [(&str, [f64; 5]); 11] = [
    ("host/src", [30.0, 2.4, 4.7, 0.2, 1.0]),
    ("collectives/src", [8.0, 1.0, 3.0, 0.0, 1.0]),
    ("planner/src", [8.0, 1.0, 3.0, 0.0, 1.0]),
    ("kernels-gpu/src", [43.0, 0.3, 8.5, 1.2, 4.7]),
    ("ptx/src", [8.0, 1.0, 3.0, 0.0, 1.0]),
    ("shaders/src", [37.0, 0.0, 0.0, 0.0, 0.0]),
    ("tools", [100.0, 3.3, 7.0, 0.6, 12.0]),
    ("xtask/src", [8.0, 1.0, 3.0, 0.0, 1.0]),
    ("tests/src", [86.0, 3.0, 4.0, 0.0, 14.0]),
    ("tests/tests", [112.0, 10.0, 14.0, 0.0, 8.0]),
    ("python/src", [8.0, 1.0, 3.0, 0.0, 1.0]),
];

/// The same, in 1,000 lines of all pages of a folder that are not written by a command.
const PAGES: [(&str, [f64; 5]); 3] = [
    (".", [48.0, 10.0, 18.0, 8.0, 2.0]),
    ("docs", [38.0, 6.0, 16.0, 2.0, 1.0]),
    ("python", [28.0, 0.0, 6.0, 0.0, 0.0]),
];

/// Where a glossary begins.
const GLOSSARY: &str = "| not | but |";

/// Written by commands, from texts in tools and tests/src.
const GENERATED: [&str; 3] = ["docs/sass.md", "docs/study.md", "docs/traffic.md"];

#[test]
fn comments_keep_to_plain_words() {
    let mut failures = Vec::new();
    for (folder, most) in COMMENTS {
        let mut files = Vec::new();
        walk(&root().join(folder), &mut files);
        let texts = files.iter().filter(|path| path.extension().is_some_and(|end| end == "rs"));
        let text: String = texts.map(|path| comments(&read(path))).collect();
        expect(folder, &text, most, &mut failures);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn pages_keep_to_plain_words() {
    let mut failures = Vec::new();
    let generated = GENERATED.map(|page| root().join(page));
    for (folder, most) in PAGES {
        let entries = std::fs::read_dir(root().join(folder)).expect("a folder of the repository");
        let paths = entries.map(|entry| entry.expect("it can be listed").path());
        let pages = paths.filter(|path| path.extension().is_some_and(|end| end == "md") && !generated.contains(path));
        // The glossary of CONTRIBUTING.md has all of them.
        let text: String =
            pages.map(|path| read(&path).split(GLOSSARY).next().unwrap_or_default().to_owned()).collect();
        expect(folder, &text, most, &mut failures);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_phrase_is_counted_over_the_end_of_a_line() {
    let text = comments("/// What\n/// is late, behind. `whatis`\nlet what_is = 1; // what is\n    //! so so many\n");
    let counted = phrases().map(|(_, phrases)| count(&text, &phrases)).collect::<Vec<_>>();
    assert_eq!((text.lines().count(), counted), (3, vec![1, 1, 0, 0, 1]));
}

/// Notes where a text has more of some phrases than it may.
fn expect(name: &str, text: &str, most: [f64; 5], failures: &mut Vec<String>) {
    let lines = text.lines().filter(|line| !line.trim().is_empty()).count().max(1);
    for ((line, phrases), most) in phrases().zip(most) {
        let rate = 1000.0 * count(text, &phrases) as f64 / lines as f64;
        if rate > most {
            failures.push(format!("{name}: {rate:.1} of 1,000 lines, and not {most:.1}, have one of `{line}`"));
        }
    }
}

/// The list: each line, and its phrases in words.
fn phrases() -> impl Iterator<Item = (&'static str, Vec<Vec<String>>)> {
    let lines = LIST.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| (line, line.split(':').next().unwrap_or_default().split(',').map(words).collect()))
}

fn count(text: &str, phrases: &[Vec<String>]) -> usize {
    let text = words(text);
    phrases.iter().map(|phrase| text.windows(phrase.len()).filter(|at| *at == phrase).count()).sum()
}

/// In small letters. What is written as code is one word.
fn words(text: &str) -> Vec<String> {
    let parts = text.split(|c: char| !(c.is_alphanumeric() || "_`'".contains(c)));
    parts.filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

/// The lines of a file's comments that have a line of their own, without slashes.
fn comments(text: &str) -> String {
    let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix("//"));
    lines.flat_map(|line| [line.trim_start_matches(['/', '!']), "\n"]).collect()
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the repository") {
        let path = entry.expect("it can be listed").path();
        if path.is_dir() { walk(&path, files) } else { files.push(path) }
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
