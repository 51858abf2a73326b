//! The same operation in numpy and torch, timed by their scripts in `benches/peers` on the same machine.

use std::path::Path;
use std::process::Command;

use gradwire_tests::oracle::Kind;

use super::schema::{PeerRow, Row};
use super::settings::family;
use super::table::significant;

/// The scripts, by what they time.
pub(crate) const PEERS: [(&str, &str); 2] = [("numpy", "numpy_qsgd.py"), ("torch", "torch_qsgd.py")];
/// The setting that is compared: 4 bits, buckets of 512.
const SETTING: (u32, usize) = (4, 512);
/// The scripts' exit code where their framework is not installed.
const NOT_INSTALLED: i32 = 3;

/// Runs a script over `n` elements. The error is a line that says why there are no rows.
pub(crate) fn run(peer: (&str, &str), scripts: &Path, scratch: &Path, n: usize) -> Result<Vec<PeerRow>, String> {
    let (name, file) = peer;
    let script = scripts.join(file);
    if !script.is_file() {
        return Err(format!("{name}: there is no {}; run from a clone of the repository", script.display()));
    }
    let json = scratch.join(format!("{name}.json"));
    super::report::make_folder(&json)?;
    let output = Command::new("python3")
        .arg(&script)
        .args(["--size", &n.to_string(), "--json"])
        .arg(&json)
        .output()
        .map_err(|e| format!("{name}: python3 could not be started: {e}; install Python 3"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.trim_end().lines().next_back().unwrap_or("it said nothing").to_owned();
    match output.status.code() {
        Some(0) => {}
        Some(NOT_INSTALLED) => return Err(format!("{name}: not compared: {last}")),
        _ => return Err(format!("{name}: {} ended with {}: {last}", script.display(), output.status)),
    }
    let text = std::fs::read_to_string(&json).map_err(|e| format!("{name}: {} is not there: {e}", json.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{name}: {} is not what was expected: {e}", json.display()))
}

/// Ours and theirs, the best variant of each operation, and ours over theirs.
pub(crate) fn table(ours: &[Row], theirs: &[PeerRow]) -> String {
    let compared = |r: &&Row| {
        r.codec == family(Kind::QsgdMax) && (r.settings.bits, r.settings.bucket) == (SETTING.0, Some(SETTING.1))
    };
    let Some(ours) = ours.iter().find(compared) else { return String::new() };
    let line = |who: &str, rates: [String; 4]| {
        let [encode, over, decode_add, over_too] = rates;
        format!("{who:46}{encode:>12}{over:>16}{decode_add:>17}{over_too:>16}").trim_end().to_owned() + "\n"
    };
    let title = format!("QSGD, {} bit, bucket {}", SETTING.0, SETTING.1);
    let mut out = line(&title, ["encode GB/s", "ours / theirs", "decode-add GB/s", "ours / theirs"].map(str::to_owned));
    let none = String::new;
    out += &line(
        &format!("gradwire on {}", ours.device),
        [significant(ours.encode_gbps), none(), significant(ours.decode_add_gbps), none()],
    );
    let mut names: Vec<&str> = theirs.iter().map(|r| r.peer.as_str()).collect();
    names.dedup();
    for name in names {
        let best = |op: &str| {
            theirs.iter().find(|r| {
                r.peer == name && r.op == op && r.best && r.bits == Some(SETTING.0) && r.bucket == Some(SETTING.1)
            })
        };
        let (encode, decode_add) = (best("qsgd_encode"), best("qsgd_decode_add"));
        let rate = |row: Option<&PeerRow>, ours: f64| match row {
            Some(row) => [significant(row.gradient_gbps), format!("{:.1}", ours / row.gradient_gbps)],
            None => ["-".to_owned(), "-".to_owned()],
        };
        let [encode_rate, over] = rate(encode, ours.encode_gbps);
        let [decode_rate, over_too] = rate(decode_add, ours.decode_add_gbps);
        // The variants that were the fastest are in the JSON; they may differ from operation to operation.
        let version = encode.or(decode_add).map_or("", |r| &r.version);
        let who = format!("{name} {version} on the CPU, its fastest variant");
        out += &line(&who, [encode_rate, over, decode_rate, over_too]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::row;
    use super::*;

    fn theirs(op: &str, gradient_gbps: f64, best: bool) -> PeerRow {
        PeerRow {
            peer: "numpy".to_owned(),
            version: "2.3".to_owned(),
            op: op.to_owned(),
            variant: "blocks".to_owned(),
            threads: 2,
            bits: Some(4),
            bucket: Some(512),
            elements: 1 << 20,
            gradient_gbps,
            best,
            note: String::new(),
        }
    }

    #[test]
    fn the_fastest_of_each_operation_stands_beside_ours() {
        let ours = Row { encode_gbps: 10.0, decode_add_gbps: 12.0, ..row("QSGD max", 4, Some(512)) };
        let rows =
            [theirs("qsgd_encode", 0.2, false), theirs("qsgd_encode", 0.5, true), theirs("qsgd_decode_add", 2.0, true)];
        let text = table(&[row("QSGD max", 8, Some(512)), ours], &rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line.len() <= 120));
        let words: Vec<&str> = lines[2].split_whitespace().rev().take(4).collect();
        assert_eq!(words, ["6.0", "2.00", "20.0", "0.500"]);
    }

    #[test]
    fn a_script_that_is_not_there_is_a_line() {
        let nowhere = Path::new("no/such/folder");
        let error = run(("numpy", "numpy_qsgd.py"), nowhere, nowhere, 10).unwrap_err();
        assert!(error.contains("numpy_qsgd.py") && error.contains("clone"), "{error}");
    }
}
