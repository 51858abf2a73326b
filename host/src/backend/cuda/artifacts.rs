//! Choosing among the PTX artifacts, and reading what a PTX text says of itself. Pure: no driver is asked.

pub use gradwire_ptx::{Artifact, FAMILIES, Family, TARGETS, family_of};

/// The PTX of a family for a target, as a driver takes it.
#[must_use]
pub fn text(artifact: &Artifact) -> String {
    [artifact.head, artifact.instructions()].concat()
}

/// Whether the kernels of an artifact wait, before they touch memory, until the kernel before them in the stream is
/// done: those of some families, from sm_90 on. All kernels of a family do, or none.
#[must_use]
pub fn waits(artifact: &Artifact) -> bool {
    artifact.instructions().contains("griddepcontrol.wait;")
}

/// Those artifacts of a family that a device of compute capability `cc` can run, in the order in which to try them.
///
/// PTX runs on its target and on everything newer, and a newer target has more instructions to use, so the highest
/// comes first. The lower ones follow because a driver may refuse a text that the device could run: a higher target
/// needs a newer PTX ISA, and the PTX ISA is the driver's to know.
///
/// ```text
/// capability 8.6, artifacts 35 60 70 80 90   ->   80 70 60 35
/// ```
#[must_use]
pub fn candidates(artifacts: &[Artifact], cc: (u32, u32)) -> Vec<&Artifact> {
    let device = cc.0.saturating_mul(10).saturating_add(cc.1);
    let mut fitting: Vec<&Artifact> = artifacts.iter().filter(|artifact| artifact.target <= device).collect();
    fitting.sort_by_key(|artifact| std::cmp::Reverse(artifact.target));
    fitting
}

/// What a PTX text says of itself in its first two directives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The PTX ISA it is written in, from `.version`.
    pub version: (u32, u32),
    /// The lowest compute capability it runs on, from `.target`.
    pub target: u32,
}

impl Header {
    /// Reads `.version X.Y` and `.target sm_NN`, with which every PTX module begins.
    ///
    /// `None` if the text does not begin so, and for a target with a letter after it (`sm_90a`): such a text runs
    /// on that one generation only, and the rule of [`candidates`] would be wrong for it.
    #[must_use]
    pub fn parse(ptx: &str) -> Option<Header> {
        let rest = skip_blank(ptx).strip_prefix(".version")?;
        let (version, rest) = word(rest);
        let (major, minor) = version.split_once('.')?;
        let version = (number(major)?, number(minor)?);

        let rest = skip_blank(rest).strip_prefix(".target")?;
        let (target, _) = word(rest);
        Some(Header { version, target: number(target.strip_prefix("sm_")?)? })
    }

    /// The first CUDA release whose driver reads this PTX ISA; `None` for one that was not out when this was written.
    #[must_use]
    pub fn least_cuda(self) -> Option<(u32, u32)> {
        RELEASES.iter().find(|[isa, _]| *isa == self.version).map(|[_, cuda]| *cuda)
    }
}

/// PTX ISA versions, each with the CUDA release that brought it: the release history in NVIDIA's PTX ISA manual, from
/// Kepler's 3.1 on.
#[rustfmt::skip]
const RELEASES: &[[(u32, u32); 2]] = &[
    [(3, 1), (5, 0)], [(3, 2), (5, 5)],
    [(4, 0), (6, 0)], [(4, 1), (6, 5)], [(4, 2), (7, 0)], [(4, 3), (7, 5)],
    [(5, 0), (8, 0)],
    [(6, 0), (9, 0)], [(6, 1), (9, 1)], [(6, 2), (9, 2)], [(6, 3), (10, 0)], [(6, 4), (10, 1)], [(6, 5), (10, 2)],
    [(7, 0), (11, 0)], [(7, 1), (11, 1)], [(7, 2), (11, 2)], [(7, 3), (11, 3)], [(7, 4), (11, 4)], [(7, 5), (11, 5)],
    [(7, 6), (11, 6)], [(7, 7), (11, 7)], [(7, 8), (11, 8)],
    [(8, 0), (12, 0)], [(8, 1), (12, 1)], [(8, 2), (12, 2)], [(8, 3), (12, 3)], [(8, 4), (12, 4)], [(8, 5), (12, 5)],
    [(8, 6), (12, 7)], [(8, 7), (12, 8)], [(8, 8), (12, 9)],
    [(9, 0), (13, 0)],
];

/// The text after white space and comments; a compiler puts its name and options in comments before the header.
fn skip_blank(mut text: &str) -> &str {
    loop {
        text = text.trim_start();
        let comment = if text.starts_with("//") {
            text.find('\n')
        } else if text.starts_with("/*") {
            text.find("*/").map(|at| at + 2)
        } else {
            return text;
        };
        match comment {
            Some(end) => text = &text[end..],
            None => return "",
        }
    }
}

/// The next word, which ends at white space, at a comma (`.target sm_70, debug`) or at a comment, and what follows it.
fn word(text: &str) -> (&str, &str) {
    let text = skip_blank(text);
    text.split_at(text.find(|c: char| c.is_whitespace() || c == ',' || c == '/').unwrap_or(text.len()))
}

/// A number written in digits alone; `parse` by itself would let a sign pass.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Artifact; 5] = [artifact(60), artifact(35), artifact(90), artifact(70), artifact(80)];

    const fn artifact(target: u32) -> Artifact {
        Artifact { target, head: "", shared: "" }
    }

    fn targets(cc: (u32, u32)) -> Vec<u32> {
        candidates(&ALL, cc).iter().map(|artifact| artifact.target).collect()
    }

    #[test]
    fn the_highest_target_the_device_can_run_comes_first() {
        assert_eq!(targets((3, 0)), [0; 0], "older than the lowest target");
        assert_eq!(targets((3, 5)), [35], "the lowest itself");
        assert_eq!(targets((5, 2)), [35], "between two targets");
        assert_eq!(targets((7, 5)), [70, 60, 35], "a minor above its target");
        assert_eq!(targets((9, 0)), [90, 80, 70, 60, 35], "the highest itself");
        assert_eq!(targets((12, 1)), [90, 80, 70, 60, 35], "newer than every target, with a major of two digits");
        assert_eq!(targets((u32::MAX, 9)), [90, 80, 70, 60, 35], "nonsense does not overflow");
        assert!(candidates(&[], (9, 0)).is_empty());
    }

    #[test]
    fn the_header_is_found_behind_comments() {
        let llvm = "//\n// Generated by LLVM NVPTX Back-End\n//\n\n.version 7.0\n.target sm_70\n.address_size 64\n";
        assert_eq!(Header::parse(llvm), Some(Header { version: (7, 0), target: 70 }));
        let odd = "/* .version 1.0\n .target sm_10 */ .version\t8.10 // why\n.target /**/ sm_120, debug\r\n";
        assert_eq!(Header::parse(odd), Some(Header { version: (8, 10), target: 120 }));
    }

    #[test]
    fn a_text_that_is_no_plain_ptx_has_no_header() {
        for text in [
            "",
            "//",
            "/* unclosed",
            ".version",
            ".version 7",
            ".version 7.",
            ".version +7.0\n.target sm_70",
            ".version 7.0",
            ".version 7.0\n.target",
            ".version 7.0\n.target compute_70",
            ".version 7.0\n.target sm_90a",
            ".version 99999999999.0\n.target sm_70",
            ".target sm_70\n.version 7.0",
            "\u{7f}ELF\u{2}",
        ] {
            assert_eq!(Header::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_isa_tells_which_driver_is_needed() {
        let least = |version| Header { version, target: 70 }.least_cuda();
        assert_eq!(least((6, 0)), Some((9, 0)), "the first with sm_70");
        assert_eq!(least((6, 5)), Some((10, 2)));
        assert_eq!(least((7, 0)), Some((11, 0)), "the first with sm_80");
        assert_eq!(least((7, 8)), Some((11, 8)), "the first with sm_90");
        assert_eq!(least((8, 5)), Some((12, 5)));
        assert_eq!(least((8, 6)), Some((12, 7)), "CUDA 12.6 brought no new ISA");
        assert_eq!(least((9, 0)), Some((13, 0)));
        assert_eq!(least((42, 0)), None);
    }
}
