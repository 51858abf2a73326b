//! `cargo xtask` as a process, and the repository's own texts.

mod imports;
mod report;
#[cfg(feature = "cuda")]
mod sass;
