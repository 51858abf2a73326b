//! What a training iteration costs on one rank, layer by layer.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Place, PlanError, checked};

/// A tensor whose gradient is exchanged: a layer in the words of the papers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Layer {
    /// What messages call it.
    pub name: String,
    /// Elements of its gradient, at least 1.
    pub elements: u64,
    /// Seconds that the backward pass takes from the gradient before this one to this one.
    pub backward: f64,
}

impl Layer {
    /// A layer with this name, number of elements and backward time in seconds.
    pub fn new(name: &str, elements: u64, backward: f64) -> Self {
        Self { name: name.to_owned(), elements, backward }
    }
}

/// One iteration of one rank: the forward pass, then the layers in the order in which their gradients are ready.
///
/// The last layer of the network is ready first. Times are in seconds. A profile that exists is valid: times are finite
/// and not negative, it has at least one layer, and no layer is empty.
///
/// ```
/// use gradwire_planner::Profile;
///
/// let text = r#"{
///     "forward": 0.030,
///     "layers": [
///         { "name": "classifier", "elements": 2049000, "backward": 0.002 },
///         { "name": "convolution", "elements": 9408, "backward": 0.050 }
///     ]
/// }"#;
/// let profile = Profile::from_json(text)?;
/// assert_eq!(profile.ready(), [0.032, 0.082]);
///
/// let error = Profile::from_json(&text.replace("0.050", "-1")).unwrap_err();
/// assert_eq!(error.to_string(), r#"layer 1 ("convolution"), field `backward` is -1, and may not be negative"#);
/// # Ok::<(), gradwire_planner::PlanError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profile {
    forward: f64,
    layers: Vec<Layer>,
}

/// The fields of the JSON, before their values are checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawProfile {
    forward: Option<Value>,
    layers: Option<Vec<RawLayer>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLayer {
    name: Option<String>,
    elements: Option<Value>,
    backward: Option<Value>,
}

impl Profile {
    /// A profile from its parts: the forward time in seconds, and layers in order of readiness.
    ///
    /// # Errors
    ///
    /// A time that is negative, NaN or infinite; no layer; a layer without elements; more elements than a `u64` counts.
    /// Each names its layer and field if it has one.
    pub fn new(forward: f64, layers: Vec<Layer>) -> Result<Self, PlanError> {
        checked(|| Place::whole("forward"), forward)?;
        if layers.is_empty() {
            return Err(PlanError::NoLayers);
        }
        for (index, layer) in layers.iter().enumerate() {
            checked(|| Place::layer(index, &layer.name, "backward"), layer.backward)?;
            if layer.elements == 0 {
                let place = Place::layer(index, &layer.name, "elements");
                return Err(PlanError::Zero { place, reason: "a tensor without elements has no gradient to send" });
            }
        }
        let sum = layers.iter().try_fold(0u64, |sum, layer| sum.checked_add(layer.elements));
        sum.ok_or(PlanError::TooManyElements)?;
        Ok(Self { forward, layers })
    }

    /// Reads a profile from JSON: an object with `forward` and `layers`, each layer with `elements`, `backward` and, if
    /// it has one, `name`.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and for a field that is missing, unknown or of another type, with its place.
    pub fn from_json(text: &str) -> Result<Self, PlanError> {
        let raw: RawProfile = serde_json::from_str(text).map_err(|error| PlanError::Json {
            line: error.line(),
            column: error.column(),
            message: error.to_string(),
        })?;
        let forward = number(Place::whole("forward"), raw.forward)?;
        let layers = raw.layers.ok_or_else(|| PlanError::Missing(Place::whole("layers")))?;
        let layers = layers.into_iter().enumerate().map(|(index, layer)| {
            let name = layer.name.unwrap_or_default();
            let elements = whole(Place::layer(index, &name, "elements"), layer.elements)?;
            let backward = number(Place::layer(index, &name, "backward"), layer.backward)?;
            Ok(Layer { name, elements, backward })
        });
        Self::new(forward, layers.collect::<Result<_, _>>()?)
    }

    /// Seconds of the forward pass.
    pub fn forward(&self) -> f64 {
        self.forward
    }

    /// The layers in order of readiness, at least one.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Seconds of the whole backward pass.
    pub fn backward(&self) -> f64 {
        self.layers.iter().map(|layer| layer.backward).sum()
    }

    /// Elements of all layers.
    pub fn elements(&self) -> u64 {
        self.layers.iter().map(|layer| layer.elements).sum()
    }

    /// When each gradient is ready, in seconds from the beginning of the forward pass, where nothing else is computed.
    pub fn ready(&self) -> Vec<f64> {
        let mut now = self.forward;
        let add = |layer: &Layer| {
            now += layer.backward;
            now
        };
        self.layers.iter().map(add).collect()
    }
}

impl<'de> Deserialize<'de> for Profile {
    /// As [`Profile::from_json`]; the place is in the error's text.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Self::from_json(&value.to_string()).map_err(serde::de::Error::custom)
    }
}

fn number(place: Place, value: Option<Value>) -> Result<f64, PlanError> {
    let value = value.ok_or_else(|| PlanError::Missing(place.clone()))?;
    value.as_f64().ok_or_else(|| PlanError::Type { place, wanted: "a number of seconds", found: value.to_string() })
}

fn whole(place: Place, value: Option<Value>) -> Result<u64, PlanError> {
    let value = value.ok_or_else(|| PlanError::Missing(place.clone()))?;
    match (value.as_u64(), value.as_f64()) {
        (Some(whole), _) => Ok(whole),
        (None, Some(found)) if found < 0.0 => Err(PlanError::Negative { place, found }),
        _ => Err(PlanError::Type { place, wanted: "a whole number of elements", found: value.to_string() }),
    }
}
