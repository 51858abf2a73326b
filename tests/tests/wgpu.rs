//! The suite on WGPU, on whatever adapter this machine has.
#![cfg(feature = "wgpu")]

use gradwire::{BackendKind, Device};
use gradwire_tests::suite::{self, Depth};

#[test]
fn conformance_and_properties() {
    let device = match Device::of(BackendKind::Wgpu) {
        Ok(device) => device,
        Err(error) => {
            let required = std::env::var("GRADWIRE_REQUIRE").is_ok_and(|r| r.split(',').any(|k| k.trim() == "wgpu"));
            assert!(!required, "GRADWIRE_REQUIRE asks for wgpu: {error}");
            eprintln!("not tested: {error}");
            return;
        }
    };
    let verdicts = suite::run(&device, Depth::Full, &mut |what| eprintln!("{what}"));
    let failures: Vec<_> = verdicts.iter().flat_map(|v| &v.failures).collect();
    assert!(failures.is_empty(), "{device}: {failures:#?}");
    assert!(verdicts.iter().all(|v| v.compared > 0), "a check compared nothing: {verdicts:#?}");
}
