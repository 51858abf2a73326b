//! `cargo xtask` as a process, and the repository's own texts.

mod float_environment;
mod imports;
mod modules;
mod report;
#[cfg(feature = "cuda")]
mod sass;
mod words;
