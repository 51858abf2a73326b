//! The same operations in numpy, torch and the standard library on the same machine: the scripts in `benches/peers`,
//! and a sort.

use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::calls::seconds;
use super::schema::{Parameters, PeerRow, Row};
use super::table::significant;
use crate::jobs::list::{Entry, Setting, bucket_text};
use crate::jobs::timing::Budget;

/// Somebody else's implementation of a codec.
#[derive(Debug)]
pub(crate) struct Peer {
    codec: &'static str,
    pub(crate) name: &'static str,
    script: &'static str,
    /// Options beside those that every script takes.
    options: &'static [&'static str],
}

/// The scripts, by what they time.
const PEERS: &[Peer] = &[
    Peer { codec: "QSGD", name: "numpy", script: "numpy_qsgd.py", options: &[] },
    Peer { codec: "QSGD", name: "torch", script: "torch_qsgd.py", options: &[] },
    Peer { codec: "top-k", name: "numpy", script: "numpy_topk.py", options: &[] },
    Peer { codec: "PowerSGD", name: "numpy", script: "powersgd.py", options: &["--framework", "numpy"] },
    Peer { codec: "PowerSGD", name: "torch", script: "powersgd.py", options: &["--framework", "torch"] },
    quantizer("uniform", "numpy", &["--framework", "numpy", "--codec", "uniform"]),
    quantizer("uniform", "torch", &["--framework", "torch", "--codec", "uniform"]),
    quantizer("1-bit SGD", "numpy", &["--framework", "numpy", "--codec", "1-bit SGD"]),
    quantizer("1-bit SGD", "torch", &["--framework", "torch", "--codec", "1-bit SGD"]),
    quantizer("sign", "numpy", &["--framework", "numpy", "--codec", "EF-SignSGD"]),
    quantizer("sign", "torch", &["--framework", "torch", "--codec", "EF-SignSGD"]),
    quantizer("ternary", "numpy", &["--framework", "numpy", "--codec", "ternary"]),
    quantizer("ternary", "torch", &["--framework", "torch", "--codec", "ternary"]),
    quantizer("float", "numpy", &["--framework", "numpy", "--codec", "float", "--codec", "float scaled"]),
    quantizer("float", "torch", &["--framework", "torch", "--codec", "float", "--codec", "float scaled"]),
    quantizer("dynamic tree", "numpy", &["--framework", "numpy", "--codec", "tree"]),
    quantizer("dynamic tree", "torch", &["--framework", "torch", "--codec", "tree"]),
    quantizer("natural", "numpy", &["--framework", "numpy", "--codec", "natural"]),
    quantizer("natural", "torch", &["--framework", "torch", "--codec", "natural"]),
    quantizer("DRIVE", "numpy", &["--framework", "numpy", "--codec", "DRIVE"]),
    quantizer("DRIVE", "torch", &["--framework", "torch", "--codec", "DRIVE"]),
    quantizer("EDEN", "numpy", &["--framework", "numpy", "--codec", "EDEN"]),
    quantizer("EDEN", "torch", &["--framework", "torch", "--codec", "EDEN"]),
    quantizer("quantile", "numpy", &["--framework", "numpy", "--codec", "quantile"]),
    quantizer("quantile", "torch", &["--framework", "torch", "--codec", "quantile"]),
];

const fn quantizer(codec: &'static str, name: &'static str, options: &'static [&'static str]) -> Peer {
    Peer { codec, name, script: "quantizers.py", options }
}

/// The scripts' exit code where their framework is not installed.
const NOT_INSTALLED: i32 = 3;
/// Time for a selection by the standard library.
const TIME: Duration = Duration::from_secs(2);

/// The scripts for a codec, or for all.
pub(crate) fn of(codec: Option<&str>) -> Vec<&'static Peer> {
    PEERS.iter().filter(|peer| codec.is_none_or(|codec| codec == peer.codec)).collect()
}

impl Peer {
    /// Runs the script over `n` elements. The error is a line that says why there are no rows.
    pub(crate) fn run(
        &self,
        scripts: &Path,
        scratch: &Path,
        n: usize,
        entries: &[Entry],
    ) -> Result<Vec<PeerRow>, String> {
        let Self { codec, name, .. } = self;
        let script = scripts.join(self.script);
        if !script.is_file() {
            return Err(format!("{name}: there is no {}; run from a clone of the repository", script.display()));
        }
        let json = scratch.join(format!("{name}-{codec}.json"));
        super::report::make_folder(&json)?;
        let output = Command::new("python3")
            .arg(&script)
            .args(self.options)
            .args(settings(entries.iter().filter(|entry| entry.codec() == *codec)))
            .args(["--size", &n.to_string(), "--json"])
            .arg(&json)
            .output()
            .map_err(|e| format!("{name}: python3 could not be started: {e}; install Python 3"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.trim_end().lines().next_back().unwrap_or("it said nothing").to_owned();
        match output.status.code() {
            Some(0) => {}
            Some(NOT_INSTALLED) => return Err(format!("{name}, {codec}: not compared: {last}")),
            _ => return Err(format!("{name}: {} ended with {}: {last}", script.display(), output.status)),
        }
        let text =
            std::fs::read_to_string(&json).map_err(|e| format!("{name}: {} is not there: {e}", json.display()))?;
        serde_json::from_str(&text).map_err(|e| format!("{name}: {} is not what was expected: {e}", json.display()))
    }
}

/// The settings that a script times, if it does not have its own.
fn settings<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<String> {
    let (mut option, mut values) = ("", Vec::new());
    for entry in entries {
        match entry.setting {
            Setting::Buckets(_) | Setting::Packed(..) => {}
            Setting::TopK(part) => (option, _) = ("--parts", values.push(part.to_string())),
            Setting::PowerSgd(rank) => (option, _) = ("--ranks", values.push(rank.to_string())),
        }
    }
    if values.is_empty() { Vec::new() } else { vec![option.to_owned(), values.join(",")] }
}

/// What the standard library offers for top-k.
pub(crate) fn standard_library(x: &[f32], entries: &[Entry]) -> Result<Vec<PeerRow>, String> {
    let mut rows = Vec::new();
    for entry in entries {
        let Setting::TopK(part) = entry.setting else { continue };
        let k = (part * x.len() as f64).ceil() as usize;
        let seconds = seconds(&mut Budget::new(TIME, 1), || {
            black_box(select_nth(x, k));
            Ok(())
        })?;
        rows.push(PeerRow {
            peer: "Rust".to_owned(),
            op: "topk_encode".to_owned(),
            variant: "select_nth_unstable".to_owned(),
            threads: 1,
            setting: entry.label(),
            elements: x.len(),
            gradient_gbps: 4e-9 * x.len() as f64 / seconds,
            best: true,
            ..PeerRow::default()
        });
    }
    Ok(rows)
}

/// The k first of (key, index), then in order of the index, with the values.
fn select_nth(x: &[f32], k: usize) -> Vec<(u32, f32)> {
    let falling = |v: &f32| u64::from(!(v.to_bits() & 0x7fff_ffff)) << 32;
    let mut keys: Vec<u64> = x.iter().zip(0u64..).map(|(v, i)| falling(v) | i).collect();
    if k < keys.len() {
        keys.select_nth_unstable(k);
    }
    let mut indices: Vec<u32> = keys[..k].iter().map(|key| *key as u32).collect();
    indices.sort_unstable();
    indices.into_iter().map(|i| (i, x[i as usize])).collect()
}

/// Their fastest variant of each operation, and the plain one if it is another, each beside our row of the same
/// setting.
pub(crate) fn table(ours: &[Row], theirs: &[PeerRow]) -> String {
    let line = |[setting, op, own, other, over, who]: [&str; 6]| {
        format!("{setting:23} {op:10} {own:>9} {other:>12} {over:>14}  {who}").trim_end().to_owned() + "\n"
    };
    let mut out = line(["", "", "ours GB/s", "theirs GB/s", "ours / theirs", "theirs, on the CPU"]);
    for row in ours {
        let (codec, label) = (row.codec.trim_end_matches(" max"), &row.settings.label);
        for peer in theirs.iter().filter(|peer| peer.best || peer.variant == "plain") {
            let setting = match (&row.settings.of, peer.bits) {
                (Parameters::Buckets { .. }, Some(bits)) => format!("{bits} bit / {}", bucket_text(peer.bucket)),
                _ => peer.setting.clone(),
            };
            let (of, op) = peer.op.split_once('_').unwrap_or_default();
            let (rate, op) = match op {
                "encode" => (row.encode_gbps, "encode"),
                "decode_add" => (row.decode_add_gbps, "decode-add"),
                "step" => (row.feedback_gbps, "step"),
                _ => continue,
            };
            let Some(rate) = rate.filter(|_| codec.replace('-', "").to_lowercase() == of && setting == *label) else {
                continue;
            };
            let who = [&peer.peer, &peer.version, &peer.variant].map(String::as_str);
            out += &line([
                &format!("{codec} {label}"),
                op,
                &significant(rate),
                &significant(peer.gradient_gbps),
                &format!("{:.1}", rate / peer.gradient_gbps),
                &who.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" "),
            ]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{row, top_k};
    use super::*;
    use crate::jobs::list;

    fn theirs(op: &str, gradient_gbps: f64, best: bool) -> PeerRow {
        PeerRow {
            peer: "numpy".to_owned(),
            version: "2.3".to_owned(),
            op: op.to_owned(),
            variant: "blocks".to_owned(),
            bits: Some(4),
            bucket: Some(512),
            gradient_gbps,
            best,
            ..PeerRow::default()
        }
    }

    #[test]
    fn the_fastest_of_each_operation_stands_beside_ours() {
        let ours = Row { encode_gbps: Some(10.0), decode_add_gbps: Some(12.0), ..row("QSGD max", 4, Some(512)) };
        let top_k = Row { encode_gbps: Some(6.0), ..top_k() };
        let of =
            |setting: &str| PeerRow { setting: setting.to_owned(), bits: None, ..theirs("topk_encode", 1.5, true) };
        let rows = [
            theirs("qsgd_encode", 0.2, false),
            theirs("qsgd_encode", 0.5, true),
            theirs("qsgd_decode_add", 2.0, true),
            of("1 %"),
            of("10 %"),
        ];
        let text = table(&[row("QSGD max", 8, Some(512)), ours, row("uniform", 4, Some(512)), top_k], &rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines.iter().all(|line| line.len() <= 120));
        let words = |line: usize| lines[line].split_whitespace().rev().skip(3).take(3).collect::<Vec<_>>();
        assert_eq!([1, 2, 3].map(words), [["20.0", "0.500", "10.0"], ["6.0", "2.00", "12.0"], ["4.0", "1.50", "6.00"]]);
    }

    #[test]
    fn scripts_are_given_the_settings_of_the_list() {
        let of = |codec| settings(list::all().iter().filter(|entry| entry.codec() == codec));
        assert_eq!(of("top-k"), ["--parts", "0.0001,0.001,0.01,0.1"]);
        assert_eq!(of("PowerSGD"), ["--ranks", "1,4,8,32"]);
        assert!(of("QSGD").is_empty());
        assert_eq!([Some("QSGD"), Some("uniform"), None].map(|codec| super::of(codec).len()), [2, 2, PEERS.len()]);
        assert!(list::all().iter().all(|entry| !super::of(Some(entry.codec())).is_empty()), "every codec has a peer");
    }

    #[test]
    fn the_standard_library_selects_the_largest() {
        assert_eq!(select_nth(&[1.0, -3.0, 2.0, 0.5], 2), [(1, -3.0), (2, 2.0)]);
    }

    #[test]
    fn a_script_that_is_not_there_is_a_line() {
        let nowhere = Path::new("no/such/folder");
        let error = PEERS[0].run(nowhere, nowhere, 10, &[]).unwrap_err();
        assert!(error.contains("numpy_qsgd.py") && error.contains("clone"), "{error}");
    }
}
