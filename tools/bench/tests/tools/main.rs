//! `gradwire-bench` as a process, and the repository's own texts.

mod float_environment;
mod imports;
mod modules;
mod report;
mod words;
