//! The run of a report: its parts one after another, each a process with a deadline, and the files after every result.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use gradwire_ptx::FAMILIES;
use gradwire_tools::child::{Heard, listen};
use gradwire_tools::files::{now, replace};

use super::part::Part;
use super::place::Place;
use super::plan::Planned;
use super::schema::{Answer, Outcome, Report, Row, SCHEMA, StageRow, VerifyRow};
use super::stage::{How, What};
use super::text::one_line;
use super::{Args, machine, markdown, peers, resume, sanitizer};

/// For a driver that has to start.
const PROBE: Duration = Duration::from_secs(60);
/// Between two writings of the files while a suite runs, which has much to say. Timings are written as they come.
const PAUSE: Duration = Duration::from_secs(1);

/// A report in the making.
struct Run {
    report: Report,
    /// Seconds of the runs before this one.
    before: f64,
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
    let fresh = Report {
        schema: SCHEMA,
        date: now(),
        commit: env!("GRADWIRE_COMMIT").to_owned(),
        kernels: fingerprint(),
        minutes_allowed: args.minutes,
        machine: machine::describe(),
        ..Report::default()
    };
    let earlier = args.resume.as_deref().map(|path| resume::earlier(path, &fresh)).transpose()?;
    let before = earlier.as_ref().map_or(0.0, |report| report.seconds);
    let mut run = Run {
        report: earlier.unwrap_or(fresh),
        before,
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
    for artifact in FAMILIES.iter().flat_map(|family| &family.artifacts) {
        crc.update(artifact.head.as_bytes());
        crc.update(artifact.instructions().as_bytes());
    }
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
        self.report.seconds = self.before + self.start.elapsed().as_secs_f64();
        self.saved = Instant::now();
        self.report.write(&self.json)?;
        replace(&self.text, &markdown::page(&self.report), "--out")
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
            let known = self.report.device(place.backend()).name.clone();
            let outcome = self.stage(What::Probe, *place, How::Quick, args.quick, deadline)?;
            let device = self.report.device(place.backend());
            if !known.is_empty() && known != device.name {
                return Err(format!("the report is of {known}, and here is {}: make a new report", device.name));
            }
            if outcome == Outcome::Done && device.missing.is_none() {
                let all = Planned::of(*place, device.compute_capability, args.quick, args.full);
                self.planned.extend(all.into_iter().filter(|part| resume::is_missing(&self.report, *part)));
            }
        }
        match machine::find("python3") {
            _ if args.no_peers => {}
            Ok(_) => {
                let all = peers::SCRIPTS.map(Planned::Peer);
                self.planned.extend(all.into_iter().filter(|part| resume::is_missing(&self.report, *part)));
            }
            // Not planned, so that they keep no time from the others.
            Err(why) => drop(self.close("peers".to_owned(), Outcome::Absent, Instant::now(), why)?),
        }
        if args.sanitizer {
            let here = self.report.devices.iter().any(|d| d.backend == "cuda" && d.missing.is_none());
            if here {
                let all = sanitizer::TOOLS.map(Planned::Sanitizer);
                self.planned.extend(all.into_iter().filter(|part| resume::is_missing(&self.report, *part)));
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
            Planned::Verify(place, depth, _) => self.stage(What::Verify, place, depth, args.quick, deadline).map(drop),
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
            What::Once => format!("once {place}"),
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
        if what == What::Bench {
            resume::again(&mut self.report, place);
            self.save()?;
            command.arg("--have").arg(&self.json);
        }
        let mut heard = Part::new(what, place);
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
        // A part that an earlier run did not end is listed once.
        self.report.stages.retain(|stage| stage.name != name);
        self.report.stages.push(StageRow { name, outcome, seconds, note });
        self.save()?;
        Ok(outcome)
    }

    /// Runs one of the other implementations, on the GPU if there is one, at the sizes that were measured.
    fn peer(&mut self, script: &'static str, folder: &Path, deadline: Instant) -> Result<(), String> {
        let (name, start) = (format!("peers {script}"), Instant::now());
        let measured = |backend: &str| {
            let device = self.report.devices.iter().find(|d| d.backend == backend && !d.rows.is_empty())?;
            // In the order in which they were measured, the most telling first.
            let mut sizes: Vec<usize> = Vec::new();
            // A whole model's size says nothing to what knows no models.
            let knows = |row: &&Row| script == peers::OF_MODELS || row.codec != "PowerSGD";
            for row in device.rows.iter().filter(knows) {
                if !sizes.contains(&row.elements) {
                    sizes.push(row.elements);
                }
            }
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

#[cfg(test)]
mod tests {
    use super::super::schema::tests::report;
    use super::*;

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
}
