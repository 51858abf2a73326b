//! The suite on the CPU, at every vector width of this machine.

use gradwire::Device;
use gradwire::backend::cpu::{Cpu, Simd};
use gradwire_tests::suite::{self, Depth};

fn check(simd: Simd) {
    let Ok(cpu) = Cpu::with_simd(simd) else {
        eprintln!("{}: this machine does not have it", simd.name());
        return;
    };
    let verdicts = suite::run(&Device::from_cpu(cpu), Depth::of_tests().min(Depth::Sweeps), &mut |_| {});
    let failures: Vec<_> = verdicts.iter().flat_map(|v| &v.failures).collect();
    assert!(failures.is_empty(), "{}: {failures:#?}", simd.name());
    assert!(verdicts.iter().all(|v| v.compared > 0), "a check compared nothing: {verdicts:#?}");
}

#[test]
fn baseline() {
    check(Simd::Baseline);
}

#[test]
fn avx2() {
    check(Simd::Avx2);
}

#[test]
fn avx512() {
    check(Simd::Avx512);
}
