//! Any bytes, as edits of what the other rank of a step hands over. The body, and what it checks: `fuzz/src`.

#![no_main]

use gradwire_fuzz::messages::messages;
use gradwire_tests::meter::Meter;

#[global_allocator]
static METER: Meter = Meter;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // A refusal is as good an answer as a mean; what is wrong panics.
    let _ = messages(bytes);
});
