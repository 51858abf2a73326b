//! Links between ranks: a start-up time and a time per byte.

use serde::{Deserialize, Serialize};

use crate::error::{Place, PlanError, positive};
use crate::line::{Fit, Line};

/// A link between two ranks: a message of `n` bytes takes `alpha + beta * n` seconds.
///
/// Neither number is zero: with a start-up time of zero it never pays to merge messages, and no link has one. A fit
/// that gives zero or less lacks measurements of small messages.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Raw")]
pub struct Network {
    alpha: f64,
    beta: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    alpha: Option<f64>,
    beta: Option<f64>,
}

impl TryFrom<Raw> for Network {
    type Error = PlanError;

    fn try_from(raw: Raw) -> Result<Self, PlanError> {
        let alpha = raw.alpha.ok_or_else(|| PlanError::Missing(Place::whole("alpha")))?;
        let beta = raw.beta.ok_or_else(|| PlanError::Missing(Place::whole("beta")))?;
        Self::new(alpha, beta)
    }
}

/// A network with a name, and where its numbers come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preset {
    /// Its name, which [`Network::preset`] takes.
    pub name: &'static str,
    /// The start-up time and the time per byte.
    pub network: Network,
    /// Where the numbers come from, and what was assumed.
    pub source: &'static str,
}

/// The networks that have names.
///
/// Published all-reduces of `n` ranks were turned into links by the costs of a ring: `alpha = a / (2 (n - 1))`,
/// `beta = b n / (2 (n - 1))`.
pub const PRESETS: [Preset; 4] = [
    Preset {
        name: "1GbE",
        network: Network { alpha: 4.36e-4, beta: 9.0e-9 },
        source: "Shi et al. 2019 (gTop-k), measured: 0.436 ms and 3.6e-5 ms per element of 4 bytes",
    },
    Preset {
        name: "10GbE",
        network: Network { alpha: 3.03e-5, beta: 8.0e-10 },
        source: "alpha: Shi et al. 2019 (MG-WFBP), all-reduce of 16 ranks, 0.908 ms in 30 messages; beta: the line \
                 rate, since their 0.74 ns per byte for 16 ranks is below what a ring can reach over 10 Gb/s",
    },
    Preset {
        name: "25GbE",
        network: Network { alpha: 3.03e-5, beta: 3.2e-10 },
        source: "alpha: assumed to be that of 10GbE, behind the same protocols; beta: the line rate",
    },
    Preset {
        name: "InfiniBand",
        network: Network { alpha: 7.86e-6, beta: 2.165e-10 },
        source: "Shi et al. 2019 (MG-WFBP), 56 Gb/s, all-reduce of 16 ranks: 0.236 ms and 0.406 ns per byte",
    },
];

impl Network {
    /// A link from its start-up time in seconds and its seconds per byte.
    ///
    /// # Errors
    ///
    /// A number that is negative, zero, NaN or infinite.
    pub fn new(alpha: f64, beta: f64) -> Result<Self, PlanError> {
        let small = "no link starts in no time; a fit to it needs smaller messages";
        positive(|| Place::whole("alpha"), alpha, small)?;
        positive(|| Place::whole("beta"), beta, "no link is endlessly fast; a fit to it needs larger messages")?;
        Ok(Self { alpha, beta })
    }

    /// The link that fits messages between two ranks best, by errors as parts of what was measured: `(bytes, seconds)`
    /// each, and how far each is from it.
    ///
    /// # Errors
    ///
    /// As [`Fit::least_relative`], and a line whose start-up time or time per byte is zero or below.
    pub fn fit(measured: &[(f64, f64)]) -> Result<(Self, Fit), PlanError> {
        let fit = Fit::least_relative(measured)?;
        Ok((Self::new(fit.line.start, fit.line.per_unit)?, fit))
    }

    /// The network of [`PRESETS`] with this name, in upper or lower case.
    ///
    /// ```
    /// use gradwire_planner::{Network, PlanError};
    ///
    /// assert_eq!(Network::preset("10gbe")?.beta(), 8.0e-10);
    /// assert!(matches!(Network::preset("token ring"), Err(PlanError::Preset { .. })));
    /// # Ok::<(), PlanError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// No such name: the error lists those that there are.
    pub fn preset(name: &str) -> Result<Self, PlanError> {
        let preset = PRESETS.iter().find(|preset| preset.name.eq_ignore_ascii_case(name));
        preset.map(|preset| preset.network).ok_or_else(|| PlanError::Preset {
            found: name.to_owned(),
            known: PRESETS.map(|preset| preset.name).join(", "),
        })
    }

    /// Seconds before a message's first byte.
    pub fn alpha(&self) -> f64 {
        self.alpha
    }

    /// Seconds per byte.
    pub fn beta(&self) -> f64 {
        self.beta
    }

    /// A message between two ranks, in seconds over bytes.
    pub fn message(&self) -> Line {
        Line::new(self.alpha, self.beta)
    }
}
