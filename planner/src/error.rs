//! Errors of the planner, each with its place in the input.

use std::fmt;

/// A field of an input: of a layer, or of the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The layer's index in order of readiness, from 0, and its name; `None` for a field of the whole input.
    pub layer: Option<(usize, String)>,
    /// The field's name, as JSON has it.
    pub field: String,
}

impl Place {
    /// A field of the whole input.
    pub fn whole(field: &str) -> Self {
        Self { layer: None, field: field.to_owned() }
    }

    /// A field of the layer `index` that is called `name`.
    pub fn layer(index: usize, name: &str, field: &str) -> Self {
        Self { layer: Some((index, name.to_owned())), field: field.to_owned() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.layer {
            Some((index, name)) => write!(f, "layer {index} ({name:?}), field `{}`", self.field),
            None => write!(f, "field `{}`", self.field),
        }
    }
}

/// Why an input is refused. Times are in seconds.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The text is no JSON, or has a field that is not known.
    #[error("line {line}, column {column}: {message}")]
    Json {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// What serde_json says of it.
        message: String,
    },
    /// A trace that no profile can be made of.
    #[error("{}{problem}", of_event(event.as_ref()))]
    Trace {
        /// The event's number in the file, from 0, and its name, where one is to blame.
        event: Option<(usize, String)>,
        /// The fault, and the remedy.
        problem: &'static str,
    },
    /// A message of a written plan that cannot be sent.
    #[error("message {message}{}: {problem}", tensor.as_ref().map(|name| format!(", tensor {name:?}")).unwrap_or_default())]
    Message {
        /// The message's number, from 0.
        message: usize,
        /// The tensor's name, where one is to blame.
        tensor: Option<String>,
        /// The fault.
        problem: String,
    },
    /// A field that must be there is not, or is null.
    #[error("{0} is missing")]
    Missing(Place),
    /// A field is of another type.
    #[error("{place} must be {wanted}, and is {found}")]
    Type {
        /// The field.
        place: Place,
        /// The type that it must have.
        wanted: &'static str,
        /// Its value, as JSON.
        found: String,
    },
    /// A number is below zero.
    #[error("{place} is {found}, and may not be negative")]
    Negative {
        /// The field.
        place: Place,
        /// Its value.
        found: f64,
    },
    /// A number is zero that must be above it.
    #[error("{place} is zero, and must be positive: {reason}")]
    Zero {
        /// The field.
        place: Place,
        /// Why zero is refused.
        reason: &'static str,
    },
    /// A number is NaN or infinite.
    #[error("{place} is {found}, and must be finite")]
    NotFinite {
        /// The field.
        place: Place,
        /// Its value.
        found: f64,
    },
    /// A profile has no layer.
    #[error("field `layers` is empty: a profile has at least one layer")]
    NoLayers,
    /// The layers have more elements than a `u64` counts.
    #[error("the layers have more than 2^64 - 1 elements together")]
    TooManyElements,
    /// Groups that are empty, or that do not cover the layers.
    #[error(
        "groups of {found:?} layers are no partition of {layers} layers: none may be empty, and the sum must agree"
    )]
    Groups {
        /// The lengths given.
        found: Vec<usize>,
        /// The layers that there are.
        layers: usize,
    },
    /// A group takes a route that is not there.
    #[error("route number {found}: there are {routes}")]
    Route {
        /// The number asked for, from 0.
        found: usize,
        /// How many routes there are.
        routes: usize,
    },
    /// A ratio of compression that would make gradients larger.
    #[error("a compression ratio of {found}: it is at least 1, which sends everything")]
    Ratio {
        /// The ratio given.
        found: f64,
    },
    /// A list has another length than the one that it belongs to.
    #[error("{what} has {found} entries, and {wanted} are wanted")]
    Length {
        /// Which list.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length that it must have.
        wanted: usize,
    },
    /// A number of ranks that a model does not hold for.
    #[error("{found} ranks: {model} holds for 1 to {most} ranks")]
    Ranks {
        /// The ranks asked for.
        found: u32,
        /// The most that the model holds for.
        most: u32,
        /// Which model.
        model: &'static str,
    },
    /// Too few sizes to fit a line to.
    #[error("a line needs measurements at two sizes or more, and there are {sizes}")]
    Fit {
        /// How many sizes differ.
        sizes: usize,
    },
    /// No preset has this name.
    #[error("no network is called {found:?}; there are {known}")]
    Preset {
        /// The name asked for.
        found: String,
        /// The names that there are.
        known: String,
    },
    /// Tasks wait for one another in a circle.
    #[error("tasks wait for one another in a circle: {}", .0.join(" -> "))]
    Cycle(Vec<String>),
    /// A task waits for one that is not in the graph.
    #[error("task {task:?} waits for task number {found}, and the graph has {tasks}")]
    Task {
        /// The name of the task that waits.
        task: String,
        /// The number that it waits for.
        found: usize,
        /// How many tasks there are.
        tasks: usize,
    },
}

fn of_event(event: Option<&(usize, String)>) -> String {
    event.map_or_else(|| "the trace has ".to_owned(), |(number, name)| format!("event {number} ({name:?}) has "))
}

/// Refuses a value that is no time, count or rate: NaN, infinite or negative.
pub(crate) fn checked(place: impl FnOnce() -> Place, value: f64) -> Result<f64, PlanError> {
    if !value.is_finite() {
        return Err(PlanError::NotFinite { place: place(), found: value });
    }
    if value < 0.0 {
        return Err(PlanError::Negative { place: place(), found: value });
    }
    Ok(value)
}

/// As [`checked`], and refuses zero for the reason given.
pub(crate) fn positive(place: impl Fn() -> Place, value: f64, reason: &'static str) -> Result<f64, PlanError> {
    if checked(&place, value)? == 0.0 {
        return Err(PlanError::Zero { place: place(), reason });
    }
    Ok(value)
}
