//! What the shell shows: the device above, the table, and the files below.

use std::io::Write;
use std::path::{Path, PathBuf};

use gradwire::{BackendKind, Device, Dtype, Recipe};

use super::report::Report;
use super::schema::{Row, Traded};
use super::settings::{describe, promise};
use super::size::grouped;
use super::{peers, table, trade};
use crate::jobs::Feedback;
use crate::jobs::list::Entry;
use crate::verify;

/// Prints a line. Where nobody reads on, as after `| head`, the files are still to be written.
macro_rules! say {
    ($($what:tt)*) => {{
        let _ = writeln!(std::io::stdout(), $($what)*);
    }};
}

/// Which device runs, why, and what was passed over.
pub(crate) fn device(device: &Device, chosen: &str) {
    say!("device   {device}\nchosen   {chosen}");
    for error in device.why() {
        // An error may have several lines; here it is one of a list.
        let line = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        say!("         passed over: {line}");
    }
}

/// A line of what was just measured, so that there is something to read before the table, which comes last.
pub(crate) fn measured(name: &str, row: &Row) {
    let rate = |gbps: Option<f64>| gbps.map_or_else(|| "-".to_owned(), table::significant);
    let (main, decode) = (rate(Some(row.rate())), rate(row.decode_gbps));
    let (ratio, error) = (table::ratio(row.ratio), table::error(row.relative_error));
    let _ = writeln!(
        std::io::stderr(),
        "{name:27} {main:>6} GB/s, decode {decode:>6} GB/s, {ratio:>6} times smaller, relative error {error}"
    );
}

/// The most tensors that are named if they are left out.
const NAMED: usize = 10;

/// What of a file is not compressed.
pub(crate) fn left_out(lines: &[String]) {
    for line in lines.iter().take(NAMED) {
        say!("left out {line}");
    }
    if lines.len() > NAMED {
        say!("left out {} more tensors of such types", grouped(lines.len() - NAMED));
    }
}

/// The copy rate, what was compressed, the table, and the peers; `missing` says why rows are not there.
pub(crate) fn results(report: &Report, synthetic: bool, missing: &[String]) {
    let [least, most] = report.copy_gbps_range;
    say!(
        "copy     {:.1} GB/s read plus written, the median of {} measurements through the run ({least:.1} to {most:.1})",
        report.copy_gbps,
        report.rows.len()
    );
    if most > 1.5 * least {
        say!("         other work on this machine disturbs this run: compare its rates with nothing, and run it again");
    }
    say!("source   {}", report.source);
    if !synthetic {
        say!("         error, cosine and ratio: each tensor compressed by itself, all taken together");
    }
    let timed = grouped(report.elements_timed);
    match report.elements_timed.cmp(&report.elements_compared) {
        std::cmp::Ordering::Equal => say!("rates    of {timed} elements"),
        std::cmp::Ordering::Greater => {
            say!("rates    of the same values repeated to {timed} elements, as the source would sit in a cache");
        }
        std::cmp::Ordering::Less => say!("rates    of the first {timed} elements"),
    }
    say!("\n{}\n{}", table::table(&report.rows), table::LEGEND);
    if !report.traded.is_empty() {
        say!("\n{}", trade::table(&report.traded).trim_end());
    }
    if !report.peers.is_empty() {
        say!("\n{}", peers::table(&report.rows, &report.peers).trim_end());
    }
    if !missing.is_empty() {
        say!("");
        for line in missing {
            say!("{line}");
        }
    }
}

/// Where results go, of a binary that is called outside of a checkout.
pub(crate) fn outside(json: &Path) {
    say!("no checkout of Gradwire is here: results go to {}", json.display());
}

/// Where the results are.
pub(crate) fn files(report: &Report, json: &Path, drawn: &[PathBuf]) {
    say!("\nresults  {}", short(json));
    charts(drawn);
    say!("took     {:.0} s", report.seconds);
}

fn charts(drawn: &[PathBuf]) {
    for (at, path) in drawn.iter().enumerate() {
        say!("{:8} {}", if at == 0 { "chart" } else { "" }, short(path));
    }
}

/// What is left for the bytes sent, alone.
pub(crate) fn traded(source: &str, rows: &[Traded], json: &Path, drawn: &[PathBuf]) {
    say!("source   {source}\n\n{}", trade::table(rows).trim_end());
    say!("\nresults  {}", short(json));
    charts(drawn);
}

/// A path from the current folder on, if it lies below it.
fn short(path: &Path) -> String {
    let below = std::env::current_dir().ok().and_then(|here| path.strip_prefix(here).ok().map(Path::to_path_buf));
    below.unwrap_or_else(|| path.to_path_buf()).display().to_string()
}

/// What would be measured, and the devices of this machine; `chosen` or the first that opens would run.
pub(crate) fn list(entries: &[Entry], dtype: Dtype, chosen: Option<BackendKind>) -> Result<(), String> {
    // Large enough that headers and last units do not show in the ratio.
    let n = 1 << 24;
    say!("{:15} {:>4} {:>6} {:>8} {:>10}  feedback", "codec", "bits", "bucket", "ratio", "omega");
    for entry in entries {
        let promise = promise(entry, n, dtype).map_err(|e| e.to_string())?;
        let feedback = match promise.feedback {
            Some(Feedback::Plain) => "plain",
            Some(Feedback::Contractive) => "contractive",
            None => "none: diverges",
        };
        say!(
            "{:15} {} {:>8} {:>10}  {feedback}",
            entry.series(),
            describe(entry, dtype).of.columns(&entry.label()),
            table::ratio(promise.ratio),
            promise.omega.map_or_else(|| "-".to_owned(), table::error)
        );
    }
    say!(
        "\nratio and omega, the bound on |decoded - gradient|^2 / |gradient|^2 in the mean, are for {} elements; -: \
         depends on the gradient\nthe ratio of packed codes depends on it too, and is the least that there can be\n",
        grouped(n)
    );
    say!("{:15} {:30}  source", "method", "recipe, by GRACE's defaults");
    for method in Recipe::methods() {
        say!("{:15} {:30}  {}", format!("grace:{}", method.name), method.recipe, method.source);
        for differs in method.differs {
            say!("{:15} not as there: {differs}", "");
        }
    }
    say!("");
    for kind in BackendKind::ALL {
        match Device::of(kind) {
            Ok(device) => say!("--device {:5} {}", kind.name(), device.name()),
            Err(error) => say!("--device {:5} {error}", kind.name()),
        }
    }
    match verify::open(chosen) {
        Ok(device) => say!("\nthese would run on {device}"),
        Err(error) => say!("\nthese could not run: {error}"),
    }
    Ok(())
}
