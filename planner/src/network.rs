//! Links between ranks: a start-up time and a time per byte.

use serde::{Deserialize, Serialize};

use crate::error::{Place, PlanError, checked, positive};
use crate::line::{Fit, Line};

/// A link between two ranks: a message of `n` bytes takes `alpha + beta * n` seconds.
///
/// An engine that posts messages to all ranks at once waits for the start-up time once, and not once for each message:
/// the [`gap`](Network::gap) between the starts of two messages is a number of its own
/// ([`Network::with_gap`], [`Network::with_gathers`]). Without it a message starts when the one before has arrived.
///
/// Neither start-up time nor time per byte is zero: with a start-up time of zero it never pays to merge messages, and no link has one. A fit
/// that gives zero or less lacks measurements of small messages.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Raw")]
pub struct Network {
    alpha: f64,
    beta: f64,
    /// None if a message starts when the one before has arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    gap: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    alpha: Option<f64>,
    beta: Option<f64>,
    gap: Option<f64>,
}

impl TryFrom<Raw> for Network {
    type Error = PlanError;

    fn try_from(raw: Raw) -> Result<Self, PlanError> {
        let alpha = raw.alpha.ok_or_else(|| PlanError::Missing(Place::whole("alpha")))?;
        let beta = raw.beta.ok_or_else(|| PlanError::Missing(Place::whole("beta")))?;
        let network = Self::new(alpha, beta)?;
        raw.gap.map_or(Ok(network), |gap| network.with_gap(gap))
    }
}

/// A network with a name, and where its numbers come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preset {
    /// Its name, which [`Network::preset`] takes.
    pub name: &'static str,
    /// The start-up time and the time per byte.
    pub network: Network,
    /// The source of the numbers, and the assumptions.
    pub source: &'static str,
}

/// The networks that have names.
///
/// Published all-reduces of `n` ranks were turned into links by the costs of a ring: `alpha = a / (2 (n - 1))`,
/// `beta = b n / (2 (n - 1))`.
pub const PRESETS: [Preset; 4] = [
    Preset {
        name: "1GbE",
        network: Network { alpha: 4.36e-4, beta: 9.0e-9, gap: None },
        source: "Shi et al. 2019 (gTop-k), measured: 0.436 ms and 3.6e-5 ms per element of 4 bytes",
    },
    Preset {
        name: "10GbE",
        network: Network { alpha: 3.03e-5, beta: 8.0e-10, gap: None },
        source: "alpha: Shi et al. 2019 (MG-WFBP), all-reduce of 16 ranks, 0.908 ms in 30 messages; beta: the line \
                 rate, since their 0.74 ns per byte for 16 ranks is below what a ring can reach over 10 Gb/s",
    },
    Preset {
        name: "25GbE",
        network: Network { alpha: 3.03e-5, beta: 3.2e-10, gap: None },
        source: "alpha: assumed to be that of 10GbE, behind the same protocols; beta: the line rate",
    },
    Preset {
        name: "InfiniBand",
        network: Network { alpha: 7.86e-6, beta: 2.165e-10, gap: None },
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
        Ok(Self { alpha, beta, gap: None })
    }

    /// The same link, of an engine that posts messages to several ranks at once: `gap` is the seconds from the start of
    /// one to the start of the next.
    ///
    /// # Errors
    ///
    /// A number that is negative, NaN or infinite.
    pub fn with_gap(self, gap: f64) -> Result<Self, PlanError> {
        checked(|| Place::whole("gap"), gap)?;
        Ok(Self { gap: Some(gap), ..self })
    }

    /// The same link as an engine's gathers show it: `(bytes, seconds)` each, of all-gathers in which each of `ranks`
    /// ranks gives that many bytes.
    ///
    /// Ranks that share a card or a core get less of it than two that are alone: the time per byte becomes that of the
    /// gathers, if that is longer. The start of a gather beyond a message's gives the gap. Two ranks, whose gather is
    /// one message, stay as they are.
    ///
    /// ```
    /// use gradwire_planner::{Algorithm, Network};
    ///
    /// // 32 ranks, 50 ms from each other: a gather starts in 50 ms, and a microsecond for each message after the first.
    /// let network = Network::new(50.0e-3, 1.0e-9)?;
    /// let gather = |bytes: f64| (bytes, 50.0e-3 + 30.0 * 1.0e-6 + 31.0 * 2.0e-9 * bytes);
    /// let engine = network.with_gathers(32, &[gather(1.0e3), gather(1.0e5)])?;
    /// assert!((engine.beta() - 2.0e-9).abs() < 1.0e-12);
    /// assert!((engine.gap() - 1.0e-6).abs() < 1.0e-9);
    /// assert!(Algorithm::Direct.cost(&engine, 32)?.start < 0.11);
    /// assert!(Algorithm::Ring.cost(&engine, 32)?.start > 3.0);
    /// # Ok::<(), gradwire_planner::PlanError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Fit::least_relative`].
    pub fn with_gathers(self, ranks: u32, measured: &[(f64, f64)]) -> Result<Self, PlanError> {
        if ranks < 3 {
            return Ok(self);
        }
        let line = Fit::least_relative(measured)?.line;
        let others = f64::from(ranks - 1);
        let gap = ((line.start - self.alpha) / (others - 1.0)).max(0.0);
        Self { beta: self.beta.max(line.per_unit / others), ..self }.with_gap(gap)
    }

    /// The link that fits messages between two ranks best, each `(bytes, seconds)`, by relative errors; and the
    /// error of each.
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

    /// Seconds from the start of a message to that of the next, of messages that a rank sends at once.
    pub fn gap(&self) -> f64 {
        self.gap.unwrap_or(self.alpha)
    }

    /// Seconds until this many messages of one rank, sent at once, have all started and the first byte of the last has
    /// arrived.
    pub(crate) fn burst(&self, messages: f64) -> f64 {
        match self.gap {
            Some(gap) if messages >= 1.0 => self.alpha + (messages - 1.0) * gap,
            _ => messages * self.alpha,
        }
    }

    /// A message between two ranks, in seconds over bytes.
    pub fn message(&self) -> Line {
        Line::new(self.alpha, self.beta)
    }
}
