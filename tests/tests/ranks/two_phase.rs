//! Two phases: pieces to their owners, and quantized sums back.

use std::sync::OnceLock;

use crate::exchanges::{Watched, dyadic, expect_mass, of};
use crate::training::{bits, gradient, together};
use gradwire::{Algorithm, Compressor, Device, Error, ExchangeError, Policy, Recipe, Tensor};
use gradwire_collectives::Threads;

/// Codecs whose values have few bits where the gradient's have, and steps for which they are few enough for f32 to add
/// them exactly.
const EXACT: [(&str, Option<&str>, u64); 5] = [
    ("natural:bits=8+ef+twophase", None, 4),
    ("natural:bits=8+elias+ef+twophase", None, 0),
    ("float:bf16+ef+twophase", None, 4),
    ("qsgd:levels=4,bucket=32+ef+twophase", None, 2),
    ("qsgd:levels=4,bucket=32+elias+ef+twophase", Some("topk:0.1+ef+gtopk"), 2),
];

/// Gradients, and all residuals, are the sum that is decoded, and all residuals after it: of workers and of owners.
#[test]
fn no_gradient_is_lost_with_any_number_of_ranks() {
    for (text, other, steps) in EXACT.into_iter().filter(|(.., steps)| *steps > 0) {
        for ranks in 1..=9 {
            let owned = |compressor: &Compressor| {
                let mut all = compressor.residual().expect("idle");
                let owner = compressor.owner_residual().expect("idle");
                all.iter_mut().zip(&owner).for_each(|(e, r)| *e += r);
                (all, owner)
            };
            let seen = together(Threads::group(ranks).expect("a group"), |rank, mut group| {
                let mut compressor = of(text, other);
                let mut seen = Vec::new();
                for step in 0..steps {
                    let mut x = dyadic(compressor.elements(), rank, step);
                    let (mut before, _) = owned(&compressor);
                    before.iter_mut().zip(&x).for_each(|(e, g)| *e += g);
                    compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
                    seen.push((before, x, owned(&compressor)));
                }
                seen
            });
            for step in 0..steps as usize {
                let before: Vec<_> = seen.iter().map(|seen| seen[step].0.clone()).collect();
                let after: Vec<_> = seen.iter().map(|seen| seen[step].2.0.clone()).collect();
                let mean = &seen[0][step].1;
                assert!(seen.iter().all(|seen| bits(&seen[step].1) == bits(mean)), "{text}: {ranks} ranks differ");
                expect_mass(&before, mean, &after, ranks, 2f64.powi(-14), text);
                let owner = seen.iter().flat_map(|seen| &seen[step].2.1).filter(|r| **r != 0.0).count();
                // What one rank sends is quantized already.
                assert!(owner > 0 || ranks == 1, "{text}: the owners of {ranks} ranks keep something");
            }
        }
    }
}

/// By hand: each piece encoded alone, summed in the order of the ranks, encoded again. Without draws.
#[test]
fn two_phases_are_their_stages_one_after_another() {
    let (device, codec, ranks) = (Device::cpu(), gradwire::OneBit::new().bucket(64), 3usize);
    // 600, 210 and 500 elements in buckets of 64. Thirds of 1310 are at 436 and 873; buckets end there at 448, and 64
    // after the third tensor's beginning at 810.
    let pieces: [&[[usize; 2]]; 3] = [&[[0, 448]], &[[448, 600], [600, 810], [810, 874]], &[[874, 1310]]];
    let seen = together(Threads::group(3).expect("three"), |rank, mut group| {
        let mut compressor = of("onebit:bucket=64+twophase", None);
        let mut seen = Vec::new();
        for step in 0..3 {
            let mut x = gradient(1310, rank, step);
            compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
            let (worker, owner) = (compressor.residual().expect("idle"), compressor.owner_residual().expect("idle"));
            seen.push([x, worker, owner].map(|values| bits(&values)));
        }
        seen
    });
    let mut workers = vec![vec![0.0f32; 1310]; ranks];
    let mut owners = vec![vec![0.0f32; 1310]; ranks];
    for step in 0..3 {
        let gradients: Vec<_> = (0..3).map(|rank| gradient(1310, rank, step)).collect();
        let (mut mean, any) = (vec![0.0f32; 1310], gradwire::Seed::new(0));
        for (owner, piece) in pieces.iter().enumerate() {
            for range in piece.iter().map(|[from, to]| *from..*to) {
                let mut sum = vec![0.0f32; range.len()];
                for (worker, gradient) in workers.iter_mut().zip(&gradients) {
                    let (x, e) = (&gradient[range.clone()], &mut worker[range.clone()]);
                    let payload = device.encode_with_feedback(&codec, x, e, any).expect("it encodes");
                    sum.iter_mut().zip(device.decode(&payload).expect("valid")).for_each(|(s, v)| *s += 0.25 * v);
                }
                let e = &mut owners[owner][range.clone()];
                let payload = device.encode_with_feedback(&codec, &sum[..], e, any).expect("it encodes");
                let values = device.decode(&payload).expect("valid");
                mean[range.clone()].iter_mut().zip(values).for_each(|(to, v)| *to = v * (4.0 / 3.0));
            }
        }
        for rank in 0..ranks {
            // What is kept of a quarter of the sum is reported of the sum.
            let owner: Vec<f32> = owners[rank].iter().map(|e| 4.0 * e).collect();
            let expected = [&mean, &workers[rank], &owner].map(|values| bits(values));
            assert!(seen[rank][step as usize] == expected, "rank {rank}, step {step}");
        }
    }
}

#[test]
fn a_rank_sends_the_bytes_of_the_formula() {
    // The whole payload, and 2 (P - 1) / P of it: pieces of one size, a header and a head for each.
    for ranks in 1..=8u32 {
        // Codes are written by 256 elements.
        let n = 256 * 840u32;
        let body = u64::from(n / 2 + n / 64 * 4);
        together(Threads::group(ranks).expect("a group"), |rank, group| {
            let text = "qsgd:bits=4,bucket=64+ef+twophase";
            let mut compressor = Compressor::new(text, [[256u64, 840]], 5).expect("valid");
            let mut group = Watched::new(group);
            for step in 0..2 {
                group.sent = 0;
                let mut x = gradient(n as usize, rank, step);
                compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
            }
            let (p, others) = (u64::from(ranks), u64::from(ranks - 1));
            assert_eq!(
                group.sent,
                2 * others * body / p + 2 * others * (24 + 8 + 32) + others * 24,
                "{rank} of {ranks}"
            );
            assert_eq!(compressor.sent_bytes(rank, ranks).expect("valid"), Some(group.sent));
        });
    }
    // Tensors and pieces of any size; fewer ranks than asked for; beside other recipes.
    for (text, other) in [
        ("qsgd:bits=4,bucket=32+ef+twophase", None),
        ("onebit:bucket=512+twophase:from=4", None),
        ("sign:bucket=whole+twophase", None),
        ("uniform:bits=8,bucket=64+twophase", Some("topk:0.1+f16+ef+gtopk")),
        ("qsgd:bits=8,bucket=64+twophase+finite", Some("topk:k=3,block=32+ef")),
    ] {
        for ranks in 1..=9 {
            together(Threads::group(ranks).expect("a group"), |rank, group| {
                let (mut compressor, mut group) = (of(text, other), Watched::new(group));
                for step in 0..2 {
                    (group.sent, group.kinds) = (0, Default::default());
                    let mut x = gradient(1310, rank, step);
                    compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
                }
                assert_eq!(compressor.sent_bytes(rank, ranks).expect("valid"), Some(group.sent), "{text}: {ranks}");
                let two = group.kinds.contains_key("all_to_all");
                assert_eq!(two, ranks >= 4 || !text.contains("from=4"), "{text}: {ranks}");
            });
        }
    }
}

/// What an element of the mean may become, and how likely each is.
type Outcomes = Vec<(f64, f64)>;

/// The two levels around a value, as stochastic rounding has them: levels are `low`, and so many steps above and below.
fn rounded(value: f64, low: f64, step: f64) -> Outcomes {
    let place = (value - low) / step;
    let (below, up) = (low + place.floor() * step, place - place.floor());
    vec![(below, 1.0 - up), (below + step, up)]
}

/// Each of the first with each of the second, joined.
fn joined(first: &Outcomes, second: impl Fn(f64) -> Outcomes) -> Outcomes {
    let of = |(a, p): &(f64, f64)| second(*a).into_iter().map(|(b, q)| (b, p * q)).collect::<Outcomes>();
    first.iter().flat_map(of).collect()
}

/// Deviations of a sum of so many independent terms with this variance, each at most `most` from its mean, that
/// Bernstein's inequality allows: one side passes once in e^`alarms` runs.
fn bernstein(terms: f64, variance: f64, most: f64, alarms: f64) -> f64 {
    let third = most * alarms / 3.0;
    third + (third * third + 2.0 * alarms * terms * variance).sqrt()
}

/// Each element's mean is unbiased, and its second moment is the sum of what both draws add, to within what chance
/// allows: all checks of this function fail by chance once in 10^9 runs. Buckets' extremes are elements that no draw
/// changes, so the levels of both phases are known, and places between levels are multiples of 2^-16, so that the
/// probabilities of the draws are.
#[test]
fn the_mean_is_unbiased_and_its_second_moment_that_of_two_independent_draws() {
    let (n, steps, codecs, groups) = (256usize, 3000u64, ["qsgd:levels=2", "uniform:bits=1"], [2u32, 4]);
    let alarms = (1e9 * 2.0 * (2.0 * n as f64 + 1.0) * 4.0).ln();
    for (codec, ranks) in codecs.into_iter().flat_map(|codec| groups.map(|ranks| (codec, ranks))) {
        let recipe: Recipe = format!("{codec},bucket=32+noef+twophase").parse().expect("valid");
        // Levels are parts of the largest magnitude, or the ends of the bucket.
        let (low, step) = if codec.starts_with("qsgd") { (0.0, 0.5) } else { (-1.0, 2.0) };
        let x = |rank: u32| -> Vec<f32> {
            let value = |i: usize| match i % 32 {
                0 => 1.0,
                1 => -1.0,
                at => [0.125, -0.25, 0.625, 0.0, -0.875][(at + i / 32 + rank as usize) % 5],
            };
            (0..n).map(value).collect()
        };
        let xs: Vec<Vec<f32>> = (0..ranks).map(x).collect();
        let p = f64::from(ranks);
        let outcomes: Vec<Outcomes> = (0..n)
            .map(|i| {
                let none = vec![(0.0, 1.0)];
                let add = |sum: Outcomes, x: &Vec<f32>| {
                    joined(&sum, |s| rounded(x[i].into(), low, step).into_iter().map(|(v, q)| (s + v, q)).collect())
                };
                let sums = xs.iter().fold(none, add);
                joined(&sums, |s| rounded(s, low * p, step * p)).into_iter().map(|(s, q)| (s / p, q)).collect()
            })
            .collect();
        let means: Vec<f64> = (0..n).map(|i| xs.iter().map(|x| f64::from(x[i])).sum::<f64>() / p).collect();
        // The square of the distance from the mean: what is expected, its variance, and its largest distance from that.
        let squares: Vec<[f64; 3]> = outcomes
            .iter()
            .zip(&means)
            .map(|(outcomes, mean)| {
                let of = |value: &dyn Fn(f64) -> f64| {
                    outcomes.iter().map(|(v, q)| q * value((v - mean).powi(2))).sum::<f64>()
                };
                let expected = of(&|square| square);
                let likely = outcomes.iter().filter(|(_, q)| *q > 0.0);
                let most = likely.map(|(v, _)| ((v - mean).powi(2) - expected).abs()).fold(0.0, f64::max);
                [expected, of(&|square| (square - expected).powi(2)), most]
            })
            .collect();
        let found = together(Threads::group(ranks).expect("a group"), |rank, mut group| {
            let policy = Policy::new(recipe.clone()).expect("valid").small(0);
            let mut compressor = Compressor::with_policy(&policy, &[Tensor::new("a", [16, 16])], 78).expect("valid");
            let (mut sums, mut found) = (vec![0.0f64; n], vec![0.0f64; n]);
            for _ in 0..steps {
                let mut x = xs[rank as usize].clone();
                compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
                let square = |(v, mean): (&f32, &f64)| (f64::from(*v) - mean).powi(2);
                found.iter_mut().zip(x.iter().zip(&means).map(square)).for_each(|(sum, square)| *sum += square);
                sums.iter_mut().zip(&x).for_each(|(sum, v)| *sum += f64::from(*v));
            }
            (sums, found)
        });
        let ((sums, found), t) = (&found[0], steps as f64);
        for (index, ((sum, mean), [square, ..])) in sums.iter().zip(&means).zip(&squares).enumerate() {
            // No value is further from the mean than a level of either phase.
            let apart = bernstein(t, *square, step + step, alarms);
            assert!(
                (sum - t * mean).abs() <= apart,
                "{codec}, {ranks} ranks, element {index}: {sum}, not {}",
                t * mean
            );
        }
        for (index, (found, [expected, variance, most])) in found.iter().zip(&squares).enumerate() {
            let apart = bernstein(t, *variance, *most, alarms);
            assert!(
                (found - t * expected).abs() <= apart,
                "{codec}, {ranks} ranks, element {index}: {found}, {}",
                t * expected
            );
        }
        let [expected, variance] = [0, 1].map(|at| squares.iter().map(|square| square[at]).sum::<f64>());
        let most = squares.iter().map(|square| square[2]).fold(0.0, f64::max);
        let (all, apart) = (found.iter().sum::<f64>(), bernstein(t, variance, most, alarms));
        assert!((all - t * expected).abs() <= apart, "{codec}, {ranks} ranks: {all}, not {}", t * expected);
        // So near that half of what either phase adds would be seen.
        assert!(apart < 0.04 * t * expected, "{codec}, {ranks} ranks: {apart} of {}", t * expected);
        // And within the bound of both phases.
        let omega = recipe.promise(n).expect("valid").omega.expect("known");
        let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>();
        let of_ranks: f64 = xs.iter().map(|x| norm(&mut x.iter().map(|v| f64::from(*v)))).sum();
        let bound = (1.0 + omega) * omega / (p * p) * of_ranks + omega * norm(&mut means.iter().copied());
        assert!(expected <= bound, "{codec}, {ranks} ranks: {expected} is above {bound}");
    }
}

/// Residuals of worker and owner before the steps, and the state after them.
type Saved = ((Vec<f32>, Vec<f32>), Vec<u8>);

/// The residuals of owners are in the state: the same ranks go on with the bits of an uninterrupted run, others with
/// the same mass.
#[test]
fn a_state_has_the_owners_residual() {
    let text = "natural:bits=8+ef+twophase";
    let saved = OnceLock::new();
    let run = |ranks: u32, states: Option<&Vec<Vec<u8>>>, steps: std::ops::Range<u64>| {
        together(Threads::group(ranks).expect("a group"), |rank, mut group| {
            let mut compressor = of(text, None);
            if let Some(states) = states {
                compressor.restore(states, rank, ranks).expect("its own");
            }
            let start = (compressor.residual().expect("idle"), compressor.owner_residual().expect("idle"));
            for step in steps.clone() {
                let mut x = dyadic(1310, rank, step);
                compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
            }
            (start, compressor.state().expect("idle"))
        })
    };
    let states = |all: Vec<Saved>| -> Vec<Vec<u8>> { all.into_iter().map(|(_, s)| s).collect() };
    let saved = saved.get_or_init(|| states(run(4, None, 0..3)));
    let whole = states(run(4, None, 0..5));
    assert!(states(run(4, Some(saved), 3..5)) == whole, "the same ranks");
    // A rank that hands over its own state alone, as often as there are ranks, goes on as well.
    let alone = together(Threads::group(4).expect("a group"), |rank, mut group| {
        let mut compressor = of(text, None);
        compressor.restore(&vec![saved[rank as usize].clone(); 4], rank, 4).expect("its own");
        for step in 3..5 {
            compressor.exchange(&Device::cpu(), &mut group, &mut dyadic(1310, rank, step)).expect("it runs");
        }
        compressor.state().expect("idle")
    });
    assert!(alone == whole, "each rank's own state");
    // Two in each other's place: no residual is lost.
    let swapped: Vec<Vec<u8>> = [1, 0, 2, 3].map(|rank: usize| saved[rank].clone()).into();
    let mass = |all: &[Saved]| -> Vec<f64> {
        let of = |i: usize| all.iter().map(|((e, r), _)| f64::from(e[i]) + f64::from(r[i])).sum::<f64>();
        (0..1310).map(of).collect()
    };
    let expected = mass(&run(4, Some(saved), 3..3));
    for ranks in [1, 2, 3, 5, 7] {
        let seen = run(ranks, Some(saved), 3..4);
        assert!(mass(&seen) == expected, "{ranks} ranks");
        assert!(seen.iter().all(|((_, owner), _)| owner.iter().all(|r| *r == 0.0)), "no rank has another's piece");
    }
    // Handed over in another order, each residual is taken for a worker's.
    let turned: Vec<Vec<u8>> = (0..4).map(|rank| saved[(rank + 1) % 4].clone()).collect();
    assert!(mass(&run(4, Some(&turned), 3..4)) == expected, "another order");
    assert!(mass(&run(4, Some(&swapped), 3..4)) == expected, "two of them swapped");
    // Its bytes are looked at.
    let mut compressor = of(text, None);
    let mut bytes = saved[1].clone();
    let at = bytes.len() - 4 - 4 * (1310 / 4 / 64) * 64;
    bytes[at] ^= 1;
    compressor.restore(&[bytes], 0, 1).expect_err("damaged");
}

#[test]
fn another_group_is_refused_on_every_rank() {
    for (text, ranks) in [("qsgd:bits=8,bucket=32+ef+twophase", 3), ("qsgd:bits=8,bucket=32+ef+twophase:from=4", 2)] {
        let compressors = together(Threads::group(4).expect("four"), |rank, mut group| {
            let mut compressor = of(text, None);
            compressor.exchange(&Device::cpu(), &mut group, &mut gradient(1310, rank, 0)).expect("it runs");
            compressor
        });
        let errors = together(Threads::group(ranks).expect("fewer"), |rank, mut group| {
            let mut compressor = compressors[rank as usize].clone();
            let (mut x, state) = (gradient(1310, rank, 1), compressor.state().expect("idle"));
            let error = compressor.exchange(&Device::cpu(), &mut group, &mut x).expect_err("four before");
            assert!(x == gradient(1310, rank, 1) && compressor.state().expect("idle") == state);
            error
        });
        for error in errors {
            assert!(matches!(error, Error::Exchange(ExchangeError::Owner { of_ranks: 4, .. })), "{error:?}");
        }
    }
}

/// Wherever a group fails, a rank refuses or bytes are damaged: gradient, residuals and state are as before.
#[test]
fn a_failure_leaves_everything_as_it_was() {
    let text = "qsgd:bits=8,bucket=32+ef+twophase";
    let step = |fails: [u32; 2], short: bool| {
        let barrier = std::sync::Barrier::new(3);
        together(Threads::group(3).expect("three"), |rank, group| {
            let (mut compressor, mut group) = (of(text, None), Watched::new(group));
            compressor.exchange(&Device::cpu(), &mut group, &mut gradient(1310, rank, 0)).expect("it runs");
            let state = compressor.state().expect("idle");
            // A rank that fails early would end the first step of slower ones.
            barrier.wait();
            let mut x = gradient(1310, rank, 1);
            if rank == 1 {
                (group.calls, group.fails, group.damages) = (0, fails[0], fails[1]);
                x.truncate(if short { 7 } else { 1310 });
            }
            let before = x.clone();
            let done = compressor.exchange(&Device::cpu(), &mut group, &mut x);
            let same = x == before && compressor.state().expect("idle") == state;
            assert_ne!(same, done.is_ok(), "rank {rank}: {done:?}");
            done
        })
    };
    for fails in [1, 2, 3] {
        let done = step([fails, 0], false);
        assert!(done.iter().all(|done| matches!(done, Err(Error::Collective(_)))), "call {fails}: {done:?}");
    }
    let done = step([0, 0], true);
    assert!(matches!(done[1], Err(Error::Length { .. })), "{done:?}");
    let refused = |done: &Result<(), Error>| matches!(done, Err(Error::Exchange(ExchangeError::Refused { rank: 1 })));
    assert!(refused(&done[0]) && refused(&done[2]), "{done:?}");
    let damaged =
        |done: &Result<(), Error>| matches!(done, Err(Error::Exchange(ExchangeError::Damaged { rank: 2, .. })));
    let done = step([0, 2], false);
    assert!(refused(&done[0]) && damaged(&done[1]) && refused(&done[2]), "in the first phase all hear of it: {done:?}");
    let done = step([0, 3], false);
    assert!(
        done[0].is_ok() && damaged(&done[1]) && done[2].is_ok(),
        "in the second, others have what they need: {done:?}"
    );
}

#[test]
fn recipes_that_do_not_go_with_an_algorithm_are_refused() {
    for text in [
        "topk:0.1+gtopk",
        "topk:0.1+momentum=0.9+gtopk",
        "topk:0.1+ef:beta=0.5+gtopk",
        "topk:0.1+ef21+gtopk",
        "qsgd:bits=4,bucket=64+ef+gtopk",
        "powersgd:rank=2+gtopk",
        "none+gtopk",
        "none+twophase",
        "topk:0.1+ef+twophase",
        "powersgd:rank=2+twophase",
        "randomk:0.1+twophase",
        "sign:unit+vote+twophase",
        "rotate+qsgd:bits=4+twophase",
        "qsgd:bits=4,bucket=64+diana+twophase",
        "onebit+ef:gamma=2+twophase",
        "onebit+twophase:from=0",
        "topk:0.1+ef+gtopk+twophase",
        "onebit+twophase:from",
        "onebit+twophase:to=3",
        "topk:0.1+ef+gtopk:k=3",
    ] {
        text.parse::<Recipe>().expect_err(text);
    }
    for text in ["topk:0.1+ef+gtopk", "onebit+twophase", "qsgd:bits=4+momentum=0.5+twophase:from=7+finite"] {
        let recipe: Recipe = text.parse().expect(text);
        assert_eq!(recipe.to_string(), text);
        assert_ne!(recipe.algorithm(), Algorithm::Gather);
    }
}

#[cfg(feature = "wgpu")]
#[test]
fn a_device_s_memory_is_refused_by_name() {
    let Ok(wgpu) = gradwire::backend::wgpu::Wgpu::open() else { return };
    for text in ["topk:0.1+ef+gtopk", "onebit+twophase"] {
        let error = of(text, None).resident(&wgpu).expect_err(text).to_string();
        assert!(error.contains("gtopk and twophase"), "{error}");
    }
}
