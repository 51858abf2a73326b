//! What a run of the bench writes down.

use serde::{Deserialize, Serialize};

use crate::jobs::Feedback;
use crate::jobs::list::bucket_text;

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
    /// Null of PowerSGD, whose work is a step, as are the next two.
    pub(crate) encode_gbps: Option<f64>,
    pub(crate) decode_gbps: Option<f64>,
    pub(crate) decode_add_gbps: Option<f64>,
    /// Encoding with error feedback; null where the setting admits none. Of PowerSGD: a whole step of one worker,
    /// decoded.
    pub(crate) feedback_gbps: Option<f64>,
    /// How feedback ran.
    pub(crate) feedback: Option<Feedback>,
    pub(crate) encode_share: Option<f64>,
    pub(crate) decode_share: Option<f64>,
    pub(crate) decode_add_share: Option<f64>,
    pub(crate) feedback_share: Option<f64>,
    /// Bytes of the gradient over bytes of all payloads, headers included. Of PowerSGD: over bytes of the factors of a
    /// step.
    pub(crate) ratio: f64,
    /// |decoded - gradient| / |gradient|, over all tensors. Of PowerSGD: after the first step.
    pub(crate) relative_error: f64,
    /// Cosine of the angle between the decoded gradient and the gradient.
    pub(crate) cosine: f64,
}

impl Row {
    /// The rate that stands for the codec: of encoding, or of PowerSGD's step.
    pub(crate) fn rate(&self) -> f64 {
        self.encode_gbps.or(self.feedback_gbps).unwrap_or_default()
    }

    /// Whether the whole tensor shares a scale.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self.settings.of, Parameters::Buckets { bucket: None, .. })
    }
}

/// A codec's parameters, and the type of the gradient.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// In a few words, as a table of several codecs has it.
    pub(crate) label: String,
    /// Type of the gradient.
    pub(crate) dtype: String,
    /// The text of the recipe. Results that were written before have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) recipe: Option<String>,
    #[serde(flatten)]
    pub(crate) of: Parameters,
}

/// The parameters of each sort of codec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Parameters {
    Buckets {
        bits: u32,
        levels: u32,
        /// Elements that share a scale; null is the whole tensor.
        bucket: Option<usize>,
        /// What the scale is: `max`, `l2`, `range` or `means`.
        norm: String,
        /// `stochastic`, `nearest` or `none`.
        rounding: String,
        /// How the codes are packed: `none`, `elias`, `delta`, `base3` or `sparse`.
        #[serde(default = "unpacked")]
        packing: String,
    },
    TopK {
        /// The part of the entries that is kept.
        part: f64,
    },
    PowerSgd {
        rank: u32,
    },
}

/// What results say that were written before codes could be packed.
fn unpacked() -> String {
    "none".to_owned()
}

impl Parameters {
    /// Bits and bucket, or what other codecs have in their place, in 11 columns.
    pub(crate) fn columns(&self, label: &str) -> String {
        match self {
            Self::Buckets { bits, bucket, .. } => format!("{bits:>4} {:>6}", bucket_text(*bucket)),
            _ => format!("{label:>11}"),
        }
    }
}

/// A row of a script's report; what it says besides is not needed here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PeerRow {
    pub(crate) peer: String,
    pub(crate) version: String,
    /// What was done: `encode`, `decode_add` or `step`, after the codec's name.
    pub(crate) op: String,
    pub(crate) variant: String,
    pub(crate) threads: u32,
    /// The setting in the words of ours; of scripts that tell it by bits and bucket, empty.
    pub(crate) setting: String,
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
    /// One of the series: factors from a seeded start, or after steps with the same gradient; entries, of the whole
    /// gradient; levels.
    pub(crate) codec: String,
    /// PowerSGD: the rank. Top-k: entries kept. QSGD: bits.
    pub(crate) setting: u64,
    /// Bytes that are sent. Of PowerSGD: all factors, and in f32 the tensors that its published rule leaves
    /// uncompressed.
    pub(crate) bytes: u64,
    /// Bytes of the gradient over those.
    pub(crate) ratio: f64,
    /// The part of the gradient's energy that lies along what was decoded: the cosine of their angle, squared. Where
    /// the decoded gradient is a projection, that is the energy that it has.
    pub(crate) energy: f64,
    /// |decoded - gradient| / |gradient|.
    pub(crate) relative_error: f64,
}
