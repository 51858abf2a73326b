//! PowerSGD where something fails: numbers that are not finite or overflow, calls that are refused, steps that are
//! given up.

use gradwire::{Device, Error, LowRankState, Matrix, NonFinite, Outcome, PowerSgd, Seed};
use gradwire_tests::cases;
use gradwire_tests::low_rank::{alone, bits, compress_all, state, step, together, with_values};
use gradwire_tests::oracle::powersgd::Dense;

fn a_dead_direction_is_seeded_again(device: &Device) {
    let (n, m, r) = (40, 30, 4);
    let mut state = state(compress_all(r as u32).without_feedback(), n, m);
    // One entry: the columns of P are multiples of one another to the last bit, and all but the first become zeros.
    let mut thin = vec![0.0; n * m];
    thin[7 * m + 5] = 5.0;
    for _ in 0..3 {
        step(device, &mut state, &thin);
        let [left, _] = state.factors_of(0).expect("compressed");
        assert!(left[n..].iter().all(|v| *v == 0.0));
    }
    for gradient in [with_values(n, m, &[4.0, 3.0, 2.0, 1.0], 8), vec![0.0; n * m]] {
        step(device, &mut state, &gradient);
        let output = Dense::of(n, m, &step(device, &mut state, &gradient));
        let dense = Dense::of(n, m, &gradient);
        // Four directions are found again; fewer would leave at least the least of the values.
        assert!(dense.minus(&output).norm() <= 1e-3 * dense.norm(), "{}", dense.minus(&output).norm());
    }
}

fn nan_and_infinity_poison_a_matrix_and_pass(device: &Device) {
    let tensors = [Matrix::new(40, 30), Matrix::new(20, 50), Matrix::vector(10)];
    let elements = 1200 + 1000 + 10;
    for codec in [PowerSgd::rank(3), PowerSgd::rank(3).one_sided(), PowerSgd::rank(2).iterations(2)] {
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut states = vec![codec.state(&tensors, Seed::new(3)).expect("valid"); 2];
            let clean: Vec<Vec<f32>> = (0..2).map(|w| cases::normal(elements, 70 + w)).collect();
            together(device, &mut states, &clean);
            let before: Vec<Vec<f32>> = states.iter().map(|s| s.residual().expect("idle")).collect();
            let mut spoiled = clean.clone();
            spoiled[1][777] = odd;
            spoiled[0][2205] = odd;
            let output = together(device, &mut states, &spoiled);
            assert!(output[..1200].iter().all(|v| v.is_nan()), "{codec:?}: the matrix is NaN on every worker");
            assert!(output[1200..2205].iter().all(|v| v.is_finite()), "{codec:?}: no other is touched");
            assert!(!output[2205].is_finite() && output[2206..].iter().all(|v| v.is_finite()));
            for (w, state) in states.iter().enumerate() {
                let after = state.residual().expect("idle");
                for i in 0..1200 {
                    let expected = if (w, i) == (1, 777) { before[w][i] } else { before[w][i] + clean[w][i] };
                    assert_eq!(after[i], expected, "{codec:?}, worker {w}, element {i}: nothing was sent");
                }
                assert!(after.iter().all(|v| v.is_finite()));
            }
            let output = together(device, &mut states, &clean);
            assert!(output.iter().all(|v| v.is_finite()), "{codec:?}: it passes");
        }
    }
}

fn a_failed_call_leaves_the_state(device: &Device) {
    let tensors = [Matrix::new(40, 30), Matrix::vector(10)];
    let codec = PowerSgd::rank(3).non_finite(NonFinite::Error);
    let mut state = codec.state(&tensors, Seed::new(3)).expect("valid");
    let gradient = cases::normal(1210, 5);
    step(device, &mut state, &gradient);
    let before = state.clone();
    let (mut p, mut out) = (vec![0.0; 120], vec![0.0; 1210]);
    for (at, odd) in [(0, f32::NAN), (1199, f32::INFINITY), (1203, f32::NEG_INFINITY)] {
        let mut spoiled = gradient.clone();
        spoiled[at] = odd;
        spoiled[1209] = f32::NAN;
        let error = device.begin_low_rank(&mut state, &spoiled, &mut p).expect_err("not finite");
        assert!(matches!(error, Error::NotFinite { index } if index == at as u64), "{error:?}");
        assert_eq!(state, before);
    }
    let error = device.begin_low_rank(&mut state, &gradient[1..], &mut p).expect_err("short");
    assert!(matches!(error, Error::Length { what: "gradient", found: 1209, expected: 1210, .. }), "{error:?}");
    let error = device.begin_low_rank(&mut state, &gradient, &mut p[1..]).expect_err("short");
    assert!(matches!(error, Error::Length { what: "factor", found: 119, expected: 120, .. }), "{error:?}");
    let error = device.advance_low_rank(&mut state, &p.clone(), &mut p).expect_err("out of turn");
    assert!(matches!(error, Error::Order { expected: "begin_low_rank", .. }), "{error:?}");
    let error = device.finish_low_rank(&mut state, &p, &mut out).expect_err("out of turn");
    assert!(matches!(error, Error::Order { expected: "begin_low_rank", .. }), "{error:?}");
    assert_eq!(state, before);

    device.begin_low_rank(&mut state, &gradient, &mut p).expect("valid");
    let begun = state.clone();
    let mut q = vec![0.0; 100];
    assert_eq!(state.factor_len(), q.len());
    assert!(matches!(device.begin_low_rank(&mut state, &gradient, &mut p), Err(Error::Order { .. })));
    assert!(matches!(device.finish_low_rank(&mut state, &p, &mut out), Err(Error::Order { .. })));
    assert!(matches!(state.to_bytes(), Err(Error::Order { .. })));
    assert!(matches!(state.residual(), Err(Error::Order { .. })));
    let error = device.advance_low_rank(&mut state, &p[1..], &mut q).expect_err("short");
    assert!(matches!(error, Error::Length { what: "reduced factor", found: 119, expected: 120, .. }), "{error:?}");
    assert!(matches!(device.advance_low_rank(&mut state, &p, &mut q[1..]), Err(Error::Length { what: "factor", .. })));
    let mut spoiled = p.clone();
    spoiled[7] = f32::NAN;
    let error = device.advance_low_rank(&mut state, &spoiled, &mut q).expect_err("not finite");
    assert!(matches!(error, Error::NotFiniteFactor { index: 7 }), "{error:?}");
    assert_eq!(state, begun);
    device.advance_low_rank(&mut state, &p, &mut q).expect("valid");
    assert_eq!(state.factor_len(), 0, "only finish_low_rank is due, which hands out nothing");
    let advanced = state.clone();
    assert!(matches!(device.finish_low_rank(&mut state, &q[1..], &mut out), Err(Error::Length { .. })));
    assert!(matches!(device.finish_low_rank(&mut state, &q, &mut out[1..]), Err(Error::Length { what: "output", .. })));
    assert_eq!(state, advanced);
    // Given up, nothing of the gradient is lost, and of what was kept nothing either.
    state.abandon();
    let (kept, after) = (before.residual().expect("idle"), state.residual().expect("idle"));
    assert!((0..1210).all(|i| after[i] == kept[i] + gradient[i]));
    let twice = step(device, &mut state, &vec![0.0; 1210]);
    assert!((1200..1210).all(|i| twice[i] == gradient[i]), "a vector that was not sent comes with the next step");
}

/// Two matrices and a vector.
const TENSORS: [Matrix; 3] = [Matrix::new(40, 30), Matrix::new(20, 50), Matrix::vector(10)];
const ELEMENTS: usize = 1200 + 1000 + 10;

fn codecs(rank: u32) -> [PowerSgd; 3] {
    [PowerSgd::rank(rank), PowerSgd::rank(rank).one_sided(), PowerSgd::rank(rank).iterations(2)]
}

fn outcomes(state: &LowRankState) -> [Option<Outcome>; 3] {
    [0, 1, 2].map(|tensor| state.outcome(tensor))
}

fn a_matrix_whose_factors_overflow_recovers(device: &Device) {
    use Outcome::{Dropped, Kept, Sent};
    let clean = cases::normal(ELEMENTS, 80);
    // P overflows; P is finite, and too large; Q is too large alone, as the sum of 40 rows.
    for (huge, codec) in [3e38, 1e37, 3e35].into_iter().flat_map(|huge| codecs(3).map(|codec| (huge, codec))) {
        let label = format!("{huge:e}, {codec:?}");
        let [mut state, mut spared] = [(); 2].map(|()| codec.state(&TENSORS, Seed::new(3)).expect("valid"));
        let mut gradient = clean.clone();
        (0..1200).for_each(|i| gradient[i] = huge * (1.0 - (i % 30) as f32 / 60.0));
        let first = step(device, &mut state, &gradient);
        step(device, &mut spared, &clean);
        // One-sided, the first step has no second product, so what only that one overflows comes up in the second.
        let late = huge == 3e35 && state.rounds() == 1;
        let mut outputs = vec![first];
        let mut fates = vec![outcomes(&state)];
        for _ in 0..6 {
            assert!(state.residual().expect("idle").iter().all(|v| v.is_finite()));
            outputs.push(step(device, &mut state, &clean));
            fates.push(outcomes(&state));
            let others = step(device, &mut spared, &clean);
            assert_eq!(
                bits(&outputs[outputs.len() - 1][1200..]),
                bits(&others[1200..]),
                "{label}: no other is touched"
            );
        }
        // Nor does it in the third, so that two steps that are poisoned have one between them.
        let expected = if late {
            [Sent, Kept, Sent, Dropped, Sent, Sent, Sent]
        } else {
            [Kept, Dropped, Sent, Sent, Sent, Sent, Sent]
        };
        for ((output, fate), expected) in outputs.iter().zip(&fates).zip(expected) {
            assert_eq!(fate, &[expected, Sent, Sent].map(Some), "{label}");
            let sent = expected == Sent;
            assert!(output[..1200].iter().all(|v| if sent { v.is_finite() } else { v.is_nan() }), "{label}");
        }
        // What was dropped is gone: the residual is of the size of the gradients that came after.
        let left = state.residual().expect("idle");
        assert!(left[..1200].iter().all(|v| v.abs() < 100.0), "{label}");
    }
}

fn a_factor_that_overflows_is_refused_where_that_is_asked_for(device: &Device) {
    let codec = PowerSgd::rank(3).non_finite(NonFinite::Error);
    let mut state = codec.state(&TENSORS, Seed::new(3)).expect("valid");
    let clean = cases::normal(ELEMENTS, 80);
    let mut huge = clean.clone();
    huge[..1200].fill(3e38);
    let mut output = vec![0.0; ELEMENTS];
    // The gradient is finite; what cannot be used is found when it comes back. A whole step that is refused changes
    // nothing.
    let before = state.clone();
    let error = device.low_rank_step(&mut state, &huge, &mut output, alone).expect_err("too large");
    assert!(matches!(error, Error::NotFiniteFactor { .. }), "{error:?}");
    assert!(error.to_string().contains("clear_residual()"), "{error}");
    assert_eq!(state, before);
    // A step that is given up call by call keeps the gradient, and is refused as long as the residual is kept.
    for gradient in [&huge, &clean, &clean] {
        let mut p = vec![0.0; state.factor_len()];
        device.begin_low_rank(&mut state, gradient, &mut p).expect("finite");
        let mut q = vec![0.0; state.factor_len()];
        let advanced = device.advance_low_rank(&mut state, &p, &mut q);
        let error = advanced.and_then(|()| device.finish_low_rank(&mut state, &q, &mut output)).expect_err("too large");
        assert!(matches!(error, Error::NotFiniteFactor { .. }), "{error:?}");
        state.abandon();
    }
    state.clear_residual().expect("idle");
    assert!(step(device, &mut state, &clean).iter().all(|v| v.is_finite()));
    // An entry that is large and finite is refused in a factor, and not after it.
    let mut p = vec![0.0; state.factor_len()];
    device.begin_low_rank(&mut state, &clean, &mut p).expect("valid");
    p[4] = -1.5e36;
    let mut q = vec![0.0; state.factor_len()];
    let error = device.advance_low_rank(&mut state, &p, &mut q).expect_err("too large");
    assert!(matches!(error, Error::NotFiniteFactor { index: 4 }), "{error:?}");
    p[4] = 0.0;
    device.advance_low_rank(&mut state, &p, &mut q).expect("valid");
    *q.last_mut().expect("a vector's last element") = f32::MAX;
    device.finish_low_rank(&mut state, &q, &mut output).expect("valid");
    assert_eq!(output.last(), Some(&f32::MAX));
}

/// What a collective fails with.
#[derive(Debug)]
enum Failure {
    Peer(u32),
    Gradwire(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Gradwire(error)
    }
}

fn a_collective_that_fails_changes_nothing(device: &Device) {
    for codec in codecs(3).into_iter().chain([PowerSgd::rank(2).one_sided(), PowerSgd::rank(2).without_feedback()]) {
        let mut state = codec.state(&TENSORS, Seed::new(3)).expect("valid");
        // A residual, and marks of what was sent and poisoned.
        step(device, &mut state, &cases::normal(ELEMENTS, 1));
        let mut spoiled = cases::normal(ELEMENTS, 2);
        spoiled[77] = f32::NAN;
        step(device, &mut state, &spoiled);
        let (before, gradient) = (state.clone(), cases::normal(ELEMENTS, 3));
        let mut expected = before.clone();
        let output = step(device, &mut expected, &gradient);
        for dies_in in 1..=state.rounds() {
            let mut round = 0;
            let mut dies = |factor: &mut [f32]| {
                round += 1;
                // What a collective that fails half way leaves there.
                factor.fill(f32::NAN);
                if round == dies_in { Err(Failure::Peer(round)) } else { Ok(()) }
            };
            let mut untouched = vec![7.0; ELEMENTS];
            let outcome = device.low_rank_step(&mut state, &gradient, &mut untouched, &mut dies);
            assert!(matches!(outcome, Err(Failure::Peer(r)) if r == dies_in), "{codec:?}: {outcome:?}");
            assert!(untouched.iter().all(|v| *v == 7.0), "{codec:?}: the output is as it was");
            assert_eq!(state, before, "{codec:?}, round {dies_in}");
            round = 0;
            let mut dies = |_: &mut [f32]| {
                round += 1;
                if round == dies_in { Err(Failure::Peer(round)) } else { Ok(()) }
            };
            let mut in_place = gradient.clone();
            let outcome = device.low_rank_step_in_place(&mut state, &mut in_place, &mut dies);
            assert!(matches!(outcome, Err(Failure::Peer(_))), "{codec:?}: {outcome:?}");
            assert_eq!((bits(&in_place), &state), (bits(&gradient), &before), "{codec:?}: the gradient is still there");
        }
        // The same gradient again is the step that would have been.
        let mut in_place = gradient.clone();
        device.low_rank_step_in_place(&mut state, &mut in_place, alone).expect("valid");
        assert_eq!((bits(&in_place), state), (bits(&output), expected), "{codec:?}");
        // What this crate refuses comes through the same type.
        let mut state = before.clone();
        let outcome =
            device.low_rank_step(&mut state, &gradient[1..], &mut vec![0.0; ELEMENTS], |_| Err(Failure::Peer(0)));
        assert!(matches!(outcome, Err(Failure::Gradwire(Error::Length { .. }))), "{codec:?}: {outcome:?}");
        assert_eq!(state, before);
    }
    // A step that is under way stays so.
    let mut state = codecs(3)[0].state(&TENSORS, Seed::new(3)).expect("valid");
    let (gradient, mut p) = (cases::normal(ELEMENTS, 3), vec![0.0; state.factor_len()]);
    device.begin_low_rank(&mut state, &gradient, &mut p).expect("valid");
    let before = state.clone();
    let outcome = device.low_rank_step(&mut state, &gradient, &mut vec![0.0; ELEMENTS], alone);
    assert!(matches!(outcome, Err(Error::Order { .. })), "{outcome:?}");
    assert_eq!(state, before);
}

fn a_worker_that_failed_stays_in_step(device: &Device) {
    for codec in codecs(3).into_iter().chain([PowerSgd::rank(1).one_sided(), PowerSgd::rank(20).min_compression(0.0)]) {
        let mut smooth = vec![codec.state(&TENSORS, Seed::new(3)).expect("valid"); 3];
        let mut failing = smooth.clone();
        for t in 0..5 {
            // Of rank 2, so that columns die and are seeded again, in steps that fail too.
            let mut gradients: Vec<Vec<f32>> = (0..3).map(|w| cases::normal(ELEMENTS, 10 * t + w)).collect();
            for gradient in &mut gradients {
                gradient[..1200].copy_from_slice(&with_values(40, 30, &[3.0, 2.0], 500 + t));
            }
            let expected = together(device, &mut smooth, &gradients);
            // A worker begins, goes as far as it can alone, and gives up; then it begins again with what it has kept.
            let worker = t as usize % 3;
            let state = &mut failing[worker];
            let before = state.clone();
            let mut factor = vec![0.0; state.factor_len()];
            device.begin_low_rank(state, &gradients[worker], &mut factor).expect("valid");
            for _ in 1..state.rounds() {
                let mut next = vec![0.0; state.factor_len()];
                device.advance_low_rank(state, &factor, &mut next).expect("valid");
                factor = next;
            }
            state.abandon();
            assert_eq!((state.steps(), state.factors_of(0)), (before.steps(), before.factors_of(0)));
            gradients[worker].fill(0.0);
            assert_eq!(bits(&together(device, &mut failing, &gradients)), bits(&expected), "{codec:?}, step {t}");
            for (w, (smooth, failing)) in smooth.iter().zip(&failing).enumerate() {
                assert!(smooth.to_bytes().expect("idle") == failing.to_bytes().expect("idle"), "{codec:?}, {t}, {w}");
            }
        }
    }
}

fn what_waits_of_a_tensor_that_is_not_compressed_survives_nan(device: &Device) {
    for codec in codecs(2) {
        let mut states = vec![codec.state(&TENSORS, Seed::new(3)).expect("valid"); 2];
        let gradients: Vec<Vec<f32>> = (0..2).map(|w| cases::normal(ELEMENTS, 20 + w)).collect();
        // Both workers give a step up, so that all of it waits.
        for (state, gradient) in states.iter_mut().zip(&gradients) {
            let mut factor = vec![0.0; state.factor_len()];
            device.begin_low_rank(state, gradient, &mut factor).expect("valid");
            state.abandon();
            assert_eq!(bits(&state.residual().expect("idle")), bits(gradient));
        }
        let more: Vec<Vec<f32>> = (0..2).map(|w| cases::normal(ELEMENTS, 30 + w)).collect();
        for odd in [f32::NAN, f32::INFINITY] {
            let mut states = states.clone();
            let mut spoiled = more.clone();
            spoiled[1][2204] = odd;
            // Given up, the element of the gradient is lost and no other; what waited goes on waiting.
            let mut given_up = states[1].clone();
            let mut factor = vec![0.0; given_up.factor_len()];
            device.begin_low_rank(&mut given_up, &spoiled[1], &mut factor).expect("valid");
            given_up.abandon();
            let kept = given_up.residual().expect("idle");
            for i in 2200..ELEMENTS {
                let added = if i == 2204 { 0.0 } else { more[1][i] };
                assert_eq!(kept[i], gradients[1][i] + added, "{codec:?}, {odd}, element {i}");
            }
            // Finished, the other elements are sent, and of this one nothing is, on either worker.
            let output = together(device, &mut states, &spoiled);
            assert!(!output[2204].is_finite());
            for (w, state) in states.iter().enumerate() {
                let kept = state.residual().expect("idle");
                assert_eq!(outcomes(state), [Some(Outcome::Sent), Some(Outcome::Sent), Some(Outcome::Kept)]);
                for i in 2200..ELEMENTS {
                    let expected = match (i, w) {
                        (2204, 0) => gradients[0][i] + more[0][i],
                        (2204, _) => gradients[1][i],
                        _ => 0.0,
                    };
                    assert_eq!(kept[i], expected, "{codec:?}, {odd}, worker {w}, element {i}");
                }
            }
            let sum = f64::from(gradients[0][2204] + more[0][2204]) + f64::from(gradients[1][2204]);
            // Once more, and it is dropped: what waits may itself be what overflows.
            let mut twice = states.clone();
            let mut zeros = vec![vec![0.0; ELEMENTS]; 2];
            let output = together(device, &mut states, &zeros);
            assert_eq!(output[2204], (sum / 2.0) as f32, "what waited comes with the next step");
            zeros[0][2204] = odd;
            together(device, &mut twice, &zeros);
            for state in &twice {
                assert_eq!(state.outcome(2), Some(Outcome::Dropped));
                assert!(state.residual().expect("idle")[2200..].iter().all(|v| *v == 0.0));
            }
        }
    }
}

fn without_feedback_nothing_is_kept(device: &Device) {
    let mut state = PowerSgd::rank(2).without_feedback().state(&TENSORS, Seed::new(3)).expect("valid");
    let clean = cases::normal(ELEMENTS, 20);
    let mut spoiled = clean.clone();
    (spoiled[3], spoiled[2203]) = (f32::NAN, f32::NAN);
    step(device, &mut state, &spoiled);
    assert_eq!(outcomes(&state), [Some(Outcome::Dropped), Some(Outcome::Sent), Some(Outcome::Dropped)]);
    assert_eq!(bits(&step(device, &mut state, &clean)[2200..]), bits(&clean[2200..]));
    assert_eq!(outcomes(&state), [Some(Outcome::Sent); 3]);
    assert!(state.residual().expect("idle").iter().all(|v| *v == 0.0));
}

gradwire_tests::on_every_device!(
    a_matrix_whose_factors_overflow_recovers,
    a_dead_direction_is_seeded_again,
    nan_and_infinity_poison_a_matrix_and_pass,
    a_failed_call_leaves_the_state,
    a_factor_that_overflows_is_refused_where_that_is_asked_for,
    a_collective_that_fails_changes_nothing,
    a_worker_that_failed_stays_in_step,
    what_waits_of_a_tensor_that_is_not_compressed_survives_nan,
    without_feedback_nothing_is_kept,
);
