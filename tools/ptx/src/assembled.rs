//! Which texts which assembler has taken, and for what: those need not be assembled again.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Where the list is committed.
pub(super) const LIST: &str = "ptx/assembled.txt";
/// A list counts for nothing where its head is another one. The number is of the check, and grows when it gets stricter.
const HEAD: &str = "# What check 1 of ptxas took without a spill; `cargo xtask ptx --check --accept` writes this file";

/// The list, of which each line is of one text, one capability and one version of ptxas.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Assembled(BTreeSet<String>);

/// The line of the list that is of a text.
pub(super) fn line(family: &str, target: u32, hash: &str, sm: u32, version: &str) -> String {
    format!("{family}/sm_{target}.ptx {hash} sm_{sm} {version}")
}

impl Assembled {
    /// The committed list; an empty one if there is none, and if it does not begin as it should.
    pub(super) fn read(root: &Path) -> Self {
        Self::parse(&fs::read_to_string(root.join(LIST)).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let lines = if lines.next() == Some(HEAD) { lines.map(str::to_owned).collect() } else { BTreeSet::new() };
        Self(lines)
    }

    /// Whether it has a line.
    pub(super) fn has(&self, line: &str) -> bool {
        self.0.contains(line)
    }

    /// Writes the list of these lines.
    pub(super) fn write(root: &Path, lines: impl Iterator<Item = String>) -> Result<(), String> {
        let sorted: BTreeSet<String> = lines.collect();
        let text: String =
            std::iter::once(HEAD).chain(sorted.iter().map(String::as_str)).map(|l| format!("{l}\n")).collect();
        fs::write(root.join(LIST), text).map_err(|e| format!("{LIST} could not be written: {e}"))?;
        println!("wrote {LIST}, of {} lines", sorted.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_what_was_written() {
        let root = std::env::temp_dir().join(format!("gradwire-assembled-{}", std::process::id()));
        fs::create_dir_all(root.join("ptx")).unwrap();
        let [one, two] = [90, 120].map(|sm| line("topk", 90, "ab", sm, "12.9.86"));
        assert!(!Assembled::read(&root).has(&one), "there is no list yet");
        Assembled::write(&root, [two.clone(), one.clone()].into_iter()).unwrap();
        let list = Assembled::read(&root);
        assert!(list.has(&one) && list.has(&two));
        for other in [("qsgd", 90, "ab"), ("topk", 80, "ab"), ("topk", 90, "cd")] {
            let (family, target, hash) = other;
            assert!(!list.has(&line(family, target, hash, 90, "12.9.86")), "{other:?}");
        }
        assert!(!list.has(&line("topk", 90, "ab", 90, "12.9.87")), "another assembler");
        assert_eq!(Assembled::parse(&one), Assembled(BTreeSet::new()), "the head is missing");
        let other = format!("{}\n{one}\n", HEAD.replace("check 1", "check 2"));
        assert_eq!(Assembled::parse(&other), Assembled(BTreeSet::new()), "another check");
        fs::remove_dir_all(root).unwrap();
    }
}
