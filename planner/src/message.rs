//! What a step sends: which tensors share a message, and by which recipe.

use serde::{Deserialize, Serialize};

use crate::error::PlanError;

/// Tensors that are exchanged together: one exchange of `gradwire::Compressor`, whose policy is this recipe.
///
/// Messages stand in the order in which their last gradients are ready, which is that of the steps of their exchange.
///
/// ```
/// use gradwire_planner::Message;
///
/// let plan = r#"{"messages": [
///     {"tensors": [{"name": "head.bias", "elements": 10}, {"name": "head.weight", "elements": 640}], "recipe": "none"},
///     {"tensors": [{"name": "body.weight", "elements": 8192}], "recipe": "qsgd:bits=4,bucket=64"}
/// ]}"#;
/// let messages = Message::from_plan(plan)?;
/// assert_eq!(messages[1].recipe, "qsgd:bits=4,bucket=64");
///
/// let twice = Message::from_plan(&plan.replace("body.weight", "head.bias")).unwrap_err();
/// assert_eq!(twice.to_string(), r#"message 1, tensor "head.bias": it is in message 0 too"#);
/// # Ok::<(), gradwire_planner::PlanError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The tensors, in order of readiness.
    pub tensors: Vec<Sent>,
    /// The text of a recipe, `none` without a codec. It is the name of the [`CodecCost`](crate::CodecCost), with
    /// `+twophase` after it where that is the algorithm.
    pub recipe: String,
}

/// A tensor of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// The name of the profile's layer.
    pub name: String,
    /// Elements of its gradient.
    pub elements: u64,
}

/// The field of a plan that is read. It has others.
#[derive(Deserialize)]
struct Written {
    messages: Vec<Message>,
}

impl Message {
    /// The messages of a [`Plan`](crate::Plan) that was written as JSON.
    ///
    /// # Errors
    ///
    /// No such JSON; no message; a message without tensors; a tensor without elements; a tensor that is in two
    /// messages, or twice in one.
    pub fn from_plan(text: &str) -> Result<Vec<Self>, PlanError> {
        let Written { messages } = serde_json::from_str(text).map_err(|error| PlanError::Json {
            line: error.line(),
            column: error.column(),
            message: error.to_string(),
        })?;
        if messages.is_empty() {
            return Err(wrong(0, None, "there is none, and a step has one at least".to_owned()));
        }
        let mut places = std::collections::HashMap::new();
        for (at, message) in messages.iter().enumerate() {
            if message.tensors.is_empty() {
                return Err(wrong(at, None, "it has no tensors".to_owned()));
            }
            for tensor in &message.tensors {
                if tensor.elements == 0 {
                    return Err(wrong(at, Some(&tensor.name), "it has no elements".to_owned()));
                }
                if let Some(other) = places.insert(tensor.name.as_str(), at) {
                    return Err(wrong(at, Some(&tensor.name), format!("it is in message {other} too")));
                }
            }
        }
        Ok(messages)
    }
}

fn wrong(message: usize, tensor: Option<&str>, problem: String) -> PlanError {
    PlanError::Message { message, tensor: tensor.map(str::to_owned), problem }
}
