//! Codecs' costs from what `cargo xtask bench` measured.

use serde::Deserialize;

use crate::codec::{CodecCost, Curve};
use crate::error::{Place, PlanError, positive};
use crate::line::Line;

/// The field of the file that is read. It has others.
#[derive(Deserialize)]
struct Report {
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    codec: String,
    settings: Settings,
    encode_gbps: Option<f64>,
    decode_gbps: Option<f64>,
    decode_add_gbps: Option<f64>,
    ratio: f64,
}

#[derive(Deserialize)]
struct Settings {
    label: String,
    recipe: Option<String>,
    dtype: String,
    bits: Option<u32>,
    bucket: Option<u64>,
    norm: Option<String>,
    rounding: Option<String>,
    packing: Option<String>,
    part: Option<f64>,
}

impl Row {
    /// The text of the recipe. Files without one say enough of QSGD by the largest magnitude, and of top-k.
    fn recipe(&self) -> Option<String> {
        if self.settings.recipe.is_some() {
            return self.settings.recipe.clone();
        }
        let Settings { bits, bucket, part, .. } = self.settings;
        let is = |field: &Option<String>, wanted: &str| field.as_deref() == Some(wanted);
        let packed = self.settings.packing.as_deref().is_some_and(|packing| packing != "none");
        match self.codec.as_str() {
            "QSGD" if is(&self.settings.norm, "max") && is(&self.settings.rounding, "stochastic") && !packed => {
                let bucket = bucket.map_or_else(|| "whole".to_owned(), |elements| elements.to_string());
                Some(format!("qsgd:bits={},bucket={bucket}", bits?))
            }
            "top-k" => Some(format!("topk:{}", part?)),
            _ => None,
        }
    }
}

impl CodecCost {
    /// The codecs of the JSON that `cargo xtask bench` writes, each called by the text of its recipe, or by its
    /// codec and setting where an older file does not say enough for one.
    ///
    /// Rates are of one large size, so that costs have no start-up time. What arrives is added where that was measured,
    /// and decoded otherwise. The rotations of EDEN and DRIVE, one to encode and one for each rank's payload, are not
    /// in these rates. Rows without a rate for encode and one for decode, such as PowerSGD's, are left out.
    ///
    /// # Errors
    ///
    /// No such JSON; a rate or ratio that is zero, negative or no number. A row has its index in place of a
    /// layer's.
    pub fn from_bench(text: &str) -> Result<Vec<Self>, PlanError> {
        let report: Report = serde_json::from_str(text).map_err(|error| PlanError::Json {
            line: error.line(),
            column: error.column(),
            message: error.to_string(),
        })?;
        let cost = |(index, row): (usize, Row)| {
            let (Some(encode), Some(decode)) = (row.encode_gbps, row.decode_add_gbps.or(row.decode_gbps)) else {
                return Ok(None);
            };
            let name = row.recipe().unwrap_or_else(|| format!("{} {}", row.codec, row.settings.label));
            let place = |field: &'static str| {
                let name = name.clone();
                move || Place::layer(index, &name, field)
            };
            positive(place("encode_gbps"), encode, "it would never end")?;
            positive(place("decode_gbps"), decode, "it would never end")?;
            positive(place("ratio"), row.ratio, "its payload would be endless")?;
            let bytes = if row.settings.dtype == "f32" { 4.0 } else { 2.0 };
            let curve = |rate: f64| Curve::Line(Line::new(0.0, bytes / (rate * 1.0e9)));
            let (encode, decode, bytes_per_element) = (curve(encode), curve(decode), bytes / row.ratio);
            // Two phases cut a gradient at its buckets, and a rotated one cannot be cut.
            let two_phase = !matches!(row.codec.as_str(), "top-k" | "PowerSGD" | "DRIVE" | "EDEN");
            let selects = row.codec == "top-k";
            Ok(Some(Self { name, encode, decode, bytes_per_element, sums: false, two_phase, selects, ..Self::dense() }))
        };
        report.rows.into_iter().enumerate().filter_map(|row| cost(row).transpose()).collect()
    }
}
