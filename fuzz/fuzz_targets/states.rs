//! Any bytes, as edits of saved states of a compressor. The body, and what it checks: `fuzz/src`.

#![no_main]

use gradwire_fuzz::states::states;
use gradwire_tests::meter::Meter;

#[global_allocator]
static METER: Meter = Meter;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // A refusal is as good an answer as a state; what is wrong panics.
    let _ = states(bytes);
});
