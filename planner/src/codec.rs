//! The costs of encoding and decoding, and the sizes of payloads.

use serde::{Deserialize, Serialize};

use crate::error::{Place, PlanError, checked, positive};
use crate::line::Line;

/// Seconds over elements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Curve {
    /// `start + per_unit * elements`: every kernel of this library.
    Line(Line),
    /// `scale * x * log2(x)` for `x` elements: a top-k by sorting, as Shi et al. 2020 (OMGS) model it.
    Sort {
        /// Seconds per element and bit.
        scale: f64,
    },
}

impl Curve {
    /// Work that takes no time.
    pub const NONE: Self = Self::Line(Line::new(0.0, 0.0));

    /// The same work with its start-up time `starts` times, over `elements` times as many elements.
    fn again(self, starts: f64, elements: f64) -> Self {
        match self {
            Self::Line(line) => Self::Line(Line::new(line.start * starts, line.per_unit * elements)),
            Self::Sort { scale } => Self::Sort { scale: scale * elements },
        }
    }

    /// Seconds for this many elements.
    pub fn at(&self, elements: u64) -> f64 {
        let x = elements as f64;
        match self {
            Self::Line(line) => line.at(x),
            Self::Sort { .. } if elements <= 1 => 0.0,
            Self::Sort { scale } => scale * x * x.log2(),
        }
    }

    /// Refuses NaN, infinite and negative numbers, as fields of `of`.
    pub(crate) fn check(&self, of: &str) -> Result<(), PlanError> {
        match self {
            Self::Line(line) => line.check(of),
            Self::Sort { scale } => checked(|| Place::whole(&format!("{of}.scale")), *scale).map(drop),
        }
    }
}

/// What a codec costs on one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CodecCost {
    /// What tables call it, such as the text of a recipe.
    pub name: String,
    /// Seconds to encode, over elements.
    pub encode: Curve,
    /// Seconds to decode one payload, or to add it to a sum, over its elements.
    pub decode: Curve,
    /// Bytes of a payload of any size, such as its header.
    pub header: f64,
    /// Bytes per element beyond that, such as 0.5 for codes of 4 bits.
    pub bytes_per_element: f64,
    /// Whether an all-reduce may sum payloads, so that one is decoded: gradients themselves, and PowerSGD's factors
    /// that no quantizer takes. Others are gathered, and each rank's is decoded.
    pub sums: bool,
    /// Whether a rank may sum pieces of all payloads and encode the sum again, as of every quantizer that rotates
    /// nothing: then payloads may go by [`Algorithm::TwoPhase`](crate::Algorithm::TwoPhase) too.
    #[serde(default)]
    pub two_phase: bool,
    /// Whether it selects entries, so that payloads may be merged by
    /// [`Algorithm::MergeTree`](crate::Algorithm::MergeTree).
    #[serde(default)]
    pub selects: bool,
    /// The number of sums one after another in a step, which share the bytes: of PowerSGD one for each factor. Each has
    /// a start of its own.
    #[serde(default = "once")]
    pub rounds: u32,
}

fn once() -> u32 {
    1
}

impl CodecCost {
    /// No codec: 4 bytes per element, and no time.
    pub fn dense() -> Self {
        let name = "dense".to_owned();
        let (encode, decode) = (Curve::NONE, Curve::NONE);
        let (header, bytes_per_element, sums, two_phase, selects, rounds) = (0.0, 4.0, true, false, false, 1);
        Self { name, encode, decode, header, bytes_per_element, sums, two_phase, selects, rounds }
    }

    /// What encoding costs in two phases: the gradient, and a piece of the sum.
    pub(crate) fn encoded_twice(&self, ranks: u32) -> Self {
        Self { encode: self.encode.again(2.0, 1.0 + 1.0 / f64::from(ranks)), ..self.clone() }
    }

    /// Bytes of the payload of this many elements.
    pub fn bytes(&self, elements: u64) -> f64 {
        self.header + self.bytes_per_element * elements as f64
    }

    /// Refuses costs that are negative, NaN or infinite.
    ///
    /// # Errors
    ///
    /// Names the field.
    pub fn check(&self) -> Result<(), PlanError> {
        self.encode.check("encode")?;
        self.decode.check("decode")?;
        positive(|| Place::whole("rounds"), f64::from(self.rounds), "a step has a message")?;
        checked(|| Place::whole("header"), self.header)?;
        checked(|| Place::whole("bytes_per_element"), self.bytes_per_element).map(drop)
    }
}
