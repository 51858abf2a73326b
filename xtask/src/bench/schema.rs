//! What a run of the bench writes down.

use serde::{Deserialize, Serialize};

/// One codec with one setting.
///
/// Rates are in 10^9 bytes of the gradient each second. A share is the rate of the bytes that the work cannot do
/// without, each input read once and each output written once, over the device's copy rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) codec: String,
    pub(crate) settings: Settings,
    pub(crate) device: String,
    pub(crate) elements: usize,
    pub(crate) encode_gbps: f64,
    pub(crate) decode_gbps: f64,
    pub(crate) decode_add_gbps: f64,
    /// Encoding with error feedback; null where the setting admits none.
    pub(crate) feedback_gbps: Option<f64>,
    /// How feedback ran.
    pub(crate) feedback: Option<Feedback>,
    pub(crate) encode_share: f64,
    pub(crate) decode_share: f64,
    pub(crate) decode_add_share: f64,
    pub(crate) feedback_share: Option<f64>,
    /// Bytes of the gradient over bytes of all payloads, headers included.
    pub(crate) ratio: f64,
    /// |decoded - gradient| / |gradient|, over all tensors.
    pub(crate) relative_error: f64,
    /// Cosine of the angle between the decoded gradient and the gradient.
    pub(crate) cosine: f64,
}

/// A codec's parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) bits: u32,
    pub(crate) levels: u32,
    /// Elements that share a scale; null is the whole tensor.
    pub(crate) bucket: Option<usize>,
    /// What the scale is: `max`, `l2` or `range`.
    pub(crate) norm: String,
    /// `stochastic` or `nearest`.
    pub(crate) rounding: String,
    /// Type of the gradient.
    pub(crate) dtype: String,
}

/// A bucket's size as a table shows it.
pub(crate) fn bucket_text(bucket: Option<usize>) -> String {
    bucket.map_or_else(|| "whole".to_owned(), |size| size.to_string())
}

/// How error feedback runs with a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Feedback {
    /// With the setting as it is.
    Plain,
    /// With the contraction C(x)/(1 + omega), as omega is 1 or more.
    Contractive,
}

impl Feedback {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Contractive => "contractive",
        }
    }
}

/// A row of a script's report; what it says besides is not needed here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PeerRow {
    pub(crate) peer: String,
    pub(crate) version: String,
    pub(crate) op: String,
    pub(crate) variant: String,
    pub(crate) threads: u32,
    pub(crate) bits: Option<u32>,
    pub(crate) bucket: Option<usize>,
    pub(crate) elements: usize,
    pub(crate) gradient_gbps: f64,
    /// Whether it is the fastest of its operation.
    pub(crate) best: bool,
    pub(crate) note: String,
}

/// A codec with a setting, on the gradient of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Traded {
    /// Which captured gradient.
    pub(crate) gradient: String,
    /// One of the series: factors from a seeded start, or after steps with the same gradient; entries, of the whole gradient; levels.
    pub(crate) codec: String,
    /// PowerSGD: the rank. Top-k: entries kept. QSGD: bits.
    pub(crate) setting: u64,
    /// Bytes that are sent. Of PowerSGD: all factors, and in f32 the tensors that its published rule leaves uncompressed.
    pub(crate) bytes: u64,
    /// Bytes of the gradient over those.
    pub(crate) ratio: f64,
    /// The part of the gradient's energy that lies along what was decoded: the cosine of their angle, squared. Where the decoded
    /// gradient is a projection, that is the energy that it has.
    pub(crate) energy: f64,
    /// |decoded - gradient| / |gradient|.
    pub(crate) relative_error: f64,
}
