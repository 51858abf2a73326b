//! The planner by its public interface: by hand, beside every plan that there is, and beside the papers' own rules.

mod choice;
mod choices;
mod common;
mod graph;
mod inputs;
mod merge;
mod pipeline;
mod plan;
mod published;
mod trace;
