//! Rows of a table.

use std::fmt::Write as _;

pub(super) fn row(text: &mut String, cells: impl IntoIterator<Item = String>) {
    let cells: Vec<String> = cells.into_iter().collect();
    // Writing into a string does not fail.
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

pub(super) fn head(text: &mut String, cells: &[&str]) {
    row(text, cells.iter().map(|cell| (*cell).to_owned()));
    row(text, cells.iter().map(|_| "---".to_owned()));
}
