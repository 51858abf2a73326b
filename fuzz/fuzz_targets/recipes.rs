//! Any bytes, as the text of a recipe. The body, and what it checks: `fuzz/src`.

#![no_main]

use gradwire_fuzz::recipes::recipes;
use gradwire_tests::meter::Meter;

#[global_allocator]
static METER: Meter = Meter;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // A refusal is as good an answer as a recipe; what is wrong panics.
    let _ = recipes(bytes);
});
