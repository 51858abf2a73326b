//! The tables of stages: which will run, and their outcomes.

use std::fmt::Write as _;

use super::plan::{Decision, Does};
use super::stage::Stage;

/// What came of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All its lines succeeded.
    Passed,
    /// One did not.
    Failed,
    /// It did not run, since nothing asked for it.
    LeftOut,
    /// It did not run, since another one failed.
    NotReached,
}

impl Outcome {
    /// As a word of a table.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::LeftOut => "left out",
            Self::NotReached => "not run",
        }
    }
}

/// A stage of the last table.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) outcome: Outcome,
    pub(super) seconds: u64,
    pub(super) why: String,
}

/// What will be done.
pub(super) fn decisions(all: &[(&Stage, Decision)]) -> String {
    let mut text = String::new();
    for (stage, Decision { does, why }) in all {
        let does = match does {
            Does::Run => "runs",
            Does::RunWhole => "runs in whole",
            Does::LeftOut => "is left out",
        };
        // A String takes all that is written to it.
        let _ = writeln!(text, "{:11} {does:13} {why}", stage.name);
    }
    text
}

/// What came of it, and whether all passed. The last line is what programs read.
pub(super) fn outcomes(rows: &[Row]) -> (String, bool) {
    let mut text = format!("\n{:11} {:8} {:>7}  why\n", "stage", "outcome", "seconds");
    for Row { name, outcome, seconds, why } in rows {
        let ran = matches!(outcome, Outcome::Passed | Outcome::Failed);
        let seconds = if ran { seconds.to_string() } else { "-".to_owned() };
        let _ = writeln!(text, "{name:11} {:8} {seconds:>7}  {why}", outcome.word());
    }
    let count = |wanted: Outcome| rows.iter().filter(|row| row.outcome == wanted).count();
    let (passed, failed) = (count(Outcome::Passed), count(Outcome::Failed));
    let seconds: u64 = rows.iter().map(|row| row.seconds).sum();
    let _ = writeln!(text, "{:11} {:8} {seconds:>7}", "all", "");
    let _ = writeln!(text, "{passed} passed, {failed} failed");
    (text, failed == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_counts() {
        let row = |name, outcome, seconds| Row { name, outcome, seconds, why: "it always runs".to_owned() };
        let rows = [row("test", Outcome::Passed, 300), row("tint", Outcome::LeftOut, 0)];
        let (text, passed) = outcomes(&rows);
        assert_eq!((text.lines().last(), passed), (Some("1 passed, 0 failed"), true));
        assert!(text.contains("tint        left out       -  it always runs\n"), "{text}");
        let rows = [row("test", Outcome::Failed, 300), row("tint", Outcome::NotReached, 0)];
        let (text, passed) = outcomes(&rows);
        assert_eq!((text.lines().last(), passed), (Some("0 passed, 1 failed"), false));
    }
}
