//! Faults of recipes.

/// Why a recipe cannot be made, or cannot be used for a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// A text that is not a recipe.
    #[error("at byte {at} of {text:?}: {found}; {allowed} could stand there")]
    Text {
        /// The whole text.
        text: String,
        /// The byte at which the fault begins.
        at: usize,
        /// The text there, and its fault.
        found: String,
        /// What could stand there.
        allowed: String,
    },
    /// A text that is too long to be a recipe.
    #[error("a recipe has at most {most} bytes, and this text has {bytes}; shorten it")]
    Length {
        /// Bytes of the text.
        bytes: usize,
        /// Bytes that it may have.
        most: usize,
    },
    /// A stage with a setting that its codec refuses.
    #[error("at byte {at} of {text:?}: {source}")]
    Setting {
        /// The whole text.
        text: String,
        /// The byte where the stage begins.
        at: usize,
        /// The codec's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Stages that do not go together.
    #[error("{what}: {remedy}")]
    Stages {
        /// The stages, and their fault.
        what: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// A momentum that never decays.
    #[error("momentum must be 0 or more and less than 1; got {got}")]
    Momentum {
        /// The requested value.
        got: f32,
    },
    /// A factor of a memory out of its range.
    #[error("{what} must be {allowed}; got {got}")]
    Factor {
        /// Which factor.
        what: &'static str,
        /// The requested value.
        got: f32,
        /// The values that are allowed.
        allowed: &'static str,
    },
    /// An estimate that takes up more of a payload than the codec's error allows.
    #[error("alpha must be at most 1/(1 + omega), which is {most} here; got {got}: leave it out, or set a smaller one")]
    Alpha {
        /// The requested value.
        got: f32,
        /// The values that are allowed.
        most: f32,
    },
    /// A selection that sends nothing.
    #[error("{what} keeps no entry, so that nothing would ever be sent; keep a part above 0, or 1 entry or more")]
    Nothing {
        /// The selection.
        what: String,
    },
    /// An all-reduce of payloads that cannot be summed.
    #[error(
        "the payloads of {recipe:?} cannot be summed on the way; leave out Policy::all_reduce_only, or use none or powersgd, without a quantizer of its factors"
    )]
    NotLinear {
        /// The recipe.
        recipe: String,
    },
}
