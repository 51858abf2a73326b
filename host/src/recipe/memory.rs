//! What a recipe keeps from step to step.

use super::promise::Promise;
use crate::error::{Error, RecipeError};
use crate::plan::EncodePlan;

/// Which state is kept from step to step, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Memory {
    /// Error feedback: the error of a payload is added to the next gradient.
    pub feedback: bool,
    /// The part of the residual that counts, from 0 to 1: with gradient g and residual e, `beta e + gamma g` is
    /// encoded, and the residual becomes what of it was not sent. 1 unless said otherwise, as in GRACE (Xu et al.,
    /// "GRACE: a compressed communication framework for distributed machine learning", ICDCS 2021, section III).
    pub beta: f32,
    /// The gradient's factor beside [`Memory::beta`], above 0.
    pub gamma: f32,
    /// Momentum of this factor, 0 to less than 1, gathered before anything is dropped. Without error feedback it goes
    /// with a quantizer alone.
    pub momentum: Option<f32>,
    /// Nesterov's form of the momentum: with gradient g and momentum u, u = m (u + g), and u + g takes the place of the
    /// gradient.
    pub nesterov: bool,
    /// Whether the momentum stays at entries that a selection sends, where it otherwise becomes zero.
    pub unmasked: bool,
    /// Differences to an estimate are sent, not gradients.
    pub shift: Option<Shift>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { feedback: false, beta: 1.0, gamma: 1.0, momentum: None, nesterov: false, unmasked: false, shift: None }
    }
}

/// Memory of which the difference to the gradient is sent.
///
/// Each rank keeps an estimate h of its own gradient, and the mean H of all ranks' estimates. It sends C(g - h). The
/// mean of what all send, added to H, takes the gradient's place. Then h grows by alpha times what the rank sent, and H
/// by alpha times that mean. So where gradients settle, differences vanish, and with them the codec's error. h and H
/// are zero at first, take 16 bytes per element together, and are saved with the state. Where a state is restored for
/// another number of ranks, every rank's h begins at H, whose mean is H still.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Shift {
    /// alpha = 1, of a contraction: |h - g|^2 falls by the factor 1 - delta per step while g stays as it is. Richtarik,
    /// Sokolov and Fatkhullin, "EF21: a new, simpler, theoretically better, and practically faster error feedback",
    /// NeurIPS 2021, algorithm 2.
    Ef21,
    /// Of an unbiased codec, so what takes the gradient's place is unbiased. Mishchenko, Gorbunov, Takac and Richtarik,
    /// "Distributed learning with compressed gradient differences", 2019, algorithm 1.
    Diana {
        /// How much of what was sent the estimate takes up: above 0, and at most 1/(1 + omega), which is taken where
        /// there is none.
        alpha: Option<f32>,
    },
}

/// The encoded values are formed in a state buffer: `factor` times its old values plus `gain` times the gradient.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Formed {
    pub(crate) factor: f32,
    pub(crate) gain: f32,
    /// Whether the plane is then what it was before the step, or else what was formed; in either case this times what
    /// the rank sent is added.
    pub(crate) starts_over: bool,
    pub(crate) weight: f32,
}

impl Memory {
    /// Whether the encoded values are formed before the encode, and its residual after it.
    pub(crate) fn is_formed(&self) -> bool {
        self.shift.is_some() || self.feedback && (self.beta != 1.0 || self.gamma != 1.0)
    }

    /// Whether the codec adds the residual, and writes what it does not send.
    pub(crate) fn adds_residual(&self) -> bool {
        self.feedback && !self.is_formed()
    }

    /// Whether entries that a selection sends lose their momentum.
    pub(crate) fn masks(&self) -> bool {
        self.momentum.is_some() && !self.unmasked
    }

    /// The memory of a tensor that goes uncompressed beside tensors with this memory: the momentum alone.
    pub(crate) fn of_uncompressed(&self) -> Self {
        Self { momentum: self.momentum, nesterov: self.nesterov, ..Self::default() }
    }

    /// Whether what is encoded, or formed, is taken from the plane of the momentum. Nesterov's form leaves it where the
    /// gradient was.
    pub(crate) fn sends_momentum(&self) -> bool {
        self.momentum.is_some() && !self.nesterov
    }

    /// Refuses error feedback whose residual grows without a bound.
    ///
    /// A codec leaves E|C(x) - x|^2 <= omega |x|^2, and beta times that comes back with the next gradient: the residual
    /// stays bounded if beta sqrt(omega) < 1.
    ///
    /// # Errors
    /// As [`EncodePlan::with_feedback`]; the remedy names the beta that would do.
    pub(crate) fn check_feedback(&self, plan: &EncodePlan) -> Result<(), Error> {
        let (beta, omega) = (f64::from(self.beta), plan.omega());
        if !self.feedback || self.is_formed() && (beta == 0.0 || beta * beta * omega < 1.0) {
            return Ok(());
        }
        match plan.with_feedback() {
            Err(Error::FeedbackDiverges { omega, remedy }) if omega.is_finite() => {
                let most = ((100.0 / omega.sqrt()).ceil() - 1.0) / 100.0;
                Err(Error::FeedbackDiverges { omega, remedy: format!("{remedy}, or ef:beta={most} at most") })
            }
            checked => checked.map(drop),
        }
    }

    /// How the encoded values are formed, of tensors of which the longest promises this.
    pub(crate) fn formed(&self, promise: &Promise) -> Result<Option<Formed>, Error> {
        let stages = |what, remedy| Err(RecipeError::Stages { what, remedy }.into());
        let weight = match self.shift {
            None if self.is_formed() => {
                let (factor, gain) = (self.beta, self.gamma);
                return Ok(Some(Formed { factor, gain, starts_over: false, weight: -1.0 }));
            }
            None => return Ok(None),
            Some(Shift::Ef21) if promise.delta.is_none() => {
                let what = "ef21 goes with a contraction, which this codec is not";
                return stages(what, "make it contractive, keep a part of the entries, or use diana");
            }
            Some(Shift::Ef21) => 1.0,
            Some(Shift::Diana { alpha }) => {
                let Some(omega) = promise.omega.filter(|_| promise.unbiased) else {
                    let what = "diana goes with an unbiased codec, which this one is not";
                    return stages(what, "use qsgd, uniform or natural without contractive, or ef21");
                };
                let most = (1.0 / (1.0 + omega)) as f32;
                match alpha {
                    Some(got) if got > most => return Err(RecipeError::Alpha { got, most }.into()),
                    given => given.unwrap_or(most),
                }
            }
        };
        Ok(Some(Formed { factor: -1.0, gain: 1.0, starts_over: true, weight }))
    }

    /// Refuses factors out of range, and memories that do not go together.
    pub(super) fn check(&self, of_factors: bool) -> Result<(), Error> {
        if let Some(factor) = self.momentum.filter(|m| !(0.0..1.0).contains(m)) {
            return Err(RecipeError::Momentum { got: factor }.into());
        }
        if self.nesterov && self.momentum.is_none() {
            let what = "nesterov is a form of the momentum, and there is none";
            return Err(RecipeError::Stages { what, remedy: "add momentum=<factor>, or leave out nesterov" }.into());
        }
        let refuse = |what, got, allowed| Err(RecipeError::Factor { what, got, allowed }.into());
        if !(0.0..=1.0).contains(&self.beta) {
            return refuse("beta", self.beta, "from 0 to 1");
        }
        if !(self.gamma > 0.0 && self.gamma.is_finite()) {
            return refuse("gamma", self.gamma, "above 0");
        }
        if let Some(Shift::Diana { alpha: Some(alpha) }) = self.shift
            && !(alpha > 0.0 && alpha <= 1.0)
        {
            return refuse("alpha", alpha, "above 0 and at most 1");
        }
        let (what, remedy) = match self {
            Self { shift: Some(_), momentum: None, feedback: false, .. } | Self { shift: None, .. } if !of_factors => {
                return Ok(());
            }
            Self { shift: None, .. } if !self.is_formed() => return Ok(()),
            Self { shift: None, .. } => ("PowerSGD keeps its own residual, all of it", "leave out beta and gamma"),
            _ if of_factors => ("PowerSGD keeps its own residual", "leave out ef21 and diana"),
            _ => {
                ("ef21 and diana keep an estimate, and no residual or momentum", "leave out ef and momentum, or those")
            }
        };
        Err(RecipeError::Stages { what, remedy }.into())
    }
}
