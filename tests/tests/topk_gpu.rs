//! Top-k on the devices that run passes: the committed PTX on the PTX machine.
#![cfg(feature = "cuda")]

use std::sync::Arc;

use gradwire::Device;
use gradwire::backend::cuda::Cuda;
use gradwire_ptx_machine::Machine;
use gradwire_tests::sparse;

fn device() -> Device {
    Device::from_cuda(Cuda::with_driver(Arc::new(Machine::new((7, 0), 11)), None).expect("an artifact that fits"))
}

fn all(outcomes: impl IntoIterator<Item = Result<u64, String>>) {
    let failures: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn every_input_gives_the_oracles_entries() {
    let device = device();
    for fill in sparse::FILLS {
        for n in [0, 1, 17, 1000, 8192, 8193, 40_003] {
            let start = std::time::Instant::now();
            let outcome = sparse::against_oracle(&device, fill, n);
            eprintln!("{} {n}: {:?} {:?}", fill.0, outcome, start.elapsed());
        }
    }
}
