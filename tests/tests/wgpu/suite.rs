//! The suite on WGPU, on whatever adapter this machine has: a test for each half of the codecs, since a driver in
//! software does not always use all processors.

use gradwire::BackendKind;
use gradwire_tests::require;
use gradwire_tests::suite::{self, Depth};

#[test]
fn conformance_and_properties_of_one_half() {
    check(0);
}

#[test]
fn conformance_and_properties_of_the_other_half() {
    check(1);
}

fn check(half: usize) {
    let device = match require::open(BackendKind::Wgpu) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("not tested: {error}");
            return;
        }
    };
    let depth = Depth::of_tests();
    // Of several shares of the codecs, one has its turn.
    let shares = std::env::var("GRADWIRE_SHARES").map_or(1, |shares| shares.parse().expect("a number"));
    let shares = if depth.sweeps() { 1 } else { shares };
    let share = (0..shares).find(|share| depth.takes(*share, shares)).expect("one of them");
    let share = (share + shares * half, 2 * shares);
    let verdicts = suite::run_share(&device, depth, share, &mut |what| eprintln!("{what}"));
    let failures: Vec<_> = verdicts.iter().flat_map(|v| &v.failures).collect();
    assert!(failures.is_empty(), "{device}: {failures:#?}");
    assert!(verdicts.iter().all(|v| v.compared > 0), "a check compared nothing: {verdicts:#?}");
}
