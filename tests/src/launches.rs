//! How many launches a selection takes. Each waits for the one before, so that at the sizes of gradients they are a good part
//! of its time.

use std::fmt::Write as _;

use gradwire::plan::Limits;
use gradwire::{Dtype, Error, Segment, TopK};

/// Elements of the gradients that are counted for.
const N: usize = 1 << 24;

/// As many segments as ResNet-50 has tensors.
const SEGMENTS: usize = 161;

/// The launches of one selection.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What is selected.
    pub what: &'static str,
    /// From elements of which type.
    pub dtype: Dtype,
    /// Whether a residual is added.
    pub feedback: bool,
    /// How many launches that takes.
    pub launches: usize,
    /// The kernels, in order.
    pub kernels: Vec<&'static str>,
}

/// Makes the passes, and counts them.
///
/// # Errors
/// As [`TopK::selection`].
pub fn count() -> Result<Vec<Row>, Error> {
    let len = N / SEGMENTS;
    let mut segments = vec![Segment { elements: len as u64, k: (len / 100) as u64 }; SEGMENTS];
    segments[0].elements += (N - SEGMENTS * len) as u64;
    let one = TopK::fraction(0.01);
    let cases = [
        ("one segment, 1 %", &one, Dtype::F32, false),
        ("one segment, 1 %", &one, Dtype::F32, true),
        ("one segment, 1 %", &one, Dtype::Bf16, false),
        ("one segment, 1 %", &one, Dtype::Bf16, true),
        ("one segment, 40 %: no sample", &TopK::fraction(0.4), Dtype::F32, false),
        ("161 segments, 1 % of each", &TopK::segments(&segments), Dtype::F32, false),
        ("161 segments, 1 % of each", &TopK::segments(&segments), Dtype::Bf16, false),
        ("blocks of 512, 5 of each", &TopK::blocks(512, 5), Dtype::F32, false),
    ];
    let row = |(what, codec, dtype, feedback): (&'static str, &TopK, Dtype, bool)| {
        let selection = codec.selection(N, dtype, feedback, &Limits::NONE)?;
        let kernels: Vec<&str> = selection.passes().iter().map(|pass| pass.kernel().name()).collect();
        Ok(Row { what, dtype, feedback, launches: kernels.len(), kernels })
    };
    cases.into_iter().map(row).collect()
}

/// The table as Markdown.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from(HEAD);
    for Row { what, dtype, feedback, launches, kernels } in rows {
        let dtype = if *dtype == Dtype::F32 { "f32" } else { "bf16" };
        let with = if *feedback { " + feedback" } else { "" };
        let kernels: Vec<&str> = kernels.iter().map(|name| name.trim_start_matches("topk_")).collect();
        let _ = writeln!(text, "| {what} | {dtype}{with} | {launches} | {} |", kernels.join(", "));
    }
    text
}

const HEAD: &str = "
## Top-k: launches

Of one selection, each behind the one before; a gradient that is not bound at once has more. Where the sample was right, those
between the sketch and the last count end after a look at what is known.

| selection | type | launches | kernels |
| --- | --- | --- | --- |
";
