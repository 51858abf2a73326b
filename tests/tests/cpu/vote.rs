//! Majority votes of signs: the same on every backend as counted one by one, and what the papers promise of them.

use gradwire::backend::cpu::{Cpu, Simd};
use gradwire::{AsPayload, Device, Error, OneBit, Payload, Seed, Sign};
use gradwire_tests::cases::{Random, normal};
use gradwire_tests::require;

/// Lengths around a row, a unit, a warp's part, a block's and several of them.
const LENGTHS: [usize; 9] = [0, 1, 33, 256, 257, 1025, 8191, 8193, 70_001];
/// Voters around a plane more, even and odd.
const VOTERS: [usize; 9] = [1, 2, 3, 4, 7, 8, 15, 16, 33];

fn seed() -> Seed {
    Seed::new(3)
}

/// Gradients of voters who agree more or less, zeros of both signs among them.
fn gradients(n: usize, voters: usize) -> Vec<Vec<f32>> {
    let common = normal(n, 1);
    let one = |voter: usize| {
        let mut random = Random(voter as u64 + 10);
        let noise = normal(n, voter as u64 + 2);
        let x = common.iter().zip(noise).map(|(a, b)| match random.bits() % 50 {
            0 => 0.0,
            1 => -0.0,
            _ => a + 2.0 * b,
        });
        x.collect()
    };
    (0..voters).map(one).collect()
}

fn payloads(gradients: &[Vec<f32>], codec: &Sign) -> Vec<Payload> {
    let device = Device::cpu();
    gradients.iter().map(|x| device.encode(codec, x, seed()).expect("it encodes")).collect()
}

/// The votes, counted one by one.
fn counted(gradients: &[Vec<f32>], n: usize) -> Vec<f32> {
    let count = |i: usize| gradients.iter().map(|x| if x[i] >= 0.0 { 1 } else { -1 }).sum::<i32>();
    (0..n).map(|i| count(i).signum() as f32).collect()
}

fn check(device: &Device, lengths: &[usize], voters: &[usize]) {
    for &n in lengths {
        for &voters in voters {
            let gradients = gradients(n, voters);
            let mut votes = vec![f32::NAN; n];
            device.vote(&payloads(&gradients, &Sign::unit()), &mut votes).expect("they vote");
            let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert!(bits(&votes) == bits(&counted(&gradients, n)), "{device}: {voters} voters, n = {n}");
        }
    }
}

#[test]
fn every_vector_width_counts_right() {
    for cpu in Simd::ALL.into_iter().filter_map(|simd| Cpu::with_simd(simd).ok()) {
        check(&Device::from_cpu(cpu), &LENGTHS, &VOTERS);
    }
    check(&Device::cpu(), &[300], &[65_535]);
}

#[test]
fn every_backend_counts_right() {
    for device in require::devices() {
        if gradwire_tests::is_ptx_machine(&device) {
            check(&device, &[1, 1025, 8193], &[1, 2, 3, 16]);
        } else {
            check(&device, &LENGTHS, &VOTERS);
            check(&device, &[300], &[700]);
        }
    }
}

/// It is the sign of the sum of what the payloads decode to, whoever comes first; and a voter who turns round moves
/// each sum by two.
#[test]
fn a_vote_is_the_sign_of_the_sum_in_any_order() {
    let (device, n) = (Device::cpu(), 5000);
    for voters in [5, 6] {
        let mut gradients = gradients(n, voters);
        let mut all = payloads(&gradients, &Sign::unit());
        let (mut votes, mut sum) = (vec![0.0; n], vec![0.0; n]);
        device.vote(&all, &mut votes).expect("they vote");
        device.decode_sum(&all, 1.0, &mut sum).expect("they decode");
        assert!(votes.iter().zip(&sum).all(|(vote, sum)| *vote == if *sum == 0.0 { 0.0 } else { sum.signum() }));
        all.rotate_left(2);
        let mut again = vec![0.0; n];
        device.vote(&all, &mut again).expect("they vote");
        assert_eq!(votes, again);
        gradients[0].iter_mut().for_each(|v| *v = if *v >= 0.0 { -1.0 } else { 1.0 });
        device.vote(&payloads(&gradients, &Sign::unit()), &mut again).expect("they vote");
        for i in 0..n {
            let moved = if gradients[0][i] > 0.0 { sum[i] + 2.0 } else { sum[i] - 2.0 };
            assert_eq!(again[i], if moved == 0.0 { 0.0 } else { f32::signum(moved) }, "element {i}");
        }
    }
}

#[test]
fn a_bucket_that_is_not_finite_has_no_majority() {
    let mut gradients = gradients(200, 3);
    gradients[1][70] = f32::NAN;
    let mut votes = vec![0.0; 200];
    Device::cpu()
        .vote(&payloads(&gradients, &Sign::new().without_feedback().bucket(64)), &mut votes)
        .expect("they vote");
    let nan: Vec<usize> = (0..200).filter(|i| votes[*i].is_nan()).collect();
    assert_eq!(nan, (64..128).collect::<Vec<_>>());
}

#[test]
fn what_cannot_vote_is_told_why_and_changes_nothing() {
    let device = Device::cpu();
    let x = normal(100, 1);
    let sign = device.encode(&Sign::unit(), &x, seed()).expect("it encodes");
    let other = device.encode(&OneBit::new().without_feedback(), &x, seed()).expect("it encodes");
    let mut output = vec![7.0; 100];
    let refused = device.vote(&[sign.clone(), other.clone()], &mut output);
    assert!(matches!(refused, Err(Error::Mixed { index: 1, .. })), "{refused:?}");
    assert!(matches!(device.vote(&[other], &mut output), Err(Error::Setting { allowed: "that of signs, 6", .. })));
    let many = vec![sign.as_payload(); 65_536];
    assert!(matches!(device.vote(&many, &mut output), Err(Error::Setting { allowed: "65535 at most", .. })));
    assert!(matches!(device.vote(&[sign], &mut output[..99]), Err(Error::Length { .. })));
    assert_eq!(output, [7.0; 100]);
    device.vote(&[] as &[Payload], &mut output).expect("no votes");
    assert_eq!(output, [0.0; 100]);
}

/// A device whose bindings are small takes a vote in several passes.
#[cfg(feature = "wgpu")]
#[test]
fn passes_of_small_limits_count_right() {
    let Ok(wgpu) = gradwire::backend::wgpu::Wgpu::open() else {
        eprintln!("not tested: there is no adapter");
        return;
    };
    let limits = gradwire::plan::Limits { binding_bytes: 4 << 19, groups: 65_535, ..gradwire::plan::Limits::NONE };
    check(&Device::from(wgpu.with_limits(limits)), &[(1 << 19) + 1025], &[3, 32]);
}
