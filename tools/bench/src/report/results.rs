//! The README's table of the GPUs that were measured and its chart, made from `benches/results`.

use std::fmt::Write as _;
use std::path::Path;

use super::chart::chart;
use super::markdown::{share, three};
use super::schema::{DeviceReport, Report, Row};

/// Where the results are, where the chart goes, and what is around the table in the README.
const FOLDER: &str = "benches/results";
const CHART: &str = "docs/gpu.svg";
const BEGIN: &str = "<!-- made by `cargo xtask report --readme` from benches/results: begin -->";
const END: &str = "<!-- made by `cargo xtask report --readme` from benches/results: end -->";

/// A column: codec, setting, operation of f32.
const COLUMNS: [(&str, &str, &str, &str); 5] = [
    ("QSGD 4 bit, encode", "QSGD", "4 bit / 512", "encode"),
    ("with feedback", "QSGD", "4 bit / 512", "encode + feedback"),
    ("decode-add", "QSGD", "4 bit / 512", "decode-add"),
    ("top-k 1 %", "top-k", "1 %", "encode"),
    ("with feedback", "top-k", "1 %", "encode + feedback"),
];
/// The table shows the largest size up to this, and says which if it is a smaller one.
const MOST: usize = 1 << 26;

/// Devices that are alike: what a reader looks for.
struct Class {
    name: &'static str,
    holds: fn(&DeviceReport) -> bool,
}

fn capability(device: &DeviceReport, range: std::ops::RangeInclusive<u32>) -> bool {
    device.backend == "cuda" && device.compute_capability.is_some_and(|(a, b)| range.contains(&(10 * a + b)))
}

const CLASSES: [Class; 7] = [
    Class { name: "Blackwell and newer (sm_100 on)", holds: |d| capability(d, 100..=u32::MAX) },
    Class { name: "Hopper (sm_90)", holds: |d| capability(d, 90..=99) },
    Class { name: "Ampere, Ada (sm_80 to sm_89)", holds: |d| capability(d, 80..=89) },
    Class { name: "Volta, Turing (sm_70, sm_75)", holds: |d| capability(d, 70..=79) },
    Class { name: "Pascal (sm_60 to sm_62)", holds: |d| capability(d, 60..=69) },
    Class { name: "Kepler, Maxwell (sm_35 to sm_53)", holds: |d| capability(d, 35..=59) },
    Class { name: "a GPU through WGPU", holds: |d| d.backend == "wgpu" },
];

/// Writes the table into the README, or compares.
pub(crate) fn readme(root: &Path, check: bool) -> Result<(), String> {
    let path = root.join("README.md");
    let said = |e: std::io::Error| format!("{}: {e}; run this in a clone of the repository", path.display());
    let reports = read(&root.join(FOLDER))?;
    let before = std::fs::read_to_string(&path).map_err(said)?;
    let after = placed(&before, &table(&reports))?;
    let drawn = chart(&runs(&root.join(FOLDER))?, counts).unwrap_or_default();
    let is_drawn = std::fs::read_to_string(root.join(CHART)).unwrap_or_default() == drawn;
    if before == after && is_drawn {
        println!("README.md has the table of {FOLDER}, and {CHART} its chart");
        return Ok(());
    }
    if check {
        return Err(format!("README.md or {CHART} is not that of {FOLDER}; `cargo xtask report --readme` writes both"));
    }
    std::fs::write(&path, after).map_err(said)?;
    std::fs::write(root.join(CHART), drawn).map_err(|e| format!("{CHART}: {e}"))?;
    println!("wrote the table of {FOLDER} into README.md, and its chart into {CHART}");
    Ok(())
}

/// The reports that a chart may be drawn from, the newest last: those of the table, and those in folders beside them,
/// whose suites need not have ended.
fn runs(folder: &Path) -> Result<Vec<Report>, String> {
    let mut reports = read(folder)?;
    for entry in std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?.flatten() {
        let path = entry.path().join("report.json");
        if path.is_file() {
            reports.push(Report::open(&path)?);
        }
    }
    reports.sort_by(|a, b| a.date.cmp(&b.date));
    Ok(reports)
}

/// All committed reports, by their files' names.
fn read(folder: &Path) -> Result<Vec<Report>, String> {
    let said = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(said)? {
        let path = entry.map_err(said)?.path();
        if path.extension().is_some_and(|e| e == "json") {
            files.push(path);
        }
    }
    files.sort();
    files
        .iter()
        .map(|path| committed(&path.display().to_string(), &std::fs::read_to_string(path).map_err(said)?))
        .collect()
}

/// A report that may be committed.
fn committed(name: &str, text: &str) -> Result<Report, String> {
    let report = Report::read(name, text)?;
    if !report.complete {
        return Err(format!("{name} is of a run that did not come to its end; see {FOLDER}/README.md"));
    }
    if report.commit == "unknown" {
        return Err(format!("{name} does not say of which commit it is; build the program in a clone"));
    }
    let measured = report.devices.iter().filter(|d| counts(d));
    if let Some(device) = measured.into_iter().find(|d| !d.verified()) {
        return Err(format!("{name}: {} was not verified, so its times mean nothing", device.name));
    }
    Ok(report)
}

/// Whether a device's times are a GPU's: an interpreter's, software's and the CPU's are not.
fn counts(device: &DeviceReport) -> bool {
    device.missing.is_none()
        && !device.software
        && !matches!(device.backend.as_str(), "ptx-machine" | "cpu")
        && !device.rows.is_empty()
}

/// The table: a row per measured device, and below it the classes of which there is none.
fn table(reports: &[Report]) -> String {
    let mut text = String::from("| class | device | measured | copy rate |");
    COLUMNS.iter().for_each(|(title, ..)| {
        let _ = write!(text, " {title} |");
    });
    text += "\n|";
    text += &" --- |".repeat(4 + COLUMNS.len());
    text += "\n";
    let mut missing = Vec::new();
    for class in CLASSES {
        let mut none = true;
        for report in reports {
            for device in report.devices.iter().filter(|d| counts(d) && (class.holds)(d)) {
                none = false;
                line(class.name, report, device, &mut text);
            }
        }
        if none {
            missing.push(class.name);
        }
    }
    if !missing.is_empty() {
        let _ = writeln!(text, "\nNot measured yet: {}.", missing.join("; "));
    }
    text
}

fn line(class: &str, report: &Report, device: &DeviceReport, text: &mut String) {
    let date = report.date.split('T').next().unwrap_or_default();
    let copy = device.copy_gbps().map_or_else(String::new, |gbps| format!("{} GB/s", three(gbps)));
    let _ = write!(text, "| {class} | {} | {date}, {} | {copy} |", device.name, report.commit);
    for (_, codec, setting, op) in COLUMNS {
        let same = |row: &&Row| {
            let kind = row.op.trim_end_matches(", contractive");
            (row.codec.as_str(), row.setting.as_str(), kind, row.dtype.as_str()) == (codec, setting, op, "f32")
                && row.elements <= MOST
        };
        let cell = device.rows.iter().filter(same).max_by_key(|row| row.elements).map_or_else(
            || "not measured".to_owned(),
            |row| {
                let size = if row.elements == MOST { String::new() } else { format!(", 2^{}", row.elements.ilog2()) };
                format!("{} GB/s, {}{size}", three(row.gbps), share(row.copy_share))
            },
        );
        let _ = write!(text, " {cell} |");
    }
    *text += "\n";
}

/// The README with this table between its marks.
fn placed(readme: &str, table: &str) -> Result<String, String> {
    let cut = |mark: &str| {
        readme.split_once(mark).ok_or_else(|| format!("README.md has no line `{mark}`; put it back where the table is"))
    };
    let ((before, _), (_, after)) = (cut(BEGIN)?, cut(END)?);
    Ok(format!("{before}{BEGIN}\n\n{table}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::super::schema::tests::{report, row};
    use super::*;

    #[test]
    fn the_readme_has_the_table_of_the_committed_results() {
        readme(&gradwire_tools::checkout::root(), true).unwrap();
    }

    #[test]
    fn every_class_is_there_measured_or_not() {
        let mut report = report();
        report.devices[0].rows.push(row("top-k", "encode", 1 << 26));
        report.devices[0].rows[3].setting = "1 %".to_owned();
        report.devices[0].rows.push(row("QSGD", "encode", 1 << 28));
        let text = table(&[report]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        let columns = |line: &str| line.matches('|').count();
        assert!(lines[..3].iter().all(|line| columns(line) == 5 + COLUMNS.len()), "{text}");
        assert_eq!(
            lines[2],
            "| Hopper (sm_90) | An Invented GPU | 2026-11-21, 0123456789ab | 3000 GB/s | 2250 GB/s, 75 % | \
             not measured | 2250 GB/s, 75 % | 2250 GB/s, 75 % | not measured |"
        );
        assert_eq!(
            lines[4],
            "Not measured yet: Blackwell and newer (sm_100 on); Ampere, Ada (sm_80 to sm_89); Volta, Turing (sm_70, \
             sm_75); Pascal (sm_60 to sm_62); Kepler, Maxwell (sm_35 to sm_53); a GPU through WGPU."
        );
    }

    #[test]
    fn what_is_no_device_or_was_not_verified_does_not_count() {
        for change in [
            |d: &mut DeviceReport| d.software = true,
            |d: &mut DeviceReport| d.backend = "ptx-machine".to_owned(),
            |d: &mut DeviceReport| d.rows.clear(),
        ] {
            let mut report = report();
            change(&mut report.devices[0]);
            assert!(!table(&[report]).contains("Invented"));
        }
        let text = |change: &dyn Fn(&mut Report)| {
            let mut report = report();
            change(&mut report);
            committed("a.json", &serde_json::to_string(&report).unwrap())
        };
        assert!(text(&|_| {}).is_ok());
        assert!(text(&|r| r.complete = false).unwrap_err().contains("did not come to its end"));
        assert!(text(&|r| r.commit = "unknown".to_owned()).unwrap_err().contains("which commit"));
        assert!(text(&|r| r.devices[0].verify[0].checks[0].failed = 1).unwrap_err().contains("was not verified"));
    }

    #[test]
    fn the_table_stands_between_its_marks() {
        let readme = format!("above\n{BEGIN}\nold\n{END}\nbelow\n");
        let new = placed(&readme, "new\n").unwrap();
        assert_eq!(new, format!("above\n{BEGIN}\n\nnew\n\n{END}\nbelow\n"));
        assert_eq!(placed(&new, "new\n").unwrap(), new);
        assert!(placed("nothing", "").unwrap_err().contains("has no line"));
    }
}
