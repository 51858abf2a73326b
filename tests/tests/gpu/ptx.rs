//! The committed PTX, launched by the CUDA backend on the PTX machine, at each of the five targets.

use std::sync::Arc;

use gradwire::Device;
use gradwire::backend::cuda::Cuda;
use gradwire::backend::cuda::artifacts::{FAMILIES, TARGETS};
use gradwire_ptx_machine::{Machine, Space, Violation};
use gradwire_tests::cases::{self, Case};
use gradwire_tests::conformance;
use gradwire_tests::low_rank_checks::{self, SMALL};
use gradwire_tests::oracle::Kind;
use gradwire_tests::suite::{self, Depth};

/// The suite on the text for a target. The one for sm_90, where most of the measured devices are, takes the depth of
/// all tests. The others are the same kernels by the same compiler, each in words of its own: of them the default has
/// every path once.
fn conforms(major: u32, minor: u32) {
    let depth = match (Depth::of_tests(), (major, minor)) {
        (Depth::Full | Depth::Sweeps, _) => Depth::Sweeps,
        (depth, (9, 0)) => depth,
        _ => Depth::Quick,
    };
    let machine = Arc::new(Machine::new((major, minor), 0x5eed));
    let cuda = Cuda::with_driver(machine.clone(), None).expect("an artifact that fits");
    assert_eq!(cuda.target(), major * 10 + minor, "the artifact of that very target");
    let verdicts = suite::run(&Device::from_cuda(cuda), depth, &mut |what| eprintln!("{what}"));
    let failures: Vec<_> = verdicts.iter().flat_map(|v| &v.failures).collect();
    assert!(failures.is_empty(), "sm_{major}{minor}: {failures:#?}");
    assert!(verdicts.iter().all(|v| v.compared > 0), "a check compared nothing: {verdicts:#?}");
    assert_eq!(machine.take_faults(), []);
}

#[test]
fn sm_35() {
    conforms(3, 5);
}

/// The targets between have the instructions of sm_35, which run in whole above: here they are chosen, loaded and run
/// once.
#[test]
fn sm_60_and_sm_70_are_sm_35_with_another_head() {
    let [_, between @ .., _, _] = TARGETS;
    assert_eq!(between, [60, 70]);
    for family in &FAMILIES {
        let [lowest, between @ .., _, _] = &family.artifacts;
        assert!(between.iter().all(|artifact| artifact.instructions() == lowest.instructions()), "{}", family.name);
    }
    let case = Case::new(Kind::QsgdL2, 4, Some(512));
    for target in between {
        let machine = Arc::new(Machine::new((target / 10, 0), 0x5eed));
        let cuda = Cuda::with_driver(machine.clone(), None).expect("an artifact that fits");
        assert_eq!(cuda.target(), target);
        let device = Device::from_cuda(cuda);
        conformance::against_cpu(&device, &case, &cases::normal(9000, 3), "normal").expect("the CPU's bytes");
        assert_eq!(machine.take_faults(), []);
    }
}

#[test]
fn sm_80() {
    conforms(8, 0);
}

#[test]
fn sm_90() {
    conforms(9, 0);
}

/// What is wrong with the bytes of a machine that reads a kernel's text otherwise than it is.
fn planted(from: &str, to: &str, case: &Case, x: &[f32]) -> Option<String> {
    let machine = Arc::new(Machine::new((7, 0), 1).planting(from, to));
    let device = Device::from_cuda(Cuda::with_driver(machine.clone(), Some(70)).expect("it still loads"));
    let found = conformance::against_cpu(&device, case, x, "planted").err();
    assert!(machine.is_planted(), "`{from}` is in no kernel that ran");
    found
}

#[test]
fn a_changed_constant_changes_bytes() {
    let x = cases::normal(3000, 3);
    let tiny: Vec<f32> = x.iter().map(|v| v * 1e-30).collect();
    let max = Case::new(Kind::QsgdMax, 4, Some(512));
    let uniform = Case::new(Kind::Uniform, 5, Some(512));
    let fine = Case::new(Kind::QsgdMax, 8, Some(512));
    for (from, to, case, x) in [
        // A multiplier and a key's increment of Philox.
        ("-766435501", "-766435503", &max, &x),
        ("-1640531527", "-1640531525", &uniform, &x),
        // Below 2^-60, values are lifted by 2^64.
        ("0f5F800000", "0f5F000000", &max, &tiny),
        // Half of the wrong comparison: the last code of a level.
        ("setp.leu.f32", "setp.geu.f32", &max, &x),
        // The difference that feedback keeps.
        ("sub.rn.f32", "add.rn.f32", &fine, &x),
    ] {
        assert!(planted(from, to, case, x).is_some(), "{from} read as {to}, and nothing shows");
    }
    assert_eq!(planted("-766435501", "-766435501", &max, &x), None);
}

/// A machine that reads PowerSGD's kernels otherwise than they are: no other kernel computes in f64.
fn with_wrong_factors(from: &str, to: &str) -> Device {
    let machine = Arc::new(Machine::new((7, 0), 1).planting(from, to));
    Device::from_cuda(Cuda::with_driver(machine, Some(70)).expect("it still loads"))
}

#[test]
fn a_device_with_wrong_factors_fails_the_suite() {
    // What columns are multiplied by; what is taken off one another, which the golden vectors' orthogonal columns do
    // not show.
    for (from, to) in [("mul.rn.f64", "add.rn.f64"), ("neg.f64", "mov.b64")] {
        let near = low_rank_checks::near_the_cpu(&with_wrong_factors(from, to), &SMALL);
        assert!(near.is_err(), "{from} read as {to}, and nothing shows");
    }
    let verdicts = suite::watch(&with_wrong_factors("mul.rn.f64", "add.rn.f64"), Depth::Quick, &mut |_| {});
    let failed: Vec<_> = verdicts.iter().filter(|v| !v.failures.is_empty()).map(|v| (v.codec, v.check)).collect();
    // Columns that grow instead of having length one are soon too large for a state.
    let checks = ["golden vectors", "factors and output are near the CPU's", "a state on the device has the same bits"];
    let expected = checks.map(|check| ("PowerSGD", check));
    assert_eq!(failed, expected, "and nothing else: {verdicts:#?}");
}

#[test]
fn a_removed_barrier_is_a_race() {
    for case in [Case::new(Kind::QsgdMax, 4, Some(8192)), Case::new(Kind::Quantile, 4, Some(4096))] {
        let machine = Arc::new(Machine::new((7, 0), 1).planting("bar.sync 0;", ""));
        let device = Device::from_cuda(Cuda::with_driver(machine.clone(), Some(70)).expect("it still loads"));
        let found = conformance::against_cpu(&device, &case, &cases::normal(9000, 3), "planted");
        assert!(found.is_err(), "{}: the block's warps meet in shared memory", case.label());
        let faults = machine.take_faults();
        assert!(
            faults
                .iter()
                .any(|f| matches!(f.what, Violation::Race { space: Space::Shared, .. } | Violation::Unwritten { .. })),
            "{faults:?}"
        );
    }
}
