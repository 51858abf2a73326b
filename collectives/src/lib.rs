#![doc = include_str!("../README.md")]

mod delays;
mod post;
mod threads;

pub use gradwire::{Collective, CollectiveError};
pub use threads::Threads;
