//! Going on with a report that ran out of time: what it has stays, what it lacks runs.

use std::path::Path;

use super::place::Place;
use super::plan::Planned;
use super::schema::{Outcome, Report, StageRow};

/// An earlier report, for this run to go on with.
///
/// # Errors
/// If it cannot be read, or is of other kernels than this run's.
pub(super) fn earlier(path: &Path, fresh: &Report) -> Result<Report, String> {
    let mut report = Report::open(path)?;
    let name = path.display();
    if report.kernels != fresh.kernels {
        return Err(format!(
            "{name} is of kernels {}, and this program has {}: make a new report",
            report.kernels, fresh.kernels
        ));
    }
    report.resumed.push(format!("{} {}", fresh.date, fresh.commit));
    report.minutes_allowed += fresh.minutes_allowed;
    report.complete = false;
    for device in &mut report.devices {
        // Suites that did not end run again, and say everything again. What failed stays.
        device.verify.retain(|row| row.complete || row.failed() > 0);
        // What was not there may be there now.
        device.missing = None;
    }
    Ok(report)
}

/// Whether a report lacks what a part gives.
pub(super) fn is_missing(report: &Report, part: Planned) -> bool {
    let ended = |name: String, wanted: &[Outcome]| {
        report.stages.iter().any(|stage| stage.name == name && wanted.contains(&stage.outcome))
    };
    match part {
        Planned::Verify(place, ..) => !ended(format!("verify {place}"), &[Outcome::Done]),
        Planned::Bench(place) => !ended(format!("bench {place}"), &[Outcome::Done]),
        // One that ran out of time keeps its rows. One that did not begin, or was not there, runs.
        Planned::Peer(script) => {
            let name = format!("peers {script}");
            let begun = |stage: &StageRow| stage.name == name && !stage.note.starts_with("not begun");
            !(ended(name.clone(), &[Outcome::Done, Outcome::OutOfTime]) && report.stages.iter().any(begun))
        }
        Planned::Sanitizer(tool) => !ended(format!("sanitizer {tool}"), &[Outcome::Done]),
    }
}

/// Makes ready for the timings that a device lacks: what was said of them before is out of date.
pub(super) fn again(report: &mut Report, place: Place) {
    let device = report.device(place.backend());
    device.skipped.clear();
    device.families.clear();
}

#[cfg(test)]
mod tests {
    use super::super::bench::timed_before;
    use super::super::schema::tests::report;
    use super::super::stage::How;
    use super::*;

    #[test]
    fn what_ended_is_not_run_again() {
        let mut old = report();
        let stage =
            |name: &str, outcome| StageRow { name: name.to_owned(), outcome, seconds: 1.0, note: String::new() };
        old.stages = vec![
            stage("verify cuda:90", Outcome::Done),
            stage("verify cuda:80", Outcome::OutOfTime),
            stage("bench cuda", Outcome::OutOfTime),
            stage("peers a.py", Outcome::OutOfTime),
            stage("peers b.py", Outcome::Absent),
            StageRow { note: "not begun: the time was up".to_owned(), ..stage("peers c.py", Outcome::OutOfTime) },
        ];
        let verify = |target| Planned::Verify(Place::Cuda(Some(target)), How::Quick, false);
        let parts = [verify(90), verify(80), verify(35), Planned::Bench(Place::Cuda(None))];
        assert_eq!(parts.map(|part| is_missing(&old, part)), [false, true, true, true]);
        let peers = ["a.py", "b.py", "c.py"].map(|script| is_missing(&old, Planned::Peer(script)));
        assert_eq!(peers, [false, true, true]);
    }

    #[test]
    fn a_report_of_other_kernels_is_refused_and_a_known_row_is_not_timed_again() {
        let folder = std::env::temp_dir().join(format!("gradwire-resume-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("report.json");
        let mut old = report();
        old.devices[0].verify.push(Default::default());
        old.devices[0].missing = Some("no driver".to_owned());
        old.write(&path).unwrap();
        let fresh = Report { kernels: old.kernels.clone(), minutes_allowed: 2.0, ..Report::default() };
        let taken = earlier(&path, &fresh).unwrap();
        assert_eq!((taken.resumed.len(), taken.complete), (1, false));
        assert!(taken.devices[0].verify.iter().all(|row| row.complete), "a suite that did not end is left out");
        assert_eq!(taken.devices[0].missing, None, "a device may be there now");
        let other = Report { kernels: "other".to_owned(), ..Report::default() };
        assert!(earlier(&path, &other).unwrap_err().contains("make a new report"));
        let known = timed_before(&path, Place::Cuda(None)).unwrap();
        assert_eq!(known.len(), old.device("cuda").rows.len());
        assert!(!known.is_empty());
        assert!(earlier(&folder.join("none.json"), &fresh).unwrap_err().contains("could not be read"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
