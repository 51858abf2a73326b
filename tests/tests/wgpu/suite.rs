//! The suite on WGPU, on whatever adapter this machine has.

use gradwire::BackendKind;
use gradwire_tests::require;
use gradwire_tests::suite::{self, Depth};

#[test]
fn conformance_and_properties() {
    let device = match require::open(BackendKind::Wgpu) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("not tested: {error}");
            return;
        }
    };
    let depth = Depth::of_tests();
    let verdicts = suite::run(&device, depth, &mut |what| eprintln!("{what}"));
    let failures: Vec<_> = verdicts.iter().flat_map(|v| &v.failures).collect();
    assert!(failures.is_empty(), "{device}: {failures:#?}");
    assert!(verdicts.iter().all(|v| v.compared > 0), "a check compared nothing: {verdicts:#?}");
}
