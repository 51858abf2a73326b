//! What is wrong with a recipe.

/// Why a recipe cannot be made, or cannot be used for a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// A text that is not a recipe.
    #[error("at byte {at} of {text:?}: {found}; {allowed} could stand there")]
    Text {
        /// The whole text.
        text: String,
        /// The byte where what is wrong begins.
        at: usize,
        /// What stands there, and what is wrong with it.
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
        /// What the codec says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Stages that do not go together.
    #[error("{what}: {remedy}")]
    Stages {
        /// Which, and what is wrong with them.
        what: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// A momentum that never decays.
    #[error("momentum must be 0 or more and less than 1; got {got}")]
    Momentum {
        /// What was asked for.
        got: f32,
    },
    /// A factor of a memory out of its range.
    #[error("{what} must be {allowed}; got {got}")]
    Factor {
        /// Which factor.
        what: &'static str,
        /// What was asked for.
        got: f32,
        /// What it may be.
        allowed: &'static str,
    },
    /// An estimate that takes up more of what was sent than its codec's error allows.
    #[error("alpha must be at most 1/(1 + omega), which is {most} here; got {got}: leave it out, or set a smaller one")]
    Alpha {
        /// What was asked for.
        got: f32,
        /// What it may be.
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
