//! The suite on CUDA where there is a device, and the typed error where there is none.

use gradwire::{BackendKind, Device, Error};
use gradwire_tests::suite::{self, Depth};
use gradwire_tests::{require, selections};

#[test]
fn conformance_and_properties() {
    let device = match require::open(BackendKind::Cuda) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("not tested: {error}");
            return;
        }
    };
    let depth = Depth::of_tests();
    let verdicts = suite::run(&device, depth, &mut |_| {});
    let failures: Vec<_> = verdicts.iter().flat_map(|v| &v.failures).collect();
    assert!(failures.is_empty(), "{device}: {failures:#?}");
}

#[test]
fn selections_end_while_another_stream_is_busy() {
    let devices = (require::open(BackendKind::Cuda), require::open(BackendKind::Cuda));
    let (Ok(device), Ok(other)) = devices else {
        eprintln!("not tested: there is no CUDA device");
        return;
    };
    let outcome = selections::under_load(&device, &other, 1000);
    assert_eq!(outcome, Ok(1000));
}

#[test]
fn a_missing_driver_is_a_typed_error_and_open_goes_on() {
    if let Err(error) = Device::of(BackendKind::Cuda) {
        assert!(matches!(error, Error::Unavailable { backend: BackendKind::Cuda, .. }), "{error:?}");
        let device = Device::open().expect("the CPU is always there");
        assert_ne!(device.kind(), BackendKind::Cuda);
        assert!(device.why().iter().any(|e| e.to_string() == error.to_string()), "{:?}", device.why());
    }
}
