//! How many launches a selection takes. Each waits for the one before, so that at the sizes of gradients they are a
//! good part of its time.

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
    /// The kernels, in order, where blocks may wait for one another.
    pub together: Vec<&'static str>,
    /// And where they may not.
    pub apart: Vec<&'static str>,
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
        let kernels = |forward_progress| -> Result<Vec<&str>, Error> {
            let selection = codec.selection(N, dtype, feedback, &Limits { forward_progress, ..Limits::NONE })?;
            Ok(selection.passes().iter().map(|pass| pass.kernel().name()).collect::<Vec<_>>())
        };
        Ok(Row { what, dtype, feedback, together: kernels(true)?, apart: kernels(false)? })
    };
    cases.into_iter().map(row).collect()
}

/// The table as Markdown.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from(HEAD);
    let list = |kernels: &[&str]| {
        let short: Vec<&str> = kernels.iter().map(|name| name.trim_start_matches("topk_")).collect();
        format!("{} | {}", kernels.len(), short.join(", "))
    };
    for Row { what, dtype, feedback, together, apart } in rows {
        let dtype = if *dtype == Dtype::F32 { "f32" } else { "bf16" };
        let with = if *feedback { " + feedback" } else { "" };
        let _ = writeln!(text, "| {what} | {dtype}{with} | {} | {} |", list(together), list(apart));
    }
    text
}

const HEAD: &str = "
## Top-k: launches

Of one selection, each behind the one before; a gradient that is not bound at once has more.

- CUDA from 7.0 on: blocks may wait for others that run, so that the passes between the filter and writing the entries hand over to one
  another within a launch, and those that have nothing to do are left out.
- elsewhere: WebGPU promises no such thing. Where the sample was right, those between the sketch and the last count end after a look at
  what is known.

| selection | type | CUDA from 7.0 on | kernels | elsewhere | kernels |
| --- | --- | --- | --- | --- | --- |
";
