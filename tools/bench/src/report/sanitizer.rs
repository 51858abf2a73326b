//! `report --sanitizer`: NVIDIA's compute-sanitizer over this binary's own suite.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use gradwire_tools::child::{Heard, listen};

use super::machine::find;
use super::place::Place;
use super::schema::SanitizerRow;

/// What is looked for: bad accesses, races in shared memory, reads of what nothing wrote.
pub(crate) const TOOLS: [&str; 3] = ["memcheck", "racecheck", "initcheck"];
/// What compute-sanitizer is told to exit with if it finds something.
const FOUND: i32 = 86;

/// Runs one tool over the small suite. Its whole output goes to a file in `out`.
pub(crate) fn run(tool: &str, place: Place, out: &Path, deadline: Instant) -> SanitizerRow {
    let start = Instant::now();
    let row = |clean, said: String| SanitizerRow {
        tool: tool.to_owned(),
        clean,
        said,
        seconds: start.elapsed().as_secs_f64(),
    };
    let (program, this) = match (find("compute-sanitizer"), std::env::current_exe()) {
        (Err(why), _) => return row(None, why),
        (_, Err(e)) => return row(None, format!("this program's own path is not known: {e}")),
        (Ok(program), Ok(this)) => (program, this),
    };
    let mut command = Command::new(program);
    command.args(["--tool", tool, "--error-exitcode", &FOUND.to_string(), "--print-limit", "20"]);
    command.arg(this).args(["report-stage", "verify", &place.to_string(), "--depth", "smoke"]);
    let mut log = Vec::new();
    let ended = listen(&mut command, deadline, |heard| {
        if let Heard::Line(line) = heard {
            log.push(line.to_owned());
        }
    });
    let path = out.join(format!("sanitizer-{tool}.log"));
    if let Err(e) = std::fs::write(&path, log.join("\n") + "\n") {
        log.push(format!("({} could not be written: {e})", path.display()));
    }
    match ended {
        Err(why) => row(None, why),
        Ok(ended) if ended.out_of_time => {
            row(None, "it did not come to its end in time; give it more with --minutes".to_owned())
        }
        Ok(ended) => {
            let (clean, said) = verdict(&log, ended.code);
            row(clean, said)
        }
    }
}

/// What its output and exit code say.
fn verdict(log: &[String], code: Option<i32>) -> (Option<bool>, String) {
    let summary = log.iter().rev().find(|line| line.contains("ERROR SUMMARY") || line.contains("RACECHECK SUMMARY"));
    // A suite that found no device comes to its end too.
    let has = |what: &str| log.iter().any(|line| line.contains(&format!("\"event\":\"{what}\"")));
    let finished = has("done") && has("verdict");
    let failed = log.iter().any(|line| line.contains("\"failure\":\""));
    let said = summary.or(log.last()).map_or("it said nothing", String::as_str);
    let said = said.trim_start_matches(['=', ' ']).to_owned();
    match code {
        Some(0) if finished && !failed && summary.is_some() => (Some(true), said),
        Some(0) if failed => (Some(false), format!("checks of the suite failed under it; {said}")),
        Some(FOUND) => (Some(false), said),
        // It refused the device, or the suite did not get there: nothing was checked.
        code => (None, format!("nothing can be said: exit code {code:?}; {said}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(lines: &[&str]) -> Vec<String> {
        lines.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn clean_is_said_only_of_a_suite_that_came_to_its_end() {
        let summary = "========= ERROR SUMMARY: 0 errors";
        let [good, done] = ["{\"event\":\"verdict\",\"failure\":null}", "{\"event\":\"done\"}"];
        assert_eq!(verdict(&log(&[good, done, summary]), Some(0)), (Some(true), "ERROR SUMMARY: 0 errors".to_owned()));
        assert_eq!(verdict(&log(&[done, summary]), Some(0)).0, None, "there was no device");
        assert_eq!(verdict(&log(&[summary]), Some(0)).0, None, "the suite did not end");
        assert_eq!(verdict(&log(&[good, done]), Some(0)).0, None, "the tool was not there");
        let bad = "{\"event\":\"verdict\",\"failure\":\"byte 7\"}";
        assert_eq!(verdict(&log(&[bad, done, summary]), Some(0)).0, Some(false));
        assert_eq!(verdict(&log(&["========= ERROR SUMMARY: 3 errors"]), Some(FOUND)).0, Some(false));
        let (clean, said) = verdict(&log(&["========= Error: Device not supported"]), Some(1));
        assert!(clean.is_none() && said.ends_with("Error: Device not supported"), "{said}");
    }
}
