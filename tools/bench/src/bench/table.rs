//! The table that the shell shows: a line a setting, sorted by codec, no wider than 120 columns.

use super::schema::Row;
use crate::jobs::Feedback;

/// What the table's columns mean.
pub(crate) const LEGEND: &str = "\
GB/s: bytes of the gradient. copy: share of the device's copy rate, counting each input read once and each output
written once; it can pass 100% where a copy also has to fetch what it overwrites, as on a CPU. Error and cosine: decoded
against original. c: feedback through the contraction C(x)/(1 + omega), as plain feedback would diverge; -: neither.
PowerSGD: with feedback, a whole step of one worker, decoded; error and cosine after the first step from a seeded start.";

/// The table, with an empty line before each codec.
pub(crate) fn table(rows: &[Row]) -> String {
    let operations = ["encode", "decode", "decode-add", "with feedback"].map(|name| format!("{name:>14}")).concat();
    let rates = format!("{:>8} {:>5}", "GB/s", "copy").repeat(4);
    let mut lines = vec![
        format!("{:27}{operations}{:>19}", "", "relative"),
        format!("{:15} {:>4} {:>6}{rates} {:>8} {:>9} {:>10}", "codec", "bits", "bucket", "ratio", "error", "cosine"),
    ];
    let mut before = None;
    for row in rows {
        // The codec is the first word; its variants stand together.
        let codec = row.codec.split(' ').next();
        if before != codec {
            lines.push(String::new());
        }
        before = codec;
        lines.push(format_row(row));
    }
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn format_row(row: &Row) -> String {
    format!(
        "{:15} {}{}{}{}{}{:1}{:>8} {:>9} {:>10.7}",
        row.codec,
        row.settings.of.columns(&row.settings.label),
        operation(row.encode_gbps, row.encode_share),
        operation(row.decode_gbps, row.decode_share),
        operation(row.decode_add_gbps, row.decode_add_share),
        operation(row.feedback_gbps, row.feedback_share),
        if row.feedback == Some(Feedback::Contractive) { "c" } else { "" },
        ratio(row.ratio),
        error(row.relative_error),
        row.cosine
    )
}

/// A rate and its share of the copy rate, in 14 columns.
fn operation(rate: Option<f64>, share: Option<f64>) -> String {
    let Some((rate, share)) = rate.zip(share) else { return format!("{:>8} {:>5}", "-", "-") };
    let percent = 100.0 * share;
    let decimals = if percent < 9.95 { 1 } else { 0 };
    format!("{:>8} {percent:>4.decimals$}%", significant(rate))
}

/// Three significant digits, and no more than four decimals.
pub(crate) fn significant(value: f64) -> String {
    let before_point = if value > 0.0 { value.log10().floor() as i32 } else { 2 };
    let decimals = (2 - before_point).clamp(0, 4) as usize;
    format!("{value:.decimals$}")
}

/// A compression ratio.
pub(crate) fn ratio(value: f64) -> String {
    format!("{value:.2}")
}

/// An error, with an exponent if there would be many zeros.
pub(crate) fn error(value: f64) -> String {
    if value != 0.0 && value < 1e-3 { format!("{value:.2e}") } else { significant(value) }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{row, step};
    use super::*;

    #[test]
    fn columns_are_aligned_and_fit_the_screen() {
        let contractive = Row {
            feedback_gbps: Some(11.1),
            feedback_share: Some(0.5),
            feedback: Some(Feedback::Contractive),
            relative_error: 3.25,
            ..row("uniform nearest", 16, None)
        };
        let text = table(&[row("QSGD max", 2, Some(128)), row("QSGD L2", 16, Some(8192)), contractive, step()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2 + 2 + 2 + 1 + 2);
        assert!(lines.iter().all(|line| line.len() <= 120), "{text}");
        let filled: Vec<_> = lines[1..].iter().filter(|l| !l.is_empty()).collect();
        assert!(filled.iter().all(|line| line.len() == filled[0].len()), "{text}");
        assert_eq!(
            lines[3],
            "QSGD max           2    128    3100   61%    7.50  102%  0.0625  0.4%       -     -    31.99   3.20e-5  0.9876543"
        );
        assert!(lines[6].contains("11.1   50%c"), "{text}");
        assert!(lines[8].starts_with("PowerSGD            rank 32       -     -    7.50"), "{text}");
        assert!(LEGEND.lines().all(|line| line.len() <= 120));
    }

    #[test]
    fn numbers_keep_three_digits() {
        let got = [0.0, 0.01234, 1.0, 98.76, 123.4, 4321.0].map(significant);
        assert_eq!(got, ["0", "0.0123", "1.00", "98.8", "123", "4321"]);
        assert_eq!([0.0, 1e-5, 0.001, 1.5].map(error), ["0", "1.00e-5", "0.0010", "1.50"].map(str::to_owned));
    }
}
