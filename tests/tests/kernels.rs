//! The GPU kernels' Rust source, and the CUDA backend that launches it, against the CPU, on threads of this machine.
#![cfg(feature = "cuda")]

use std::sync::Arc;

use gradwire::Device;
use gradwire::backend::cuda::Cuda;
use gradwire_tests::cases::{self, Case, FILLS};
use gradwire_tests::conformance;
use gradwire_tests::emulated::Emulated;
use gradwire_tests::oracle::Kind;

fn device() -> Device {
    Device::from_cuda(Cuda::with_driver(Arc::new(Emulated::default()), None).expect("it loads any module"))
}

/// Emulated threads are slow, and the PTX machine runs every setting: here one in three meets one of the inputs.
#[test]
fn settings_give_the_cpus_bytes() {
    let device = device();
    let mut failures = Vec::new();
    for (i, case) in cases::settings().iter().enumerate().filter(|(i, _)| i % 3 == 0) {
        let (name, fill) = FILLS[i / 3 % FILLS.len()];
        if let Err(failure) = conformance::against_cpu(&device, case, &fill(1300), name) {
            failures.push(failure);
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn buckets_across_warps_and_blocks_give_the_cpus_bytes() {
    let device = device();
    let mut failures = Vec::new();
    for case in [
        Case::new(Kind::QsgdL2, 3, Some(32)),
        Case::new(Kind::QsgdL2, 4, Some(1024)),
        Case::new(Kind::QsgdL2, 5, Some(2048)),
        Case::new(Kind::QsgdMax, 16, Some(8192)),
        Case::new(Kind::Uniform, 7, Some(4096)),
        Case::new(Kind::Uniform, 6, Some(128)),
        Case::new(Kind::QsgdL2, 2, None),
        Case::new(Kind::Uniform, 8, None),
    ] {
        for n in [33, 8193] {
            if let Err(failure) = conformance::against_cpu(&device, &case, &cases::normal(n, 17), "normal") {
                failures.push(failure);
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn what_is_not_finite_is_refused() {
    assert_eq!(conformance::refuses_not_finite(&device()), Ok(12));
}

#[test]
fn the_golden_vectors() {
    for codec in ["qsgd", "uniform"] {
        assert!(gradwire_tests::vectors::check(&device(), codec).expect("the committed bytes") > 200);
    }
}
