//! What a part of the report says, taken in line by line, and what it amounts to at its end.

use std::time::Instant;

use gradwire_tools::child::Ended;

use super::event::Event;
use super::place::Place;
use super::schema::{Outcome, Report, VerifyRow};
use super::stage::What;

/// What a part has said so far.
pub(super) struct Part {
    what: What,
    place: Place,
    /// What it was about to do.
    last: String,
    done: bool,
    problems: Vec<String>,
}

impl Part {
    pub(super) fn new(what: What, place: Place) -> Self {
        Self { what, place, last: String::new(), done: false, problems: Vec::new() }
    }

    /// Takes in a line.
    pub(super) fn take(&mut self, report: &mut Report, line: &str, start: Instant) {
        // Whatever else is printed, as by a driver, is no event.
        let Ok(event) = serde_json::from_str::<Event>(line) else { return };
        let device = report.device(self.place.backend());
        match event {
            Event::Device { name, details, compute_capability, software } => {
                (device.name, device.details) = (name, details);
                (device.compute_capability, device.software) = (compute_capability, software);
            }
            Event::Missing { why } => match self.what {
                What::Verify => {
                    if let Some(row) = device.verify.last_mut() {
                        row.refused = Some(why);
                    }
                }
                What::Probe => device.missing = Some(why),
                What::Bench | What::Once => self.problems.push(why),
            },
            Event::Next { what } => self.last = what,
            Event::Verdict { codec, check, compared, failure } => {
                let Some(row) = device.verify.last_mut() else { return };
                row.seconds = start.elapsed().as_secs_f64();
                row.note(codec, check, compared, failure);
            }
            Event::Clock { clock } => device.clock = Some(clock),
            Event::Family { row } => device.families.push(row),
            Event::Copy { gbps } => {
                device.copies.push(gbps);
                device.share();
            }
            Event::Launch { seconds } => device.launch_seconds = Some(seconds),
            Event::Row { row } => {
                device.rows.push(row);
                device.share();
            }
            Event::Skipped { what } => device.skipped.push(what),
            Event::Wrong { what } => self.problems.push(what),
            Event::Done => self.done = true,
        }
    }

    /// What came of it.
    pub(super) fn outcome(self, report: &mut Report, ended: &Ended) -> (Outcome, String) {
        let device = report.device(self.place.backend());
        let wrong = self.what == What::Verify && device.verify.last().is_some_and(|row| row.failed() > 0);
        if ended.out_of_time && !wrong {
            return (Outcome::OutOfTime, format!("stopped at: {}", self.last));
        }
        if ended.out_of_time {
            return (Outcome::Failed, format!("checks failed, and the time was up at: {}", self.last));
        }
        if !ended.well() || !self.done {
            let code = ended.code.map_or_else(|| "was killed".to_owned(), |code| format!("ended with {code}"));
            return (Outcome::Failed, format!("its process {code} at: {}. {}", self.last, ended.words));
        }
        if !self.problems.is_empty() {
            return (Outcome::Failed, self.problems.join("; "));
        }
        let verified = if self.what == What::Verify { device.verify.last_mut() } else { None };
        match verified {
            Some(VerifyRow { refused: Some(why), .. }) => (Outcome::Absent, why.clone()),
            Some(row) => {
                row.complete = true;
                let (passed, failed) = (row.passed(), row.failed());
                let outcome = if failed == 0 && passed > 0 { Outcome::Done } else { Outcome::Failed };
                (outcome, format!("{passed} checks passed, {failed} failed, {} compared", row.compared()))
            }
            None => match (self.what, &device.missing) {
                (What::Probe, Some(why)) => (Outcome::Absent, why.clone()),
                (What::Bench, _) if device.skipped.iter().any(|what| what.contains("the time was up")) => {
                    (Outcome::OutOfTime, format!("{} rows; {}", device.rows.len(), device.skipped.join("; ")))
                }
                (What::Bench, _) => (Outcome::Done, format!("{} rows", device.rows.len())),
                _ => (Outcome::Done, device.name.clone()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradwire_tools::child::Ended;

    fn part(what: What) -> Part {
        Part { what, place: Place::Cpu, last: "the last thing".to_owned(), done: false, problems: Vec::new() }
    }

    fn ended(code: Option<i32>) -> Ended {
        Ended { code, out_of_time: false, words: "its words".to_owned() }
    }

    fn lines(part: &mut Part, report: &mut Report, events: &[Event]) {
        for event in events {
            part.take(report, &serde_json::to_string(event).unwrap(), Instant::now());
        }
        part.take(report, "WARNING: a driver's own words", Instant::now());
    }

    #[test]
    fn a_part_that_dies_is_a_failure_and_what_it_found_stays() {
        let mut report = Report::default();
        let mut part = part(What::Bench);
        let row = super::super::schema::tests::row("QSGD", "encode", 1 << 20);
        lines(&mut part, &mut report, &[Event::Row { row }, Event::Copy { gbps: 4500.0 }]);
        let (outcome, note) = part.outcome(&mut report, &ended(Some(101)));
        assert_eq!(outcome, Outcome::Failed);
        assert!(note.contains("ended with 101 at: the last thing. its words"), "{note}");
        assert_eq!(report.device("cpu").rows[0].copy_share, Some(0.5));
    }

    #[test]
    fn failures_of_the_suite_are_counted_and_kept() {
        let mut report = Report::default();
        let verdict = |check: &str, failure: Option<&str>| Event::Verdict {
            codec: "QSGD".to_owned(),
            check: check.to_owned(),
            compared: 5,
            failure: failure.map(str::to_owned),
        };
        for (events, expected) in [
            (vec![verdict("bytes", None), Event::Done], Outcome::Done),
            (
                vec![
                    verdict("bytes", None),
                    verdict("sums", Some("a")),
                    verdict("bytes", None),
                    verdict("sums", Some("b")),
                    Event::Done,
                ],
                Outcome::Failed,
            ),
            (vec![Event::Done], Outcome::Failed),
            (vec![Event::Missing { why: "refused".to_owned() }, Event::Done], Outcome::Absent),
        ] {
            report.device("cpu").verify.push(VerifyRow::default());
            let mut part = part(What::Verify);
            lines(&mut part, &mut report, &events);
            assert_eq!(part.outcome(&mut report, &ended(Some(0))).0, expected, "{events:?}");
        }
        let row = &report.device("cpu").verify[1];
        assert_eq!((row.passed(), row.failed(), row.compared(), row.complete), (1, 1, 20, true));
        assert_eq!((row.checks[1].failed, &row.checks[1].failures[..]), (2, &["a".to_owned(), "b".to_owned()][..]));
        let killed = Ended { out_of_time: true, ..ended(None) };
        report.device("cpu").verify.rotate_left(2);
        assert_eq!(part(What::Verify).outcome(&mut report, &killed).0, Outcome::Failed, "what failed before counts");
    }

    #[test]
    fn a_wrong_result_fails_the_bench_and_short_time_is_said() {
        let mut report = Report::default();
        let mut wrong = part(What::Bench);
        lines(&mut wrong, &mut report, &[Event::Wrong { what: "byte 3".to_owned() }, Event::Done]);
        assert_eq!(wrong.outcome(&mut report, &ended(Some(0))), (Outcome::Failed, "byte 3".to_owned()));
        let mut short = part(What::Bench);
        lines(&mut short, &mut report, &[Event::Skipped { what: "2^28: the time was up".to_owned() }, Event::Done]);
        assert_eq!(short.outcome(&mut report, &ended(Some(0))).0, Outcome::OutOfTime);
        let killed = Ended { out_of_time: true, ..ended(None) };
        let (outcome, note) = part(What::Verify).outcome(&mut report, &killed);
        assert_eq!((outcome, note.as_str()), (Outcome::OutOfTime, "stopped at: the last thing"));
    }
}
