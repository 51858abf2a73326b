//! What a part of a report tells the process that started it, a line each.

use std::io::Write;

use gradwire::Device;
use serde::{Deserialize, Serialize};

use super::place::Place;
use super::schema::{ClockName, FamilyRow, Row};

/// What a part has found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// The device is there.
    Device { name: String, details: Vec<String>, compute_capability: Option<(u32, u32)>, software: bool },
    /// It is not, or this artifact cannot be loaded.
    Missing { why: String },
    /// What is done next.
    Next { what: String },
    /// What came of a part of a check of the suite.
    Verdict { codec: String, check: String, compared: u64, failure: Option<String> },
    /// Whose clock times are by.
    Clock { clock: ClockName },
    /// What loading a family of kernels took.
    Family { row: FamilyRow },
    /// A copy's rate.
    Copy { gbps: f64 },
    /// From one launch to the next.
    Launch { seconds: f64 },
    /// A measurement.
    Row { row: Row },
    /// What is not measured, and why.
    Skipped { what: String },
    /// The timed result was not the CPU's.
    Wrong { what: String },
    /// The end, without which a part has died.
    Done,
}

/// Sends what was found on its way.
pub(crate) fn emit(event: &Event) {
    let line = serde_json::to_string(event).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        // Whoever listened is gone, and nobody else will stop this process.
        std::process::exit(1);
    }
}

/// Opens the device, or says why there is none.
pub(crate) fn open(place: Place) -> Option<Device> {
    match place.open() {
        Ok(device) => Some(device),
        Err(error) => {
            emit(&Event::Missing { why: error.to_string() });
            None
        }
    }
}
