//! The report as a page to read.

use std::fmt::Write as _;

use super::schema::{Answer, CheckRow, DeviceReport, Outcome, PeerRow, Report, Row, VerifyRow};
use super::text::one_line;

/// Bytes that a turn through all sets has to touch for caches to be of no use: four times the largest L2 of any GPU so
/// far.
const COLD: u64 = 4 * (126 << 20);

/// The page.
pub(crate) fn page(report: &Report) -> String {
    let mut text = String::new();
    head(report, &mut text);
    correctness(report, &mut text);
    speed(report, &mut text);
    beside(report, &mut text);
    sanitized(report, &mut text);
    machine(report, &mut text);
    stages(report, &mut text);
    text += HOW_TO_READ;
    text
}

/// A line a device: what the run comes to.
pub(crate) fn summary(report: &Report) -> String {
    let lines: Vec<String> = report.devices.iter().map(verdict).collect();
    lines.join("\n")
}

fn verdict(device: &DeviceReport) -> String {
    let name = if device.name.is_empty() { "no device" } else { &device.name };
    if let Some(why) = &device.missing {
        return format!("{}: not here: {}", device.backend, one_line(why));
    }
    let failed: usize = device.verify.iter().map(VerifyRow::failed).sum();
    let suites = device.verify.iter().filter(|v| v.complete).count();
    let correct = match (failed, suites) {
        (0, 0) => "not verified".to_owned(),
        (0, 1) => "verified".to_owned(),
        (0, n) => format!("verified with {n} artifacts"),
        (1, _) => "**1 check failed**".to_owned(),
        (n, _) => format!("**{n} checks failed**"),
    };
    let copy = device.copy_gbps().map_or_else(String::new, |gbps| format!(", copies {} GB/s", three(gbps)));
    let rows = device.rows.len();
    format!("{}: {name}: {correct}{copy}, {rows} timings{}", device.backend, pretended(device))
}

/// What keeps a device's times from being a GPU's.
fn pretended(device: &DeviceReport) -> &'static str {
    match device.backend.as_str() {
        "ptx-machine" => " by an interpreter, which say nothing of any GPU",
        _ if device.software => " by software on the CPU, which say nothing of any GPU",
        _ => "",
    }
}

fn head(report: &Report, text: &mut String) {
    let hardware = |d: &&DeviceReport| d.missing.is_none() && !d.software && d.backend != "cpu";
    let names: Vec<&str> = report.devices.iter().filter(hardware).map(|d| d.name.as_str()).collect();
    let of = if names.is_empty() { "a machine without a GPU".to_owned() } else { names.join(", ") };
    let _ = writeln!(text, "# Gradwire on {of}\n");
    if !report.complete {
        *text += "**This run is not over, or was stopped: what it had by then is below.**\n\n";
    }
    for device in &report.devices {
        let _ = writeln!(text, "- {}", verdict(device));
    }
    let Report { date, commit, kernels, seconds, minutes_allowed, .. } = report;
    let _ = writeln!(
        text,
        "\nBegun {date}; built from commit {commit}, with PTX whose CRC-32 is {kernels}; took {seconds:.0} s of \
         {minutes_allowed} minutes.\n"
    );
}

fn correctness(report: &Report, text: &mut String) {
    *text += "## Is it correct?\n\nThe suite compares bytes with an oracle's and with the CPU's, and holds the theorems of \
              the literature.\n\n| device | PTX | suite | checks passed | failed | results compared | s | verdict |\n\
              | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    for device in &report.devices {
        if device.missing.is_some() {
            let _ = writeln!(text, "| {} | | | | | | | not here |", device.backend);
        }
        for row in &device.verify {
            let VerifyRow { depth, seconds, .. } = row;
            let (passed, failed, compared) = (row.passed(), row.failed(), row.compared());
            let target = row.target.map_or_else(String::new, |t| format!("sm_{t}"));
            let _ = writeln!(
                text,
                "| {} | {target} | {depth} | {passed} | {failed} | {compared} | {seconds:.0} | {} |",
                device.backend,
                word(row)
            );
        }
    }
    *text += "\n";
    for device in &report.devices {
        for row in &device.verify {
            let target = row.target.map_or_else(String::new, |t| format!(", sm_{t}"));
            if let Some(why) = &row.refused {
                let _ = writeln!(text, "- {}{target}: could not be loaded: {}", device.backend, one_line(why));
            }
            for CheckRow { codec, check, failures, failed, .. } in row.checks.iter().filter(|c| c.failed > 0) {
                let (first, times) = (one_line(&failures.join("; ")), if *failed == 1 { "time" } else { "times" });
                let _ =
                    writeln!(text, "- {}{target}: {codec}, {check}: FAILED {failed} {times}: {first}", device.backend);
            }
        }
    }
    *text += "\n";
}

fn word(row: &VerifyRow) -> &'static str {
    match row {
        VerifyRow { refused: Some(_), .. } => "not loaded",
        row if row.failed() > 0 => "**FAILED**",
        VerifyRow { complete: true, .. } => "ok",
        _ => "did not end",
    }
}

fn speed(report: &Report, text: &mut String) {
    *text += "## How fast is it?\n\n";
    for device in report.devices.iter().filter(|d| !d.copies.is_empty()) {
        let _ = writeln!(text, "### {}: {}\n", device.backend, device.name);
        if !pretended(device).is_empty() {
            let _ = writeln!(text, "**These are timings{}.**\n", pretended(device));
        }
        let clock = device.clock.map_or("nobody's", |clock| clock.words());
        let (low, high) = device.copies.iter().fold((f64::MAX, 0f64), |(l, h), c| (l.min(*c), h.max(*c)));
        let _ = writeln!(
            text,
            "Copy rate, read plus written: {} GB/s, the median of {} in this run ({} to {}). Timed by {clock}.",
            three(device.copy_gbps().unwrap_or_default()),
            device.copies.len(),
            three(low),
            three(high)
        );
        if high > 1.2 * low {
            *text += "The copies differ by more than a fifth: something else was running, and these rates compare with \
                      nothing.\n";
        }
        if !device.families.is_empty() {
            let each: Vec<String> =
                device.families.iter().map(|f| format!("{} (sm_{}) {}", f.family, f.target, time(f.seconds))).collect();
            let _ = writeln!(
                text,
                "First call by family of kernels, which the driver compiles or finds in its own cache: {}.",
                each.join(", ")
            );
        }
        if let Some(seconds) = device.launch_seconds {
            let _ = writeln!(
                text,
                "Launches of a kernel with next to nothing to do follow one another in {}; no time below is shorter than \
                 that for each of its launches.",
                time(seconds)
            );
        }
        let mut sizes: Vec<usize> = device.rows.iter().map(|row| row.elements).collect();
        sizes.sort_unstable();
        sizes.dedup();
        for elements in sizes {
            table(device, elements, text);
        }
        if !device.skipped.is_empty() {
            let _ = writeln!(text, "\nNot measured: {}.", device.skipped.join("; "));
        }
        *text += "\n";
    }
}

fn table(device: &DeviceReport, elements: usize, text: &mut String) {
    let _ = writeln!(
        text,
        "\n{}\n\n| codec | setting | operation | type | time | quartiles | GB/s | of the copy rate | launches |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        power(elements)
    );
    for row in device.rows.iter().filter(|row| row.elements == elements) {
        let Row { codec, setting, op, dtype, seconds, seconds_p25, seconds_p75, gbps, passes, .. } = row;
        let warm = if row.rotated_bytes < COLD { " w" } else { "" };
        let unchecked = if row.checked { " =" } else { "" };
        let _ = writeln!(
            text,
            "| {codec} | {setting} | {op} | {dtype} | {}{unchecked} | {} to {} | {}{warm} | {} | {passes} |",
            time(*seconds),
            time(*seconds_p25),
            time(*seconds_p75),
            three(*gbps),
            share(row.copy_share),
        );
    }
}

/// Ours beside theirs, where both did the same work on the same kind of device.
fn beside(report: &Report, text: &mut String) {
    *text += "## Beside others, on this machine, in this run\n\n";
    if report.peers.is_empty() {
        *text += "No other implementation ran; the last table says why.\n\n";
        return;
    }
    *text += "| work | elements | type | Gradwire | other | its time | theirs / ours | its clock | note |\n\
              | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    for peer in &report.peers {
        let PeerRow { peer: name, version, codec, setting, op, dtype, elements, seconds, clock, note, .. } = peer;
        let ours = ours(report, peer);
        let _ = writeln!(
            text,
            "| {codec} {setting}, {op} | {} | {dtype} | {} | {name} {version} | {} | {} | {clock} | {} |",
            short(*elements),
            ours.map_or_else(|| "not measured".to_owned(), |row| time(row.seconds)),
            time(*seconds),
            ours.map_or_else(|| "-".to_owned(), |row| three(seconds / row.seconds)),
            one_line(note)
        );
    }
    if report.peers.iter().any(|peer| peer.device == "cpu") {
        *text += "\nThese scripts are written for GPUs and ran on the CPU because there is none; `cargo xtask bench --peers` has \
                  faster ones for CPUs.\n";
    }
    *text += "\nAbove 1 the other takes longer. Each does what its note says, which may be more or less than ours does: top-k \
              here is the selection on the device without the payload's index code, and QSGD's draws are made inside.\n\n";
}

/// Our row of a peer's work.
fn ours<'r>(report: &'r Report, peer: &PeerRow) -> Option<&'r Row> {
    let device = report.devices.iter().find(|d| d.backend == peer.device)?;
    let same = |row: &&Row| {
        (&row.codec, &row.setting, &row.dtype, row.elements)
            == (&peer.codec, &peer.setting, &peer.dtype, peer.elements)
            // Feedback comes in two forms of the same cost.
            && row.op.trim_end_matches(", contractive") == peer.op
    };
    device.rows.iter().find(same)
}

fn sanitized(report: &Report, text: &mut String) {
    if report.sanitizer.is_empty() {
        return;
    }
    *text +=
        "## compute-sanitizer, over the small suite\n\n| tool | verdict | s | its words |\n| --- | --- | --- | --- |\n";
    for row in &report.sanitizer {
        let verdict = match row.clean {
            Some(true) => "clean",
            Some(false) => "**found something**",
            None => "did not run",
        };
        let _ = writeln!(text, "| {} | {verdict} | {:.0} | {} |", row.tool, row.seconds, one_line(&row.said));
    }
    *text += "\n";
}

fn machine(report: &Report, text: &mut String) {
    let machine = &report.machine;
    let _ = writeln!(text, "## The machine\n\n- {}\n- {}, {} threads", machine.os, machine.cpu, machine.threads);
    for device in report.devices.iter().filter(|d| !d.details.is_empty()) {
        let _ = writeln!(text, "- {}: {}", device.backend, device.details.join(", "));
    }
    match &machine.nvidia_smi {
        Answer::Said(lines) => lines.iter().for_each(|line| {
            let _ = writeln!(text, "- nvidia-smi, at the start: {line}");
        }),
        Answer::Absent(why) => {
            let _ = writeln!(text, "- clocks are not known: {}", one_line(why));
        }
    }
    for line in &machine.while_timing {
        let _ = writeln!(text, "- while timing: {line}");
    }
    *text += "\n";
}

fn stages(report: &Report, text: &mut String) {
    *text += "## What was to run\n\n| part | outcome | s | |\n| --- | --- | --- | --- |\n";
    for stage in &report.stages {
        let outcome = match stage.outcome {
            Outcome::Done => "done",
            Outcome::Failed => "**FAILED**",
            Outcome::Absent => "not here",
            Outcome::OutOfTime => "out of time",
        };
        let _ = writeln!(text, "| {} | {outcome} | {:.0} | {} |", stage.name, stage.seconds, one_line(&stage.note));
    }
    *text += "\n";
}

const HOW_TO_READ: &str = "\
## How to read this

- *GB/s* are the bytes that the work cannot do without, each input read once and each output written once, over the time: a
  kernel that reads something twice gains nothing by it. *Of the copy rate* is that over the rate at which the device copies one
  buffer to another in the same run, read plus written. It can pass 100 % where little is written, since a copy also turns from
  reading to writing; *read only* shows what reading alone reaches.
- Times are medians, with the quartiles beside them, of up to 40 samples. A sample is as many runs as fill some milliseconds,
  queued one behind another. Runs take turns with sets of buffers that together are larger than the caches; *w* marks where
  they are not, and the data may have been in a cache.
- *=* marks results that were compared with the CPU's after the timing, bit for bit. The others go on from what the run before
  left, so there is no one result; the suite above covers them.
- top-k is timed from the gradient to indices and values on the device. Its payload's index code is written by the host.
";

/// Three significant digits.
pub(super) fn three(value: f64) -> String {
    crate::bench::table::significant(value)
}

/// A share as a percentage.
pub(super) fn share(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", 100.0 * share))
}

/// A time in the unit that suits it.
fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{} µs", three(s * 1e6)),
        s if s < 1.0 => format!("{} ms", three(s * 1e3)),
        s => format!("{} s", three(s)),
    }
}

/// A number of elements in words.
fn power(elements: usize) -> String {
    format!("{} elements:", short(elements))
}

/// A number of elements, as a power of two if it is one.
pub(super) fn short(elements: usize) -> String {
    if elements.is_power_of_two() { format!("2^{}", elements.ilog2()) } else { elements.to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::schema::tests::{report, row};
    use super::*;

    #[test]
    fn the_page_says_what_a_reader_asks() {
        let report = report();
        let page = page(&report);
        for expected in [
            "# Gradwire on An Invented GPU\n",
            "- cuda: An Invented GPU: verified with 2 artifacts, copies 3000 GB/s, 3 timings",
            "- wgpu: not here: no Vulkan adapter was found",
            "| cuda | sm_90 | quick | 1 | 0 | 1234 | 10 | ok |",
            "| cuda | sm_35 | quick | 1 | 0 | 1234 | 10 | not loaded |",
            "- cuda, sm_35: could not be loaded: too old",
            "2^26 elements:",
            "finds in its own cache: qsgd (sm_90) ",
            "| QSGD | 4 bit / 512 | encode | f32 | 33.3 µs = | 32.0 µs to 35.0 µs | 2250 | 75 % | 1 |",
            "| QSGD 4 bit / 512, encode | 2^26 | f32 | 33.3 µs | somebody 1.2 | 100 µs | 3.00 | cuda events |  |",
            "| memcheck | clean |",
            "nvidia-smi, at the start: SM 1980 MHz",
            "| verify cuda:90 | done |",
        ] {
            assert!(page.contains(expected), "no {expected:?} in\n{page}");
        }
        assert!(!page.contains("not over") && !page.contains("written for GPUs"));
        let mut on_cpu = report.clone();
        on_cpu.peers[0].device = "cpu".to_owned();
        assert!(super::page(&on_cpu).contains("written for GPUs and ran on the CPU"));
        let stopped = Report { complete: false, ..report };
        assert!(super::page(&stopped).contains("**This run is not over, or was stopped"));
    }

    #[test]
    fn no_time_of_an_interpreter_or_of_software_passes_for_a_gpus() {
        let mut report = report();
        report.devices[0].backend = "ptx-machine".to_owned();
        report.devices[0].software = true;
        let text = page(&report);
        assert!(text.starts_with("# Gradwire on a machine without a GPU\n"), "{text}");
        assert!(text.contains("**These are timings by an interpreter, which say nothing of any GPU.**"));
        report.devices[0].backend = "wgpu".to_owned();
        assert!(page(&report).contains("**These are timings by software on the CPU, which say nothing of any GPU.**"));
    }

    #[test]
    fn failures_and_warm_caches_show() {
        let mut report = report();
        let failure = || Some("here:\n| differ".to_owned());
        report.devices[0].verify[0].note("QSGD".to_owned(), "bytes".to_owned(), 0, failure());
        report.devices[0].verify[0].note("QSGD".to_owned(), "bytes".to_owned(), 0, failure());
        report.devices[0].rows =
            vec![super::Row { rotated_bytes: COLD - 1, checked: false, ..row("QSGD", "encode", 1000) }];
        report.devices[0].copies.push(1000.0);
        let text = page(&report);
        assert!(text.contains("**1 check failed**") && text.contains("| 0 | 1 | 1234 | 10 | **FAILED** |"), "{text}");
        assert!(text.contains("- cuda, sm_90: QSGD, bytes: FAILED 2 times: here: | differ; here: | differ"));
        assert!(text.contains("1000 elements:") && text.contains("| 33.3 µs | 32.0 µs to 35.0 µs | 2250 w | 75 % |"));
        assert!(text.contains("differ by more than a fifth"));
    }

    #[test]
    fn a_peer_stands_beside_the_row_of_its_own_work() {
        let mut report = report();
        report.devices[0].rows.push(Row { seconds: 1e-5, ..row("QSGD", "encode + feedback, contractive", 1 << 26) });
        let peer = PeerRow { device: "cuda".to_owned(), op: "encode + feedback".to_owned(), ..report.peers[0].clone() };
        assert_eq!(ours(&report, &peer).map(|row| row.seconds), Some(1e-5));
        assert!(ours(&report, &PeerRow { elements: 7, ..peer.clone() }).is_none());
        assert!(ours(&report, &PeerRow { device: "cpu".to_owned(), ..peer }).is_none());
    }

    #[test]
    fn times_have_the_unit_that_suits_them() {
        assert_eq!([2.5e-6, 1.5e-3, 2.0].map(time), ["2.50 µs", "1.50 ms", "2.00 s"]);
        assert_eq!([1 << 20, 1000].map(short), ["2^20", "1000"]);
        assert_eq!([share(Some(0.876)), share(None)], ["88 %", "-"]);
    }
}
