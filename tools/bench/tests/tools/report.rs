//! `report` from end to end, as a process: on the PTX machine, on what this machine lacks, and killed half way.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[cfg(feature = "cuda")]
use gradwire_tests::formula::CODECS;
use serde_json::Value;

/// A folder of this test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gradwire-report-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn json(&self) -> Option<Value> {
        serde_json::from_str(&std::fs::read_to_string(self.0.join("report.json")).ok()?).ok()
    }

    fn page(&self) -> String {
        std::fs::read_to_string(self.0.join("report.md")).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left to the system's own cleaning.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn command(out: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradwire-bench"));
    command.arg("report").arg("--out").arg(out).args(args).current_dir(out);
    command
}

fn report(out: &Path, args: &[&str]) -> Output {
    command(out, args).output().unwrap()
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

#[cfg(feature = "cuda")]
#[test]
fn a_rehearsal_on_the_ptx_machine_verifies_and_times_and_says_what_it_is() {
    let folder = Folder::new("rehearsal");
    let output = report(&folder.0, &["--device", "ptx-machine:60", "--quick", "--no-peers", "--sanitizer"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    let report = folder.json().unwrap();
    assert_eq!((&report["schema"], &report["complete"]), (&1.into(), &true.into()));
    let device = &report["devices"][0];
    assert_eq!((&device["clock"], &device["software"]), (&"interpreter".into(), &true.into()));
    let verify = device["verify"].as_array().unwrap();
    let targets: Vec<_> = verify.iter().filter_map(|v| v["target"].as_u64()).collect();
    assert_eq!(targets, [60, 35], "every artifact that such a device loads");
    for suite in verify {
        let checks = suite["checks"].as_array().unwrap();
        assert!(suite["complete"] == true && checks.len() >= 7 && checks.iter().all(|c| c["failed"] == 0), "{suite}");
    }
    let rows = device["rows"].as_array().unwrap();
    // Settings of buckets, and two with their codes packed; beside them three of top-k, three ranks of PowerSGD, and a
    // scan. DRIVE and EDEN take no feedback.
    let buckets = 2 + CODECS.iter().flat_map(|tests| (tests.timed)()).filter(|(_, reported)| *reported).count();
    let of_dtype = |dtype: &str| rows.iter().filter(|row| row["dtype"] == dtype).count();
    assert_eq!(of_dtype("f32"), 4 * buckets - 2 + 3 * 3 + 3 + 1 + 1, "every operation, and a whole model");
    assert_eq!(of_dtype("bf16"), 2 * buckets - 2 + 2 * 3 + 3 + 1, "what reads gradients");
    assert_eq!(of_dtype("f32") + of_dtype("bf16"), rows.len());
    for op in ["encode", "encode + feedback, contractive", "decode", "decode-add"] {
        let of = |row: &&Value| row["setting"] == "4 bit / 512, L2, Elias" && row["op"] == op && row["dtype"] == "f32";
        assert_eq!(rows.iter().filter(of).count(), 1, "{op} of packed codes");
    }
    for row in rows {
        assert!(row["seconds"].as_f64() > Some(0.0) && row["copy_share"].as_f64() > Some(0.0), "{row}");
        assert!(row["sets"].as_u64() >= Some(2), "sets take turns: {row}");
        // What has one result was compared with the CPU's, in the last of the sets.
        let one = matches!(row["op"].as_str(), Some("encode" | "decode"));
        assert_eq!(row["checked"], one, "{row}");
    }
    let page = folder.page();
    assert!(page.starts_with("# Gradwire on a machine without a GPU\n"), "{page}");
    assert!(page.contains("**These are timings by an interpreter, which say nothing of any GPU.**"), "{page}");
    assert!(page.contains("compute-sanitizer watches CUDA, and there is no CUDA device"), "{page}");
}

#[cfg(feature = "cuda")]
#[test]
fn a_run_that_is_killed_leaves_what_it_had() {
    use std::time::{Duration, Instant};

    let folder = Folder::new("killed");
    let mut child = command(&folder.0, &["--device", "ptx-machine", "--quick", "--no-peers"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let rows = |report: &Value| report["devices"][0]["rows"].as_array().map_or(0, Vec::len);
    let patience = Instant::now() + Duration::from_secs(240);
    // The file is whole whenever it is there, so a read that fails is an error of the report's.
    while folder.json().is_none_or(|report| rows(&report) < 3) {
        assert!(Instant::now() < patience && child.try_wait().unwrap().is_none(), "no rows came");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let report = folder.json().unwrap();
    assert!(rows(&report) >= 3 && report["complete"] == false, "{report}");
    assert_eq!(report["stages"].as_array().map(Vec::len), Some(2), "what was over by then");
    assert!(folder.page().contains("**This run is not over, or was stopped"), "{}", folder.page());
}

#[test]
fn a_device_that_is_not_here_is_looked_for_reported_and_an_exit_code() {
    let folder = Folder::new("absent");
    // A number that no device has, so that this holds on a machine with a GPU too.
    let output = command(&folder.0, &["--device", "cuda,cpu", "--quick", "--no-peers", "--minutes", "2"])
        .env("GRADWIRE_CUDA_DEVICE", "4095")
        .env("PATH", &folder.0)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{}{}", text(&output.stdout), text(&output.stderr));
    let report = folder.json().unwrap();
    let missing = report["devices"][0]["missing"].as_str().unwrap();
    assert!(missing.starts_with("cuda is not available"), "{missing}");
    assert!(report["devices"][1]["rows"].as_array().is_some_and(|rows| rows.len() >= 20), "the CPU all the same");
    let said = report["machine"]["nvidia_smi"]["absent"].as_str().unwrap_or_default();
    let expected = format!("nvidia-smi is in none of {}", folder.0.display());
    assert!(said.starts_with(&expected) || report["machine"]["nvidia_smi"]["said"].is_array(), "{said}");
    assert!(folder.page().contains("- cuda: not here: cuda is not available"), "{}", folder.page());
}

#[test]
fn wrong_arguments_are_told_from_failures() {
    let folder = Folder::new("arguments");
    let output = report(&folder.0, &["--device", "tpu"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("`tpu` is none of cuda, wgpu, cpu"), "{}", text(&output.stderr));
    let output = report(&folder.0, &["--device", "cpu", "--peers", "nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("nowhere has no gpu_common.py"), "{}", text(&output.stderr));
    std::fs::write(folder.0.join("file"), "").unwrap();
    let output = command(&folder.0, &["--device", "cpu"]).arg("--out").arg(folder.0.join("file")).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "two folders are one too many");
    let output = Command::new(env!("CARGO_BIN_EXE_gradwire-bench"))
        .args(["report", "--out"])
        .arg(folder.0.join("file"))
        .output();
    let said = text(&output.unwrap().stderr);
    assert!(said.contains("could not be made") && said.contains("--out"), "{said}");
}
