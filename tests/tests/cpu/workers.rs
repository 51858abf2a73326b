//! A seed for each worker: draws of its own where rounding has to average out, and refused where all workers need one
//! seed.

use std::collections::BTreeSet;

use gradwire::{Device, Dtype, Error, Matrix, PowerSgd, Seed};
use gradwire_tests::averages::independent;
use gradwire_tests::cases::{self, Case};
use gradwire_tests::oracle::Kind;

const WORKERS: u32 = 64;

fn settings() -> [Case; 3] {
    [Case::new(Kind::QsgdMax, 4, Some(512)), Case::new(Kind::Uniform, 4, Some(512)), Case::new(Kind::QsgdL2, 4, None)]
}

#[test]
fn rounding_of_64_workers_averages_out() {
    let x = cases::normal(1 << 16, 61);
    for case in settings() {
        let own = |rank| cases::seed().worker(rank);
        independent(&Device::cpu(), &case, &x, WORKERS, own).unwrap_or_else(|e| panic!("{e}"));
    }
}

/// The check is one that can fail: with one seed for all workers the error is as large as a single worker's.
#[test]
fn with_one_seed_it_does_not() {
    let x = cases::normal(1 << 16, 61);
    for case in settings() {
        let error = independent(&Device::cpu(), &case, &x, WORKERS, |_| cases::seed()).expect_err("one seed");
        assert!(error.contains("independent rounding"), "{error}");
    }
}

#[test]
fn worker_0_has_the_bytes_of_the_plain_seed_and_every_rank_its_own() {
    let x = cases::normal(1000, 62);
    for case in settings() {
        let encode = |seed| Device::cpu().encode(&case.codec(), &x, seed).expect("valid").into_bytes();
        assert_eq!(encode(cases::seed().worker(0)), encode(cases::seed()));
        let ranks = (0..200).chain([1 << 16, u32::MAX]);
        let distinct: BTreeSet<Vec<u8>> = ranks.map(|rank| encode(cases::seed().worker(rank))).collect();
        assert_eq!(distinct.len(), 202, "{}", case.label());
    }
}

#[test]
fn powersgd_refuses_a_worker_s_seed_and_names_the_remedy() {
    let (codec, tensors) = (PowerSgd::rank(2), [Matrix::new(40, 30)]);
    let refused = [
        codec.state(&tensors, Seed::new(1).worker(3)).map(|_| ()),
        codec.resident(&tensors, Dtype::F32, Seed::new(1).worker(3)).map(|_| ()),
    ];
    for error in refused.map(|result| result.expect_err("it is worker 3's")) {
        assert!(matches!(error, Error::WorkerSeed { rank: 3 }), "{error:?}");
        assert!(error.to_string().contains("leave out Seed::worker"), "{error}");
    }
    assert_eq!(codec.state(&tensors, Seed::new(1).worker(0)).ok(), codec.state(&tensors, Seed::new(1)).ok());
}
