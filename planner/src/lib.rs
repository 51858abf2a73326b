#![doc = include_str!("../README.md")]

mod adaptive;
mod algorithm;
mod bench;
mod codec;
mod error;
mod gantt;
mod graph;
mod groups;
mod hybrid;
mod line;
mod merge;
mod message;
mod network;
mod pipeline;
mod plan;
mod profile;
mod sparse;
mod ssgd;
mod trace;

pub use adaptive::{Adaptive, Share, delta};
pub use algorithm::{Algorithm, MAX_RANKS};
pub use codec::{CodecCost, Curve};
pub use error::{Place, PlanError};
pub use gantt::gantt;
pub use graph::{Graph, Kind, Resource, Schedule, Task};
pub use groups::Groups;
pub use hybrid::{Hybrid, Scaling, Split, hybrid};
pub use line::{Fit, Line};
pub use merge::Merging;
pub use message::{Message, Sent};
pub use network::{Network, PRESETS, Preset};
pub use pipeline::{Pipeline, Route, Routed};
pub use plan::{Plan, PlannedGroup, Question, Row, Verdict};
pub use profile::{Layer, Profile};
pub use sparse::{Rule, Sparse};
pub use ssgd::{Iteration, Overlap, most_speed_up};
