//! The run of a report: its parts one after another, each a process with a deadline, and the files after every result.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use gradwire_kernels::ptx::ARTIFACTS;
use gradwire_tests::traffic::TARGETS;

use super::child::{Heard, listen};
use super::place::Place;
use super::schema::{Answer, Outcome, Report, SCHEMA, StageRow, VerifyRow, now};
use super::stage::{Event, How, What};
use super::{Args, machine, markdown, peers, sanitizer};

/// For a driver that has to start.
const PROBE: Duration = Duration::from_secs(60);
/// Between two writings of the files while a suite runs, which has much to say. Timings are written as they come.
const PAUSE: Duration = Duration::from_secs(1);

/// A part that is still to run. Each gets its weight's share of the time that is left, so what ends early leaves time to the
/// others; those whose results are worth most come first.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Planned {
    Verify(Place, How),
    Bench(Place),
    Peer(&'static str),
    Sanitizer(&'static str),
}

impl Planned {
    fn weight(self) -> f64 {
        match self {
            Self::Verify(_, How::Full) => 80.0,
            Self::Verify(_, How::Smoke) => 5.0,
            Self::Verify(Place::Cpu, _) => 4.0,
            Self::Verify(..) => 12.0,
            Self::Bench(Place::Cuda(_)) => 40.0,
            Self::Bench(Place::Wgpu) => 20.0,
            Self::Bench(_) => 12.0,
            Self::Peer(_) => 10.0,
            Self::Sanitizer(_) => 40.0,
        }
    }

    /// What is measured on a device that is there: the best artifact first, the others after the timings.
    fn of(place: Place, capability: Option<(u32, u32)>, quick: bool, full: bool) -> Vec<Self> {
        let depth = match (place, quick, full) {
            // An interpreter gets through the small suite alone.
            (Place::PtxMachine(_), ..) | (_, true, _) => How::Smoke,
            (_, _, true) => How::Full,
            _ => How::Quick,
        };
        let most = capability.map_or(0, |(major, minor)| 10 * major + minor);
        let mut targets: Vec<u32> = TARGETS.iter().map(|(major, minor)| 10 * major + minor).collect();
        targets.retain(|target| *target <= most);
        targets.sort_unstable_by(|a, b| b.cmp(a));
        let mut places = targets.iter().map(|target| place.with_target(*target));
        let best = places.next().unwrap_or(place);
        // CUDA loads what a user's device would: where the best is refused, a lower one.
        let timed = if matches!(place, Place::Cuda(_)) { place } else { best };
        let less = if depth == How::Full { How::Quick } else { depth };
        [Self::Verify(best, depth), Self::Bench(timed)]
            .into_iter()
            .chain(places.map(|p| Self::Verify(p, less)))
            .collect()
    }
}

/// A report in the making.
struct Run {
    report: Report,
    start: Instant,
    allowed: Duration,
    json: PathBuf,
    text: PathBuf,
    planned: VecDeque<Planned>,
    /// When the files were last written.
    saved: Instant,
    /// An error of the files' own, which ends the run.
    broken: Option<String>,
}

/// Runs everything that was asked for.
pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    let out = &args.out;
    let no_folder = |e| format!("the folder {} could not be made: {e}; name another with --out", out.display());
    std::fs::create_dir_all(out).map_err(no_folder)?;
    let scripts = if args.no_peers { None } else { Some(peers::folder(args.peers.as_deref(), out)?) };
    let mut run = Run {
        report: Report {
            schema: SCHEMA,
            date: now(),
            commit: env!("GRADWIRE_COMMIT").to_owned(),
            kernels: fingerprint(),
            minutes_allowed: args.minutes,
            machine: machine::describe(),
            ..Report::default()
        },
        start: Instant::now(),
        allowed: Duration::from_secs_f64(args.minutes * 60.0),
        json: out.join("report.json"),
        text: out.join("report.md"),
        planned: VecDeque::new(),
        saved: Instant::now(),
        broken: None,
    };
    run.save()?;
    println!("report   {}\n         {}", run.json.display(), run.text.display());
    if let Answer::Absent(why) = &run.report.machine.nvidia_smi {
        println!("clocks   not known: {why}");
    }
    let all = [Place::Cuda(None), Place::Wgpu, Place::Cpu];
    let places = if args.device.is_empty() { &all[..] } else { &args.device };
    run.plan(places, args)?;
    while let Some(part) = run.planned.pop_front() {
        run.part(part, scripts.as_deref(), args)?;
    }
    run.report.complete = true;
    run.save()?;
    let code = exit_code(&run.report, !args.device.is_empty());
    println!("\n{}", markdown::summary(&run.report));
    println!("report   {}\n         {}", run.json.display(), run.text.display());
    Ok(ExitCode::from(code))
}

/// CRC-32 of the PTX that this binary carries.
fn fingerprint() -> String {
    let mut crc = crc32fast::Hasher::new();
    ARTIFACTS.iter().for_each(|artifact| crc.update(artifact.ptx.as_bytes()));
    format!("{:08x}", crc.finalize())
}

/// What a report amounts to.
fn exit_code(report: &Report, asked: bool) -> u8 {
    let outcome = |wanted| report.stages.iter().any(|stage| stage.outcome == wanted);
    let here = |d: &&super::schema::DeviceReport| d.missing.is_none();
    let gpu = report.devices.iter().filter(here).any(|d| d.backend != "cpu" && !d.software);
    let missing = report.devices.iter().any(|d| d.missing.is_some());
    match () {
        () if outcome(Outcome::Failed) || report.sanitizer.iter().any(|s| s.clean == Some(false)) => 1,
        () if (asked && missing) || (!asked && !gpu) => 3,
        () if outcome(Outcome::OutOfTime) => 4,
        () => 0,
    }
}

impl Run {
    fn save(&mut self) -> Result<(), String> {
        self.report.seconds = self.start.elapsed().as_secs_f64();
        self.saved = Instant::now();
        self.report.write(&self.json)?;
        super::schema::replace(&self.text, &markdown::page(&self.report))
    }

    /// As [`Run::save`], where an error has to wait for the end of a part.
    fn save_or_note(&mut self) {
        if let Err(error) = self.save() {
            self.broken = Some(error);
        }
    }

    /// The end of a part that begins now: its share of what is left.
    fn deadline(&self, part: Planned) -> Instant {
        let later: f64 = self.planned.iter().map(|p| p.weight()).sum();
        let left = self.allowed.saturating_sub(self.start.elapsed());
        Instant::now() + left.mul_f64(part.weight() / (part.weight() + later))
    }

    fn time_is_up(&self) -> bool {
        self.start.elapsed() >= self.allowed
    }

    /// Asks for every device, and plans what runs on those that are here.
    fn plan(&mut self, places: &[Place], args: &Args) -> Result<(), String> {
        for place in places {
            let deadline = (Instant::now() + PROBE).min(self.start + self.allowed);
            let outcome = self.stage(What::Probe, *place, How::Quick, args.quick, deadline)?;
            let device = self.report.device(place.backend());
            if outcome == Outcome::Done && device.missing.is_none() {
                self.planned.extend(Planned::of(*place, device.compute_capability, args.quick, args.full));
            }
        }
        if !args.no_peers {
            self.planned.extend(peers::SCRIPTS.map(Planned::Peer));
        }
        if args.sanitizer {
            let here = self.report.devices.iter().any(|d| d.backend == "cuda" && d.missing.is_none());
            if here {
                self.planned.extend(sanitizer::TOOLS.map(Planned::Sanitizer));
            } else {
                let note = "compute-sanitizer watches CUDA, and there is no CUDA device".to_owned();
                self.close("sanitizer".to_owned(), Outcome::Absent, Instant::now(), note)?;
            }
        }
        Ok(())
    }

    fn part(&mut self, part: Planned, scripts: Option<&Path>, args: &Args) -> Result<(), String> {
        let deadline = self.deadline(part);
        match part {
            Planned::Verify(place, depth) => self.stage(What::Verify, place, depth, args.quick, deadline).map(drop),
            Planned::Bench(place) => self.stage(What::Bench, place, How::Quick, args.quick, deadline).map(drop),
            Planned::Peer(script) => scripts.map_or(Ok(()), |folder| self.peer(script, folder, deadline)),
            Planned::Sanitizer(tool) => self.sanitize(tool, &args.out, deadline),
        }
    }

    /// Runs a part in a process of its own, and takes in what it finds.
    fn stage(
        &mut self,
        what: What,
        place: Place,
        depth: How,
        quick: bool,
        deadline: Instant,
    ) -> Result<Outcome, String> {
        let name = match what {
            What::Probe => format!("probe {place}"),
            What::Verify => format!("verify {place}"),
            What::Bench => format!("bench {place}"),
        };
        if self.time_is_up() {
            return self.close(name, Outcome::OutOfTime, Instant::now(), "not begun: the time was up".to_owned());
        }
        let start = Instant::now();
        let this = std::env::current_exe().map_err(|e| format!("this program's own path is not known: {e}"))?;
        let mut command = Command::new(this);
        command.args(["report-stage", name.split(' ').next().unwrap_or_default(), &place.to_string()]);
        command.args(["--depth", depth.name()]);
        // It is to stop by itself a little before it would be killed.
        let seconds = deadline.saturating_duration_since(start).as_secs_f64();
        command.args(["--seconds", &format!("{:.1}", (0.9 * seconds - 1.0).max(0.5))]);
        if quick {
            command.arg("--quick");
        }
        if what == What::Verify {
            let row = VerifyRow { target: place.target(), depth: depth.name().to_owned(), ..VerifyRow::default() };
            self.report.device(place.backend()).verify.push(row);
        }
        let mut heard = Part { what, place, last: String::new(), done: false, problems: Vec::new() };
        let ended = listen(&mut command, deadline, |said| {
            match said {
                Heard::Tick if what == What::Bench => self.report.machine.while_timing.extend(machine::clocks()),
                Heard::Tick => {}
                Heard::Line(line) => heard.take(&mut self.report, line, start),
            }
            if what != What::Verify || self.saved.elapsed() >= PAUSE {
                self.save_or_note();
            }
        })?;
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        let (outcome, note) = heard.outcome(&mut self.report, &ended);
        self.close(name, outcome, start, note)
    }

    /// Notes what came of a part.
    fn close(&mut self, name: String, outcome: Outcome, start: Instant, note: String) -> Result<Outcome, String> {
        let seconds = start.elapsed().as_secs_f64();
        let word = match outcome {
            Outcome::Done => "done",
            Outcome::Failed => "FAILED",
            Outcome::Absent => "not here",
            Outcome::OutOfTime => "out of time",
        };
        println!("{:>4.0} s   {name:24} {word:12} {}", self.start.elapsed().as_secs_f64(), one_line(&note));
        self.report.stages.push(StageRow { name, outcome, seconds, note });
        self.save()?;
        Ok(outcome)
    }

    /// Runs one of the other implementations, on the GPU where there is one, at the sizes that were measured.
    fn peer(&mut self, script: &'static str, folder: &Path, deadline: Instant) -> Result<(), String> {
        let (name, start) = (format!("peers {script}"), Instant::now());
        let measured = |backend: &str| {
            let device = self.report.devices.iter().find(|d| d.backend == backend && !d.rows.is_empty())?;
            let mut sizes: Vec<usize> = device.rows.iter().map(|row| row.elements).collect();
            sizes.sort_unstable();
            sizes.dedup();
            Some((backend.to_owned(), sizes))
        };
        let Some((device, sizes)) = measured("cuda").or_else(|| measured("cpu")) else {
            let note = "neither CUDA nor the CPU was measured, so there is nothing to stand beside".to_owned();
            return self.close(name, Outcome::Absent, start, note).map(drop);
        };
        if self.time_is_up() {
            return self.close(name, Outcome::OutOfTime, start, "not begun: the time was up".to_owned()).map(drop);
        }
        let mut rows = 0;
        let ran = peers::run(script, folder, &device, &sizes, deadline, |row| {
            rows += 1;
            self.report.peers.push(row);
            self.save_or_note();
        });
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        let (outcome, note) = match ran {
            peers::Ran::Well => (Outcome::Done, format!("{rows} rows")),
            peers::Ran::Absent(why) => (Outcome::Absent, why),
            peers::Ran::OutOfTime => (Outcome::OutOfTime, format!("stopped after {rows} rows")),
            // Somebody else's program that breaks is no failure of ours.
            peers::Ran::Failed(why) => (Outcome::Absent, format!("it broke after {rows} rows: {why}")),
        };
        self.close(name, outcome, start, note).map(drop)
    }

    fn sanitize(&mut self, tool: &'static str, out: &Path, deadline: Instant) -> Result<(), String> {
        let (name, start) = (format!("sanitizer {tool}"), Instant::now());
        if self.time_is_up() {
            return self.close(name, Outcome::OutOfTime, start, "not begun: the time was up".to_owned()).map(drop);
        }
        let row = sanitizer::run(tool, Place::Cuda(None), out, deadline);
        let outcome = match row.clean {
            Some(true) => Outcome::Done,
            Some(false) => Outcome::Failed,
            None => Outcome::Absent,
        };
        let note = row.said.clone();
        self.report.sanitizer.push(row);
        self.close(name, outcome, start, note).map(drop)
    }
}

/// A text as part of a line.
pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What a part has said so far.
struct Part {
    what: What,
    place: Place,
    /// What it was about to do.
    last: String,
    done: bool,
    problems: Vec<String>,
}

impl Part {
    /// Takes in a line.
    fn take(&mut self, report: &mut Report, line: &str, start: Instant) {
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
                What::Bench => self.problems.push(why),
            },
            Event::Next { what } => self.last = what,
            Event::Verdict { codec, check, compared, failure } => {
                let Some(row) = device.verify.last_mut() else { return };
                row.seconds = start.elapsed().as_secs_f64();
                row.note(codec, check, compared, failure);
            }
            Event::Clock { clock } => device.clock = Some(clock),
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
    fn outcome(self, report: &mut Report, ended: &super::child::Ended) -> (Outcome, String) {
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
    use super::super::child::Ended;
    use super::super::schema::tests::report;
    use super::*;

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

    #[test]
    fn exit_codes_are_as_documented() {
        let mut report = report();
        assert_eq!(exit_code(&report, false), 0, "a GPU is here, and WGPU is missing");
        assert_eq!(exit_code(&report, true), 3, "WGPU was asked for");
        report.device("cuda").missing = Some("no driver".to_owned());
        assert_eq!(exit_code(&report, false), 3);
        report.device("cuda").missing = None;
        let stage = |outcome| StageRow { name: String::new(), outcome, seconds: 0.0, note: String::new() };
        report.stages.push(stage(Outcome::OutOfTime));
        assert_eq!(exit_code(&report, false), 4);
        report.stages.push(stage(Outcome::Failed));
        assert_eq!(exit_code(&report, false), 1);
        report.stages.clear();
        report.sanitizer[0].clean = Some(false);
        assert_eq!(exit_code(&report, false), 1);
    }

    #[test]
    fn every_artifact_that_fits_is_verified_and_the_best_first() {
        use Planned::{Bench, Verify};
        let cuda = |target| Place::Cuda(Some(target));
        assert_eq!(
            Planned::of(Place::Cuda(None), Some((7, 5)), false, true),
            [
                Verify(cuda(70), How::Full),
                Bench(Place::Cuda(None)),
                Verify(cuda(60), How::Quick),
                Verify(cuda(35), How::Quick)
            ]
        );
        assert_eq!(Planned::of(Place::Cuda(None), Some((12, 0)), false, false).len(), 6);
        assert_eq!(Planned::of(Place::Wgpu, None, true, false), [Verify(Place::Wgpu, How::Smoke), Bench(Place::Wgpu)]);
        let machine = Planned::of(Place::PtxMachine(60), Some((6, 0)), false, false);
        assert_eq!(machine[..2], [Verify(Place::PtxMachine(60), How::Smoke), Bench(Place::PtxMachine(60))]);
        assert_eq!(machine.len(), 3);
        assert_eq!(
            Planned::of(Place::Cuda(None), Some((3, 0)), false, false)[0],
            Verify(Place::Cuda(None), How::Quick)
        );
    }
}
