//! What PowerSGD keeps: saved and read again, handed on when workers leave or join, and what is refused.

use gradwire::backend::cpu::{Cpu, Simd};
use gradwire::{Device, Error, LowRankState, Matrix, NonFinite, Outcome, PowerSgd, Seed, StateError};
use gradwire_tests::cases::{self, Random};
use gradwire_tests::low_rank::{MODEL, bits, compress_all, step, together};

/// Half the distance of binary32 numbers about 1.
const U: f64 = 1.0 / (1u64 << 24) as f64;

#[test]
fn settings_out_of_range_are_typed_errors() {
    let tensors = [Matrix::new(40, 30), Matrix::new(2, 1000)];
    let make = |codec: PowerSgd| codec.state(&tensors, Seed::new(1));
    assert!(matches!(make(PowerSgd::rank(0)), Err(Error::Rank { rank: 0, most: 32, tensor: None })));
    assert!(matches!(make(PowerSgd::rank(33)), Err(Error::Rank { rank: 33, most: 32, tensor: None })));
    let error = make(compress_all(3)).expect_err("a matrix of two rows");
    assert!(matches!(error, Error::Rank { rank: 3, most: 2, tensor: Some(1) }), "{error:?}");
    make(PowerSgd::rank(3)).expect("by the published rule it is not compressed");
    assert!(matches!(make(PowerSgd::rank(1).iterations(0)), Err(Error::Setting { .. })));
    for rate in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(make(PowerSgd::rank(1).min_compression(rate)), Err(Error::Setting { .. })));
    }
    let huge = [Matrix::new(u64::MAX, u64::MAX), Matrix::vector(u64::MAX)];
    assert!(matches!(PowerSgd::rank(1).state(&huge, Seed::new(1)), Err(Error::TooLong { .. })));
    let message = make(compress_all(3)).expect_err("as above").to_string();
    assert_eq!(message, "a rank of 1 to 2 is possible at tensor 1; got 3");
}

#[test]
fn a_saved_state_goes_on_with_the_same_bits() {
    let device = Device::cpu();
    let elements = MODEL.iter().map(Matrix::elements).sum::<u64>() as usize;
    for codec in [PowerSgd::rank(2), PowerSgd::rank(2).one_sided()] {
        let mut state = codec.state(&MODEL, Seed::new(1 << 40).step(3).tensor(2)).expect("valid");
        for t in 0..3 {
            step(&device, &mut state, &cases::normal(elements, t));
        }
        let bytes = state.to_bytes().expect("idle");
        let mut restored = codec.restore(&MODEL, &bytes).expect("as written");
        assert_eq!(restored.to_bytes().expect("idle"), bytes);
        assert_eq!(restored.steps(), 3);
        let x = cases::normal(elements, 9);
        assert_eq!(bits(&step(&device, &mut restored, &x)), bits(&step(&device, &mut state, &x)));
    }
}

/// Right factors on both sides of what the CPU takes for large, ranks beside its multiples, tiles and groups with rests.
const WIDE: [Matrix; 4] = [Matrix::new(70, 1300), Matrix::vector(33), Matrix::new(45, 40), Matrix::new(33, 2100)];

fn cpus() -> impl Iterator<Item = Device> {
    let available = Simd::ALL.into_iter().filter(|simd| simd.available());
    available.map(|simd| Device::from_cpu(Cpu::with_simd(simd).expect("available")))
}

#[test]
fn a_whole_step_is_its_calls_one_by_one() {
    let elements = WIDE.iter().map(Matrix::elements).sum::<u64>() as usize;
    for device in cpus() {
        for rank in [1, 4, 7, 8, 9, 15, 32] {
            for codec in [PowerSgd::rank(rank), PowerSgd::rank(rank).without_feedback()] {
                let mut whole = codec.state(&WIDE, Seed::new(5)).expect("valid");
                let mut apart = whole.clone();
                let mut outputs = [vec![0.0; elements], vec![0.0; elements]];
                for t in 0..4 {
                    let x = cases::normal(elements, t);
                    // One that fails in its second exchange, or its first, leaves all as it was.
                    let mut left = t % 2;
                    let fails = |_: &mut [f32]| {
                        let fault = Error::Order { asked: "an exchange", expected: "none" };
                        let done = if left == 0 { Err(fault) } else { Ok(()) };
                        left -= u64::from(done.is_ok());
                        done
                    };
                    let before = whole.clone();
                    device.low_rank_step(&mut whole, &x, &mut outputs[0], fails).expect_err("it fails");
                    assert!(whole == before, "rank {rank}, step {t}");
                    assert_eq!(bits(&outputs[0]), bits(&outputs[1]), "rank {rank}, step {t}");

                    let same = |_: &mut [f32]| Ok::<_, Error>(());
                    device.low_rank_step(&mut whole, &x, &mut outputs[0], same).expect("it ends");
                    let mut factor = vec![0.0; apart.factor_len()];
                    device.begin_low_rank(&mut apart, &x, &mut factor).expect("it begins");
                    for _ in 1..apart.rounds() {
                        let mut next = vec![0.0; apart.factor_len()];
                        device.advance_low_rank(&mut apart, &factor, &mut next).expect("it goes on");
                        factor = next;
                    }
                    device.finish_low_rank(&mut apart, &factor, &mut outputs[1]).expect("it ends");
                    assert_eq!(bits(&outputs[0]), bits(&outputs[1]), "rank {rank}, step {t}");
                    assert!(
                        whole.to_bytes().expect("idle") == apart.to_bytes().expect("idle"),
                        "rank {rank}, step {t}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_guarded_step_whose_residual_overflows_the_sum_changes_nothing() {
    let tensors = [Matrix::new(40, 2100)];
    for device in cpus() {
        let codec = PowerSgd::rank(8).non_finite(NonFinite::Error);
        let mut state = codec.state(&tensors, Seed::new(2)).expect("valid");
        let same = |_: &mut [f32]| Ok::<_, Error>(());
        let mut output = vec![0.0; 40 * 2100];
        // Thirty large entries, each alone in its row and column: of these a product of rank 8 has a part.
        let mut x = vec![0.0; 40 * 2100];
        for i in 0..30 {
            x[(i + 7) * 2100 + i * 67] = 1e34;
        }
        device.low_rank_step(&mut state, &x, &mut output, same).expect("all is finite");
        assert!(state.outcome(0) == Some(Outcome::Sent), "{:?}", state.outcome(0));
        let residual = state.residual().expect("idle");
        let (index, waits) = residual.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).expect("there are some");
        assert!(*waits > 1e32, "{waits} at {index}");
        let mut x = vec![0.0; 40 * 2100];
        x[index] = f32::MAX;
        let (before, sent) = (state.to_bytes().expect("idle"), output.clone());
        let refused = device.low_rank_step(&mut state, &x, &mut output, same).expect_err("their sum is not finite");
        assert!(matches!(refused, Error::NotFinite { index: found } if found == index as u64), "{refused}");
        assert!(state.to_bytes().expect("idle") == before && bits(&output) == bits(&sent));
        // And a step after it has the residual of the one before.
        x[index] = 0.0;
        device.low_rank_step(&mut state, &x, &mut output, same).expect("all is finite");
        assert!(output.iter().any(|v| *v != 0.0));
    }
}

#[test]
fn hostile_states_are_refused_or_mean_something() {
    let device = Device::cpu();
    let tensors = [Matrix::new(8, 12), Matrix::vector(5)];
    let codec = PowerSgd::rank(2);
    let mut state = codec.state(&tensors, Seed::new(1)).expect("valid");
    step(&device, &mut state, &cases::normal(101, 1));
    let bytes = state.to_bytes().expect("idle");
    for len in 0..bytes.len() {
        assert!(matches!(codec.restore(&tensors, &bytes[..len]), Err(Error::State(_))), "{len} bytes");
    }
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(matches!(codec.restore(&tensors, &damaged), Err(Error::State(_))), "byte {at}");
    }
    let mut random = Random(5);
    let (mut refused, mut accepted) = (0, 0);
    for _ in 0..50_000 {
        let mut damaged = bytes.clone();
        for _ in 0..1 + random.bits() % 3 {
            let at = (random.bits() as usize) % damaged.len();
            damaged[at] = random.bits() as u8;
        }
        match codec.restore(&tensors, &sealed(damaged)) {
            Err(Error::State(_) | Error::Shape { .. }) => refused += 1,
            Err(other) => panic!("{other:?}"),
            Ok(mut state) => {
                accepted += 1;
                assert_eq!(state.to_bytes().expect("idle").len(), bytes.len());
                let residual = state.residual().expect("idle");
                assert!(residual.iter().all(|v| v.is_finite()));
                let mut both = state.clone();
                match both.absorb(&state) {
                    Ok(()) => assert!((0..101).all(|i| both.residual().expect("idle")[i] == 2.0 * residual[i])),
                    Err(Error::Overflow { index, .. }) => assert!(!(2.0 * residual[index as usize]).is_finite()),
                    Err(other) => panic!("{other:?}"),
                }
                if accepted % 100 == 0 {
                    step(&device, &mut state, &cases::normal(101, 2));
                    assert!(state.residual().expect("idle").iter().all(|v| v.is_finite()));
                }
            }
        }
    }
    assert!(refused > 1000 && accepted > 1000, "{refused} refused, {accepted} accepted");
    let shape = |tensors: &[Matrix]| codec.restore(tensors, &bytes).expect_err("another model");
    assert!(matches!(shape(&tensors[..1]), Error::Shape { what: "number of tensors", found: 2, expected: 1, .. }));
    let other = shape(&[Matrix::new(12, 8), Matrix::vector(5)]);
    assert!(matches!(other, Error::Shape { what: "number of rows", tensor: Some(0), found: 8, expected: 12 }));
    let other = PowerSgd::rank(1).restore(&tensors, &bytes).expect_err("another rank");
    assert!(matches!(other, Error::Shape { what: "rank", tensor: None, found: 2, expected: 1 }), "{other:?}");
}

fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |mut crc, byte| {
        crc ^= u32::from(*byte);
        (0..8).for_each(|_| crc = crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg()));
        crc
    })
}

#[test]
fn a_change_of_workers_keeps_the_sum_of_residuals() {
    let device = Device::cpu();
    let tensors = [Matrix::new(40, 30), Matrix::vector(10)];
    let codec = PowerSgd::rank(2);
    let mut states = vec![codec.state(&tensors, Seed::new(3)).expect("valid"); 3];
    for t in 0..3 {
        let gradients: Vec<Vec<f32>> = (0..3).map(|w| cases::normal(1210, 10 * t + w)).collect();
        together(&device, &mut states, &gradients);
    }
    let total = |states: &[LowRankState]| {
        let residuals: Vec<Vec<f32>> = states.iter().map(|s| s.residual().expect("idle")).collect();
        (0..1210).map(|i| residuals.iter().map(|r| f64::from(r[i])).sum::<f64>()).collect::<Vec<f64>>()
    };
    let before = total(&states);
    let leaving = states.pop().expect("three");
    states[0].absorb(&leaving).expect("the same model");
    let joining = states[1].joining().expect("idle");
    states.extend([joining.clone(), joining]);
    let after = total(&states);
    assert!(before.iter().zip(&after).all(|(b, a)| (a - b).abs() <= 4.0 * U * 10.0 * 0.1));
    assert!(before.iter().any(|v| *v != 0.0));
    // They go on together.
    let gradients: Vec<Vec<f32>> = (0..4).map(|w| cases::normal(1210, 90 + w)).collect();
    together(&device, &mut states, &gradients);
    let other = PowerSgd::rank(2).state(&tensors[..1], Seed::new(3)).expect("valid");
    let kept = states[0].clone();
    assert!(matches!(states[0].absorb(&other), Err(Error::Shape { .. })));
    assert_eq!(states[0], kept);
}

/// With the checksum that they should have, so that what is behind it is looked at.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let body = bytes.len() - 4;
    let sum = crc(&bytes[..body]);
    bytes[body..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// A state whose residual is this gradient.
fn holding(codec: PowerSgd, tensors: &[Matrix], gradient: &[f32]) -> LowRankState {
    let mut state = codec.state(tensors, Seed::new(3)).expect("valid");
    let mut factor = vec![0.0; state.factor_len()];
    Device::cpu().begin_low_rank(&mut state, gradient, &mut factor).expect("valid");
    state.abandon();
    state
}

#[test]
fn residuals_whose_sum_overflows_stay_apart() {
    let tensors = [Matrix::new(8, 12), Matrix::vector(5)];
    let mut gradient = vec![1.0; 101];
    (gradient[17], gradient[100]) = (3e38, -2e38);
    let mut stays = holding(PowerSgd::rank(2), &tensors, &gradient);
    let leaves = stays.clone();
    let error = stays.absorb(&leaves).expect_err("6e38");
    assert!(matches!(error, Error::Overflow { index: 17, .. }), "{error:?}");
    assert_eq!(stays, leaves, "it is as it was");
    gradient[17] = 1.0;
    let small = holding(PowerSgd::rank(2), &tensors, &gradient);
    let error = stays.absorb(&small).expect_err("-4e38");
    assert!(matches!(error, Error::Overflow { index: 100, .. }), "{error:?}");
    assert_eq!(stays, leaves);
    stays.clear_residual().expect("idle");
    stays.absorb(&leaves).expect("fits");
    assert_eq!(stays.residual().expect("idle"), leaves.residual().expect("idle"));
}

#[test]
fn states_with_and_without_feedback_are_told_apart() {
    let tensors = [Matrix::new(8, 12), Matrix::vector(5)];
    let (with, without) = (PowerSgd::rank(2), PowerSgd::rank(2).without_feedback());
    let gradient = cases::normal(101, 1);
    let [mut kept, mut lost] = [with, without].map(|codec| holding(codec, &tensors, &gradient));
    let copies = [kept.clone(), lost.clone()];
    let what = "error feedback (0 without, 1 with)";
    let error = lost.absorb(&kept).expect_err("its residual would be lost");
    assert!(matches!(error, Error::Shape { what: of, found: 1, expected: 0, .. } if of == what), "{error:?}");
    let error = kept.absorb(&lost).expect_err("a worker of another setting");
    assert!(matches!(error, Error::Shape { what: of, found: 0, expected: 1, .. } if of == what), "{error:?}");
    assert_eq!([kept.clone(), lost.clone()], copies);
    lost.absorb(&copies[1]).expect("there is nothing to take over");
    let [saved, thin] = copies.map(|state| state.to_bytes().expect("idle"));
    assert_eq!(saved.len() - thin.len(), 4 * 101, "without feedback no residual is written");
    let error = without.restore(&tensors, &saved).expect_err("its residual would be lost");
    assert!(matches!(error, Error::Shape { what: of, found: 1, expected: 0, .. } if of == what), "{error:?}");
    let error = with.restore(&tensors, &thin).expect_err("it has no residual");
    assert!(matches!(error, Error::Shape { what: of, found: 0, expected: 1, .. } if of == what), "{error:?}");
    let device = Device::cpu();
    let mut restored = without.restore(&tensors, &thin).expect("as written");
    assert_eq!(bits(&step(&device, &mut restored, &gradient)), bits(&step(&device, &mut lost, &gradient)));
}

#[test]
fn outcomes_are_saved() {
    let device = Device::cpu();
    let tensors = [Matrix::new(8, 12), Matrix::vector(5)];
    let codec = PowerSgd::rank(2);
    let mut state = codec.state(&tensors, Seed::new(1)).expect("valid");
    assert_eq!(state.outcome(0), None);
    let mut spoiled = cases::normal(101, 1);
    spoiled[3] = f32::NAN;
    for _ in 0..3 {
        step(&device, &mut state, &spoiled);
        let restored = codec.restore(&tensors, &state.to_bytes().expect("idle")).expect("as written");
        assert_eq!([0, 1, 2].map(|t| restored.outcome(t)), [0, 1, 2].map(|t| state.outcome(t)));
        assert_eq!(restored.residual().expect("idle"), state.residual().expect("idle"));
        state = restored;
    }
    assert_eq!(state.outcome(0), Some(gradwire::Outcome::Dropped));
}

#[test]
fn numbers_that_no_step_leaves_behind_are_refused() {
    let device = Device::cpu();
    let tensors = [Matrix::new(8, 12), Matrix::vector(5)];
    let codec = PowerSgd::rank(2);
    let mut state = codec.state(&tensors, Seed::new(1)).expect("valid");
    step(&device, &mut state, &cases::normal(101, 1));
    let bytes = state.to_bytes().expect("idle");
    // 48 bytes of header, 2 entries of 24, 101 sums, 2 x 8 and 2 x 12 entries of factors, 4 bytes of checksum.
    assert_eq!(bytes.len(), 48 + 48 + 4 * (101 + 16 + 24) + 4);
    let with = |entry: usize, value: f32| {
        let mut bytes = bytes.clone();
        bytes[96 + 4 * entry..][..4].copy_from_slice(&value.to_le_bytes());
        codec.restore(&tensors, &sealed(bytes))
    };
    for (entry, value) in [(0, f32::NAN), (100, f32::INFINITY), (101, f32::NEG_INFINITY), (140, f32::NAN)] {
        let error = with(entry, value).expect_err("not finite");
        assert!(matches!(error, Error::State(StateError::NotFinite { index }) if index == entry as u64), "{error:?}");
    }
    // The left factor was computed first, and is orthonormal; the right one may be large.
    for (entry, value) in [(101, 2.5), (116, -1e30), (117, 1.4e36), (140, -f32::MAX)] {
        let error = with(entry, value).expect_err("too large");
        assert!(matches!(error, Error::State(StateError::TooLarge { index }) if index == entry as u64), "{error:?}");
    }
    for (entry, value) in [(0, f32::MAX), (101, 1.0), (117, 1.3e36), (140, -1.3e36)] {
        let mut state = with(entry, value).expect("possible");
        assert!(state.residual().expect("idle").iter().all(|v| v.is_finite()));
        // Whatever it holds, at most two steps later it is over.
        for _ in 0..2 {
            step(&device, &mut state, &cases::normal(101, 2));
        }
        assert!(step(&device, &mut state, &cases::normal(101, 3)).iter().all(|v| v.is_finite()), "{entry}: {value}");
    }
    // Fields that no writer writes.
    for (at, value, field) in [(5, 2, "side"), (7, 2, "feedback"), (48 + 16, 0x30, "flags"), (48 + 23, 1, "flags")] {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        let error = codec.restore(&tensors, &sealed(bytes)).expect_err("no writer writes it");
        assert!(matches!(error, Error::State(StateError::Field { field: of, .. }) if of == field), "{error:?}");
    }
    // Rows are compared in 64 bits, wherever a `usize` has fewer.
    let mut bytes = bytes.clone();
    bytes[48 + 4] = 1;
    let error = codec.restore(&tensors, &sealed(bytes)).expect_err("2^32 + 8 rows");
    assert!(matches!(error, Error::Shape { found: 0x1_0000_0008, expected: 8, tensor: Some(0), .. }), "{error:?}");
}

#[test]
fn tensors_without_elements_may_have_any_shape() {
    let device = Device::cpu();
    let tensors = [Matrix::new(0, u64::MAX >> 33), Matrix::new(8, 12), Matrix::new(u64::MAX >> 33, 0)];
    let codec = PowerSgd::rank(2);
    let mut state = codec.state(&tensors, Seed::new(1)).expect("valid");
    assert!(step(&device, &mut state, &cases::normal(96, 1)).iter().all(|v| v.is_finite()));
    let bytes = state.to_bytes().expect("idle");
    assert_eq!(codec.restore(&tensors, &bytes).expect("as written").to_bytes().expect("idle"), bytes);
}
