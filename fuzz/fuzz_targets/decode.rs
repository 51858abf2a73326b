//! Payloads of any codec forged from the bytes, with the right checksum. The body, and what it checks:
//! `tests/src/hostile`.

#![no_main]

use std::sync::LazyLock;

use gradwire::Device;
use gradwire_tests::hostile;
use gradwire_tests::meter::Meter;

#[global_allocator]
static METER: Meter = Meter;

static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(hostile::devices);

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // A refusal is as good an answer as a decoded gradient; what is wrong panics.
    let _ = hostile::decode(&DEVICES, bytes);
});
