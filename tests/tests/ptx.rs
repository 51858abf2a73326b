//! The committed PTX, launched by the CUDA backend on the PTX machine, at each of the five targets.
#![cfg(feature = "cuda")]

use std::sync::Arc;

use gradwire::Device;
use gradwire::backend::cuda::Cuda;
use gradwire_ptx_machine::Machine;
use gradwire_tests::suite::{self, Depth};

fn conforms(major: u32, minor: u32) {
    let machine = Arc::new(Machine::new((major, minor), 0x5eed));
    let cuda = Cuda::with_driver(machine.clone(), None).expect("an artifact that fits");
    assert_eq!(cuda.target(), major * 10 + minor, "the artifact of that very target");
    let verdicts = suite::run(&Device::from_cuda(cuda), Depth::Quick, &mut |what| eprintln!("{what}"));
    let failures: Vec<_> = verdicts.iter().flat_map(|v| &v.failures).collect();
    assert!(failures.is_empty(), "sm_{major}{minor}: {failures:#?}");
    assert!(verdicts.iter().all(|v| v.compared > 0), "a check compared nothing: {verdicts:#?}");
    assert_eq!(machine.take_faults(), []);
}

#[test]
fn sm_35() {
    conforms(3, 5);
}

#[test]
fn sm_60() {
    conforms(6, 0);
}

#[test]
fn sm_70() {
    conforms(7, 0);
}

#[test]
fn sm_80() {
    conforms(8, 0);
}

#[test]
fn sm_90() {
    conforms(9, 0);
}
