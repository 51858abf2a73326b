//! Memories of which the difference to the gradient is sent, and feedback with weights: EF21, DIANA, beta and gamma.

use crate::training::{RUN, bits, together};
use gradwire::{Compressor, Device, Error, Policy, Qsgd, Recipe, RecipeError, Seed, Shift, Tensor, TopK, Uniform};
use gradwire_collectives::Threads;
use gradwire_tests::cases;

const N: usize = 3000;
const RANKS: u32 = 3;

fn compressor(text: &str) -> Compressor {
    let policy = Policy::new(text).expect(text);
    Compressor::with_policy(&policy, &[Tensor::new("", [60, 50])], RUN).expect(text)
}

fn seed(step: u64, rank: u32) -> Seed {
    Seed::new(RUN).step(step).worker(rank)
}

/// What each step leaves on every rank, of gradients by rank and step.
fn exchanged(text: &str, steps: u64, gradient: impl Fn(u32, u64) -> Vec<f32> + Sync) -> Vec<Vec<f32>> {
    let groups = Threads::group(RANKS).expect("three ranks");
    let mut all = together(groups, |rank, mut group| {
        let mut compressor = compressor(text);
        let step = |step| {
            let mut x = gradient(rank, step);
            compressor.exchange(&Device::cpu(), &mut group, &mut x).expect(text);
            x
        };
        (0..steps).map(step).collect::<Vec<_>>()
    });
    let last = all.swap_remove(0);
    assert!(all.iter().flatten().flatten().all(|v| v.is_finite()));
    for other in all {
        for (a, b) in last.iter().zip(&other) {
            assert_eq!(bits(a), bits(b), "{text}");
        }
    }
    last
}

/// Algorithm 1 of Mishchenko et al. 2019 with the codec's own calls, and EF21 with alpha = 1.
fn by_hand(codec: &Qsgd, alpha: f32, steps: u64) -> Vec<Vec<f32>> {
    let (device, weight) = (Device::cpu(), 1.0 / RANKS as f32);
    let (mut own, mut mean) = (vec![vec![0.0f32; N]; RANKS as usize], vec![0.0f32; N]);
    let mut all = Vec::new();
    for step in 0..steps {
        let mut payloads = Vec::new();
        for rank in 0..RANKS {
            let h = &mut own[rank as usize];
            let x: Vec<f32> =
                cases::normal(N, 10 * step + u64::from(rank)).iter().zip(&*h).map(|(g, h)| g - h).collect();
            let payload = device.encode(codec, &x, seed(step, rank)).expect("it encodes");
            let sent = device.decode(&payload).expect("it decodes");
            h.iter_mut().zip(sent).for_each(|(h, sent)| *h += alpha * sent);
            payloads.push(device.decode(&payload).expect("it decodes"));
        }
        let (mut output, mut next) = (mean.clone(), mean);
        for sent in &payloads {
            for ((out, next), sent) in output.iter_mut().zip(&mut next).zip(sent) {
                *out += weight * sent;
                *next += weight * alpha * sent;
            }
        }
        mean = next;
        all.push(output);
    }
    all
}

#[test]
fn a_step_is_the_published_algorithm_by_the_codec_s_own_calls() {
    let plain = Qsgd::bits(4).bucket(64);
    let omega = 64.0 / (4.0 * 49.0f64);
    let cases = [
        ("qsgd:bits=4,bucket=64+diana:alpha=0.5", plain, 0.5),
        ("qsgd:bits=4,bucket=64+diana", plain, (1.0 / (1.0 + omega)) as f32),
        ("qsgd:bits=4,bucket=64,contractive+ef21", plain.contractive(), 1.0),
        ("qsgd:bits=4,bucket=64+ef21", plain, 1.0),
    ];
    for (text, codec, alpha) in cases {
        let found = exchanged(text, 4, |rank, step| cases::normal(N, 10 * step + u64::from(rank)));
        for (step, (found, expected)) in found.iter().zip(by_hand(&codec, alpha, 4)).enumerate() {
            assert_eq!(bits(found), bits(&expected), "{text}, step {step}");
        }
    }
}

/// The theorem of EF21 for gradients that stay: |h_t - g|^2 <= (1 - delta)^t |g|^2, in every run of a codec without
/// draws. Top-k's estimates are exact where an entry was sent, so nothing is rounded, and after 1/delta steps none is
/// missing.
#[test]
fn estimates_of_ef21_reach_a_gradient_that_stays() {
    let gradients: Vec<Vec<f32>> = (0..RANKS).map(|rank| cases::normal(N, u64::from(rank))).collect();
    let energy = |x: &[f32]| -> f64 { x.iter().map(|v| f64::from(*v).powi(2)).sum() };
    let (delta, device) = (0.125f64, Device::cpu());
    let groups = Threads::group(RANKS).expect("three ranks");
    together(groups, |rank, mut group| {
        let g = &gradients[rank as usize];
        let mut compressor = compressor("topk:0.125+ef21");
        for step in 1..=8 {
            compressor.exchange(&device, &mut group, &mut g.clone()).expect("it runs");
            let state = compressor.state().expect("idle");
            let estimate = estimate_of(&state);
            let off: Vec<f32> = g.iter().zip(&estimate).map(|(g, h)| g - h).collect();
            assert!(energy(&off) <= (1.0 - delta).powi(step) * energy(g) * (1.0 + 1e-12), "step {step}");
        }
        assert_eq!(bits(&estimate_of(&compressor.state().expect("idle"))), bits(g));
    });
}

/// This rank's estimate in a state: after the description, residual and momentum, each after its length.
fn estimate_of(state: &[u8]) -> Vec<f32> {
    let mut at = 32;
    let mut part = || {
        let bytes = u64::from_le_bytes(state[at..at + 8].try_into().expect("eight")) as usize;
        at += 8 + bytes;
        &state[at - bytes..at]
    };
    let parts: [&[u8]; 4] = std::array::from_fn(|_| part());
    assert!(parts[1].is_empty() && parts[2].is_empty(), "no residual and no momentum");
    bytemuck::pod_collect_to_vec(parts[3])
}

/// The theorem of DIANA for gradients that stay, E|h_t - g|^2 <= (1 - alpha)^t |g|^2 for alpha <= 1/(1 + omega): by
/// Markov's inequality the square is above 1e12 times that with probability 1e-12 at most. 4 bits in buckets of 64 have
/// omega = 0.33, so 80 steps take off a factor of 1e48; what is left is binary32's rounding of 80 sums, each of numbers
/// below twice the largest value, on two sides.
#[test]
fn estimates_of_diana_reach_a_gradient_that_stays() {
    let gradients: Vec<Vec<f32>> = (0..RANKS).map(|rank| cases::normal(N, 40 + u64::from(rank))).collect();
    let found = exchanged("qsgd:bits=4,bucket=64+diana", 80, |rank, _| gradients[rank as usize].clone());
    let off = |found: &[f32], i: usize| -> f64 {
        let mean = gradients.iter().map(|g| f64::from(g[i])).sum::<f64>() / f64::from(RANKS);
        (f64::from(found[i]) - mean).abs()
    };
    let most = (0..N).map(|i| off(&found[79], i)).fold(0.0, f64::max);
    let largest = gradients.iter().flatten().fold(0.0f32, |most, v| most.max(v.abs()));
    let largest = f64::from(largest);
    assert!(most <= 80.0 * 2.0 * 2.0 * largest * 2f64.powi(-24), "{most:e}");
    // The codec's own error is not gone without it.
    let without = exchanged("qsgd:bits=4,bucket=64", 80, |rank, _| gradients[rank as usize].clone());
    assert!((0..N).map(|i| off(&without[79], i)).fold(0.0, f64::max) > 0.01 * largest);
}

/// What is encoded is beta times the residual plus gamma times the gradient, and all of it is sent or kept: exactly, on
/// dyadic values of few bits, whose products and sums are exact too.
#[test]
fn weighted_feedback_keeps_what_it_does_not_send() {
    let (beta, gamma, k) = (0.5f32, 2.0f32, 30);
    let dyadic = |rank: u32, step: u64| -> Vec<f32> {
        cases::normal(N, 7 * step + u64::from(rank)).iter().map(|v| (v * 16.0).round() / 16.0).collect()
    };
    let found = exchanged("topk:0.01+ef:beta=0.5,gamma=2", 5, dyadic);
    let mut residuals = vec![vec![0.0f32; N]; RANKS as usize];
    for (step, found) in (0..).zip(&found) {
        let mut mean = vec![0.0f32; N];
        for rank in 0..RANKS {
            let e = &mut residuals[rank as usize];
            e.iter_mut().zip(dyadic(rank, step)).for_each(|(e, g)| *e = beta * *e + gamma * g);
            let mut order: Vec<usize> = (0..N).collect();
            order.sort_by(|a, b| e[*b].abs().total_cmp(&e[*a].abs()).then(a.cmp(b)));
            for index in &order[..k] {
                mean[*index] += 1.0 / RANKS as f32 * e[*index];
                e[*index] = 0.0;
            }
        }
        assert_eq!(bits(found), bits(&mean), "step {step}");
    }
    let weights_of_one = exchanged("topk:0.01+ef:beta=1,gamma=1", 3, dyadic);
    assert_eq!(weights_of_one, exchanged("topk:0.01+ef", 3, dyadic));
}

/// With another number of ranks each begins at the mean of all estimates, so that their mean is what the ranks have as
/// such.
#[test]
fn another_number_of_ranks_goes_on_from_the_mean_of_estimates() {
    let device = Device::cpu();
    let states = together(Threads::group(4).expect("four"), |rank, mut group| {
        let mut compressor = compressor("topk:0.25+ef21");
        for _ in 0..2 {
            compressor.exchange(&device, &mut group, &mut cases::normal(N, rank.into())).expect("it runs");
        }
        compressor.state().expect("idle")
    });
    for ranks in [1, 3, 8] {
        let estimates = (0..ranks).map(|rank| {
            let mut compressor = compressor("topk:0.25+ef21");
            compressor.restore(&states, rank, ranks).expect("they fit");
            estimate_of(&compressor.state().expect("idle"))
        });
        let estimates: Vec<_> = estimates.collect();
        let mean: Vec<f32> = {
            let own: Vec<_> = states.iter().map(|state| estimate_of(state)).collect();
            (0..N).map(|i| own.iter().map(|h| f64::from(h[i])).sum::<f64>() as f32 / 4.0).collect()
        };
        for estimate in &estimates {
            assert_eq!(bits(estimate), bits(&estimates[0]));
            // Eight values were added, each sum rounded.
            let off = estimate.iter().zip(&mean).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
            let largest = states.iter().flat_map(|state| estimate_of(state)).fold(0.0f32, |most, v| most.max(v.abs()));
            assert!(off <= 8.0 * f64::from(largest) * 2f64.powi(-24), "{off:e}");
        }
        // A gradient that no rank's differs from stays what it is: nothing is lost or counted twice.
        let stays = together(Threads::group(ranks).expect("ranks"), |rank, mut group| {
            let mut compressor = compressor("topk:0.25+ef21");
            compressor.restore(&states, rank, ranks).expect("they fit");
            let mut gradient = estimates[0].clone();
            compressor.exchange(&device, &mut group, &mut gradient).expect("it runs");
            bits(&gradient)
        });
        assert!(stays.iter().all(|stays| *stays == bits(&estimates[0])), "{ranks} ranks");
    }
}

#[test]
fn what_would_not_converge_is_refused_with_what_would() {
    let refused = |text: &str| Compressor::new(text, [[100, 100]], 1).map(drop).expect_err(text);
    for (text, says) in [
        ("qsgd:bits=2,bucket=8192+ef21", "contractive"),
        ("topk:above=0.1+ef21", "diana"),
        ("topk:0.1+diana", "ef21"),
        ("onebit+diana", "unbiased"),
        ("uniform:bits=4,nearest+diana", "unbiased"),
        ("qsgd:bits=4,contractive+diana", "without contractive"),
        ("qsgd:bits=4,bucket=64+diana:alpha=0.9", "0.75384617"),
        ("powersgd+ef21", "leave out ef21"),
        ("powersgd+ef:beta=0.5", "leave out beta"),
        ("none+ef21", "leave out"),
        ("topk:0.1+ef21+momentum=0.5", "momentum"),
        ("qsgd:bits=2,bucket=8192+ef:beta=0.5", "contractive()"),
    ] {
        let error = refused(text).to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
    for (memory, what) in [
        (Recipe::from(TopK::fraction(0.1)).feedback_weights(1.5, 1.0), "beta"),
        (Recipe::from(TopK::fraction(0.1)).feedback_weights(f32::NAN, 1.0), "beta"),
        (Recipe::from(TopK::fraction(0.1)).feedback_weights(0.5, 0.0), "gamma"),
        (Recipe::from(TopK::fraction(0.1)).feedback_weights(1.0, f32::INFINITY), "gamma"),
        (Recipe::from(Uniform::bits(8)).shift(Shift::Diana { alpha: Some(0.0) }), "alpha"),
        (Recipe::from(Uniform::bits(8)).shift(Shift::Diana { alpha: Some(1.5) }), "alpha"),
    ] {
        let error = memory.check().expect_err(what);
        assert!(matches!(error, Error::Recipe(RecipeError::Factor { what: found, .. }) if found == what), "{error:?}");
    }
}

/// A NaN would stay in the estimate for ever, so the step is refused, and nothing has changed.
#[test]
fn an_estimate_takes_no_mean_that_is_not_finite() {
    // Differences to an estimate of the other sign are infinite.
    for text in ["topk:0.1+ef21", "qsgd:bits=4,bucket=64+diana:alpha=0.1"] {
        let mut group = Threads::group(1).expect("one").remove(0);
        let mut compressor = compressor(text);
        let mut skipped = 0;
        for step in 0..8 {
            let mut gradient = vec![if step % 2 == 0 { f32::MAX } else { f32::MIN }; N];
            let before = compressor.state().expect("idle");
            compressor.exchange(&Device::cpu(), &mut group, &mut gradient).expect(text);
            if gradient.iter().any(|mean| mean.is_nan()) {
                skipped += 1;
                compressor.undo().expect("a step was skipped");
                assert!(compressor.state().expect("idle") == before, "{text}");
            }
        }
        assert!(skipped > 0, "{text}");
        let mut gradient = cases::normal(N, 3);
        compressor.exchange(&Device::cpu(), &mut group, &mut gradient).expect("it goes on");
        assert!(gradient.iter().all(|mean| mean.is_finite()), "{text}");
    }
}

/// Algorithm 3 of Bernstein et al. 2018: the majority of the ranks, and 0 where they tie.
#[test]
fn a_recipe_with_a_vote_gives_the_majority() {
    let gradient = |rank: u32, step: u64| cases::normal(N, 10 * step + u64::from(rank));
    for (step, got) in exchanged("sign:unit+vote", 2, gradient).into_iter().enumerate() {
        let all: Vec<Vec<f32>> = (0..RANKS).map(|rank| gradient(rank, step as u64)).collect();
        let majority = |i: usize| all.iter().map(|x| if x[i] >= 0.0 { 1.0 } else { -1.0 }).sum::<f32>().signum();
        let expected: Vec<f32> = (0..N).map(majority).collect();
        assert_eq!(bits(&got), bits(&expected), "step {step}");
    }
}

/// With feedback that forms its values, the residual is that of the rank's own payload: `g - sign(g)`.
#[test]
fn a_vote_leaves_the_residual_of_what_the_rank_sent() {
    let gradient = |rank: u32| cases::normal(N, 70 + u64::from(rank));
    let residuals = together(Threads::group(RANKS).expect("three ranks"), |rank, mut group| {
        let mut compressor = compressor("sign:unit+ef:beta=0+vote");
        compressor.exchange(&Device::cpu(), &mut group, &mut gradient(rank)).expect("a vote");
        compressor.residual().expect("a residual")
    });
    for (rank, residual) in (0..).zip(residuals) {
        let expected: Vec<f32> = gradient(rank).iter().map(|g| g - if *g >= 0.0 { 1.0 } else { -1.0 }).collect();
        assert_eq!(bits(&residual), bits(&expected), "rank {rank}");
    }
}

/// Algorithm 2 of Bernstein et al. 2018 with the mean of signs in place of their vote: m = 0.9 m + 0.1 g, then its
/// signs.
#[test]
fn signum_sends_the_signs_of_its_momentum() {
    let gradient = |rank: u32, step: u64| cases::normal(N, 10 * step + u64::from(rank));
    let steps = exchanged("signum", 4, gradient);
    let mut momenta = vec![vec![0.0f64; N]; RANKS as usize];
    for (step, got) in steps.iter().enumerate() {
        let mut votes = vec![0.0; N];
        for (rank, m) in momenta.iter_mut().enumerate() {
            for ((m, g), vote) in m.iter_mut().zip(gradient(rank as u32, step as u64)).zip(&mut votes) {
                *m = 0.9 * *m + 0.1 * f64::from(g);
                *vote += m.signum();
            }
        }
        let weight = f64::from(1.0 / RANKS as f32);
        // The sum of three thirds is exact but for its rounding.
        let off = got.iter().zip(&votes).filter(|(got, vote)| (f64::from(**got) - *vote * weight).abs() > 1e-6);
        assert_eq!(off.count(), 0, "step {step}");
    }
    // At first it is SignSGD; later it is not.
    let plain = exchanged("sign:unit", 4, gradient);
    assert_eq!((bits(&steps[0]) == bits(&plain[0]), bits(&steps[3]) == bits(&plain[3])), (true, false));
}
