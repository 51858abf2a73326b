//! What a report says: the JSON file, as a run writes it and as `benches/results` keeps it.

use std::path::Path;

use gradwire_tools::files::replace;
use serde::{Deserialize, Serialize};

/// The version of this schema. A reader refuses another.
pub(crate) const SCHEMA: u32 = 1;

/// One run on one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) schema: u32,
    /// When it began, in UTC.
    pub(crate) date: String,
    /// The commit that the binary was built from.
    pub(crate) commit: String,
    /// CRC-32 of the committed PTX that the binary carries, all targets one after another.
    pub(crate) kernels: String,
    /// Whether the run came to its end; false in what a killed run leaves.
    pub(crate) complete: bool,
    pub(crate) minutes_allowed: f64,
    pub(crate) seconds: f64,
    /// Later runs of the same kernels that went on with it: date and commit of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) resumed: Vec<String>,
    pub(crate) machine: Machine,
    pub(crate) devices: Vec<DeviceReport>,
    /// Other implementations, on the same machine in the same run.
    #[serde(default)]
    pub(crate) peers: Vec<PeerRow>,
    #[serde(default)]
    pub(crate) sanitizer: Vec<SanitizerRow>,
    /// Everything that was to run, and what came of it.
    pub(crate) stages: Vec<StageRow>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) os: String,
    pub(crate) cpu: String,
    pub(crate) threads: usize,
    /// What nvidia-smi said at the start; where it is not there, where it was looked for.
    pub(crate) nvidia_smi: Answer,
    /// What it said of clocks, power and temperature while kernels were timed.
    #[serde(default)]
    pub(crate) while_timing: Vec<String>,
}

/// An answer, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Said(Vec<String>),
    Absent(String),
}

impl Default for Answer {
    fn default() -> Self {
        Self::Absent("it was not asked".to_owned())
    }
}

/// One backend of the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct DeviceReport {
    /// `cuda`, `wgpu`, `cpu` or `ptx-machine`.
    pub(crate) backend: String,
    pub(crate) name: String,
    /// Why it is not here, with what was looked for.
    pub(crate) missing: Option<String>,
    /// What is known of it, in words: driver, memory, multiprocessors.
    pub(crate) details: Vec<String>,
    /// Major and minor, of a CUDA device.
    pub(crate) compute_capability: Option<(u32, u32)>,
    /// A GPU interface that is run by the CPU.
    pub(crate) software: bool,
    /// Whose clock the times are by.
    pub(crate) clock: Option<ClockName>,
    pub(crate) verify: Vec<VerifyRow>,
    /// Bytes read plus written each second by the device's own copy, in 10^9, each time it was measured in the run.
    pub(crate) copies: Vec<f64>,
    /// What the first call of each family of kernels waits for, where the driver has to compile it.
    #[serde(default)]
    pub(crate) families: Vec<FamilyRow>,
    /// Seconds from one launch of a kernel that does next to nothing to the next: no time below is shorter.
    pub(crate) launch_seconds: Option<f64>,
    pub(crate) rows: Vec<Row>,
    /// What was not measured, and why.
    pub(crate) skipped: Vec<String>,
}

/// A family of kernels that a driver compiled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct FamilyRow {
    pub(crate) family: String,
    /// The target of its PTX.
    pub(crate) target: u32,
    /// By the host's clock. The driver's own cache may have had it.
    pub(crate) seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClockName {
    /// Events or timestamps in the device's queue.
    Device,
    /// Wall clock of the host around many submissions.
    Host,
    /// The interpreter's own: no device was timed.
    Interpreter,
}

impl ClockName {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Device => "events or timestamps in the device's queue",
            Self::Host => "the host's clock around many runs",
            Self::Interpreter => "an interpreter's: these times say nothing of any GPU",
        }
    }
}

/// The suite on one artifact.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct VerifyRow {
    /// Of CUDA, the target of the PTX.
    pub(crate) target: Option<u32>,
    pub(crate) depth: String,
    /// The driver would not load this artifact, in its words.
    pub(crate) refused: Option<String>,
    /// Whether the suite came to its end.
    pub(crate) complete: bool,
    pub(crate) checks: Vec<CheckRow>,
    pub(crate) seconds: f64,
}

/// One check of one codec.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CheckRow {
    pub(crate) codec: String,
    pub(crate) check: String,
    /// Results that were compared.
    pub(crate) compared: u64,
    /// The first few.
    pub(crate) failures: Vec<String>,
    /// How many there were.
    pub(crate) failed: u64,
}

/// Failures of one check that are kept.
const KEPT_FAILURES: usize = 3;

impl VerifyRow {
    /// Takes in what came of a part of a check.
    pub(crate) fn note(&mut self, codec: String, check: String, compared: u64, failure: Option<String>) {
        let found = self.checks.iter().position(|row| row.codec == codec && row.check == check);
        let index = found.unwrap_or_else(|| {
            self.checks.push(CheckRow { codec, check, ..CheckRow::default() });
            self.checks.len() - 1
        });
        let row = &mut self.checks[index];
        row.compared += compared;
        if let Some(failure) = failure {
            row.failed += 1;
            if row.failures.len() < KEPT_FAILURES {
                row.failures.push(failure);
            }
        }
    }

    pub(crate) fn failed(&self) -> usize {
        self.checks.iter().filter(|row| row.failed > 0).count()
    }

    pub(crate) fn passed(&self) -> usize {
        self.checks.len() - self.failed()
    }

    pub(crate) fn compared(&self) -> u64 {
        self.checks.iter().map(|row| row.compared).sum()
    }
}

/// One kernel, or the few that make one operation, at one size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) codec: String,
    pub(crate) setting: String,
    pub(crate) op: String,
    pub(crate) dtype: String,
    pub(crate) elements: usize,
    /// Of one run: the median, and the quartiles.
    pub(crate) seconds: f64,
    pub(crate) seconds_p25: f64,
    pub(crate) seconds_p75: f64,
    /// Timings that the median is of, and runs in each.
    pub(crate) samples: usize,
    pub(crate) runs: u32,
    /// Sets of buffers that the runs take turns with, and bytes that all of them touch.
    pub(crate) sets: u32,
    pub(crate) rotated_bytes: u64,
    /// Launches of one run.
    pub(crate) passes: usize,
    /// Bytes that one run cannot do without: each input read once, each output written once.
    pub(crate) floor_bytes: u64,
    /// Those bytes each second, in 10^9.
    pub(crate) gbps: f64,
    /// Over the device's copy rate in the same run.
    pub(crate) copy_share: Option<f64>,
    /// Whether the timed result was compared with the CPU's, bit for bit; a difference is an error and no row.
    pub(crate) checked: bool,
}

/// Another implementation, as the scripts in `benches/peers` write it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PeerRow {
    pub(crate) peer: String,
    pub(crate) version: String,
    /// The device it ran on.
    pub(crate) device: String,
    /// As in [`Row`], so that rows can be told to be of the same work.
    pub(crate) codec: String,
    pub(crate) setting: String,
    pub(crate) op: String,
    pub(crate) dtype: String,
    pub(crate) elements: usize,
    pub(crate) seconds: f64,
    pub(crate) seconds_p25: f64,
    pub(crate) seconds_p75: f64,
    pub(crate) samples: usize,
    pub(crate) runs: u32,
    pub(crate) sets: u32,
    /// `cuda events` or `host`.
    pub(crate) clock: String,
    pub(crate) note: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SanitizerRow {
    /// `memcheck`, `racecheck` or `initcheck`.
    pub(crate) tool: String,
    pub(crate) clean: Option<bool>,
    /// Its last line, or why there is none.
    pub(crate) said: String,
    pub(crate) seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StageRow {
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
    pub(crate) seconds: f64,
    pub(crate) note: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Done,
    /// Something was found to be wrong, or the stage's process died.
    Failed,
    /// What it needs is not on this machine.
    Absent,
    /// It was stopped, or not begun, because the time was up.
    OutOfTime,
}

impl Report {
    /// Writes the file by way of another, so that whoever kills the run finds a whole one.
    pub(crate) fn write(&self, path: &Path) -> Result<(), String> {
        let mut text = serde_json::to_string_pretty(self).map_err(|e| format!("the report does not fit JSON: {e}"))?;
        text.push('\n');
        replace(path, &text, "--out")
    }

    /// Reads the report in a file.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| format!("{name} could not be read: {e}"))?;
        Self::read(&name, &text)
    }

    /// Reads a report of this schema.
    pub(crate) fn read(name: &str, text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let said = |e: serde_json::Error| format!("{name} is no report: {e}; see benches/results/README.md");
        let Version { schema } = serde_json::from_str(text).map_err(said)?;
        if schema != SCHEMA {
            return Err(format!("{name} has schema {schema}, and this program reads {SCHEMA}; make the report again"));
        }
        serde_json::from_str(text).map_err(said)
    }

    /// The entry of a backend, made if there is none.
    pub(crate) fn device(&mut self, backend: &str) -> &mut DeviceReport {
        let found = self.devices.iter().position(|d| d.backend == backend);
        let index = found.unwrap_or_else(|| {
            self.devices.push(DeviceReport { backend: backend.to_owned(), ..DeviceReport::default() });
            self.devices.len() - 1
        });
        &mut self.devices[index]
    }
}

impl DeviceReport {
    /// The copy rate of the run, in 10^9 bytes each second: the median.
    pub(crate) fn copy_gbps(&self) -> Option<f64> {
        let mut copies = self.copies.clone();
        (!copies.is_empty()).then(|| crate::jobs::timing::quartiles(&mut copies)[1])
    }

    /// Sets every row's share anew, as the median of the copies changes with each.
    pub(crate) fn share(&mut self) {
        let copy = self.copy_gbps();
        for row in &mut self.rows {
            row.copy_share = copy.map(|copy| row.gbps / copy);
        }
    }

    /// Whether every suite that ran to its end found nothing, and one did.
    pub(crate) fn verified(&self) -> bool {
        self.verify.iter().any(|v| v.complete && v.passed() > 0) && self.verify.iter().all(|v| v.failed() == 0)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A row to print and write.
    pub(crate) fn row(codec: &str, op: &str, elements: usize) -> Row {
        Row {
            codec: codec.to_owned(),
            setting: "4 bit / 512".to_owned(),
            op: op.to_owned(),
            dtype: "f32".to_owned(),
            elements,
            seconds: 1.0 / 3.0e4,
            seconds_p25: 3.2e-5,
            seconds_p75: 3.5e-5,
            samples: 40,
            runs: 64,
            sets: 8,
            rotated_bytes: 1 << 30,
            passes: 1,
            floor_bytes: 75_000_000,
            gbps: 2250.0,
            copy_share: Some(0.75),
            checked: true,
        }
    }

    /// A report with a device of each sort.
    pub(crate) fn report() -> Report {
        let verify = VerifyRow {
            target: Some(90),
            depth: "quick".to_owned(),
            complete: true,
            checks: vec![CheckRow {
                codec: "QSGD".to_owned(),
                check: "bytes".to_owned(),
                compared: 1234,
                ..CheckRow::default()
            }],
            seconds: 9.5,
            ..VerifyRow::default()
        };
        let cuda = DeviceReport {
            backend: "cuda".to_owned(),
            name: "An Invented GPU".to_owned(),
            details: vec!["driver for CUDA 13.0".to_owned()],
            compute_capability: Some((9, 0)),
            clock: Some(ClockName::Device),
            verify: vec![verify.clone(), VerifyRow { target: Some(35), refused: Some("too old".to_owned()), ..verify }],
            copies: vec![2900.0, 3000.0, 3100.0],
            families: vec![FamilyRow { family: "qsgd".to_owned(), target: 90, seconds: 1.25 }],
            launch_seconds: Some(2.5e-6),
            rows: vec![
                row("QSGD", "encode", 1 << 24),
                row("QSGD", "encode", 1 << 26),
                row("QSGD", "decode-add", 1 << 26),
            ],
            ..DeviceReport::default()
        };
        let wgpu = DeviceReport {
            backend: "wgpu".to_owned(),
            missing: Some("no Vulkan adapter was found".to_owned()),
            ..DeviceReport::default()
        };
        let peer = PeerRow {
            peer: "somebody".to_owned(),
            version: "1.2".to_owned(),
            device: "cuda".to_owned(),
            codec: "QSGD".to_owned(),
            setting: "4 bit / 512".to_owned(),
            op: "encode".to_owned(),
            dtype: "f32".to_owned(),
            elements: 1 << 26,
            seconds: 1e-4,
            clock: "cuda events".to_owned(),
            ..PeerRow::default()
        };
        Report {
            schema: SCHEMA,
            date: "2026-11-21T14:06:40Z".to_owned(),
            commit: "0123456789ab".to_owned(),
            complete: true,
            minutes_allowed: 8.0,
            seconds: 321.5,
            machine: Machine { nvidia_smi: Answer::Said(vec!["SM 1980 MHz".to_owned()]), ..Machine::default() },
            devices: vec![cuda, wgpu],
            peers: vec![peer],
            sanitizer: vec![SanitizerRow { tool: "memcheck".to_owned(), clean: Some(true), ..Default::default() }],
            stages: vec![StageRow {
                name: "verify cuda:90".to_owned(),
                outcome: Outcome::Done,
                seconds: 9.5,
                note: String::new(),
            }],
            ..Report::default()
        }
    }

    #[test]
    fn a_report_comes_back_as_it_was_written() {
        let folder = std::env::temp_dir().join(format!("gradwire-report-schema-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("report.json");
        let written = report();
        written.write(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!folder.join("report.json.part").exists());
        std::fs::remove_dir_all(folder).unwrap();
        assert_eq!(Report::read("it", &text).unwrap(), written);
        assert!(text.contains("\"clock\": \"device\"") && text.contains("\"outcome\": \"done\""), "{text}");
    }

    #[test]
    fn other_files_are_refused_with_what_to_do() {
        let later = serde_json::to_string(&Report { schema: 2, ..report() }).unwrap();
        let error = Report::read("a.json", &later).unwrap_err();
        assert_eq!(error, "a.json has schema 2, and this program reads 1; make the report again");
        let error = Report::read("b.json", "{\"rows\": []}").unwrap_err();
        assert!(error.starts_with("b.json is no report") && error.ends_with("benches/results/README.md"), "{error}");
    }

    #[test]
    fn shares_are_of_the_median_copy() {
        let mut report = report();
        let device = report.device("cuda");
        assert_eq!(device.copy_gbps(), Some(3000.0));
        device.copies = vec![4500.0];
        device.share();
        assert_eq!(device.rows[0].copy_share, Some(0.5));
        assert!(device.verified(), "an artifact that the driver refuses is no failure");
        device.verify[0].note("QSGD".to_owned(), "bytes".to_owned(), 0, Some("differ".to_owned()));
        assert!(!device.verified());
        assert!(!report.device("wgpu").verified(), "what did not run is not verified");
        assert_eq!(report.devices.len(), 2);
        assert_eq!(report.device("cpu").backend, "cpu");
    }
}
