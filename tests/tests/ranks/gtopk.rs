//! The tree of gTop-k, for any number of ranks.

use crate::exchanges::{Watched, dyadic, expect_mass, of};
use crate::training::{bits, gradient, together};
use gradwire::{Compressor, Device, Error, ExchangeError};
use gradwire_collectives::Threads;

const CLASSES: [(&str, Option<&str>); 7] = [
    ("topk:0.05+ef+gtopk", None),
    ("topk:k=3+ef+gtopk", None),
    ("topk:k=2,block=64+ef+gtopk", None),
    ("topk:above=6+ef+gtopk", None),
    ("topk:0.05+bf16+ef+gtopk", None),
    ("topk:0.01,warmup=4+ef+gtopk", None),
    ("topk:0.05+ef+gtopk", Some("topk:k=7+ef")),
];

/// The `k` largest magnitudes of each tensor, of equal ones the first; the rest in place of what was given.
fn select(values: &mut [f32], tensors: &[usize], k: usize) -> Vec<f32> {
    let (mut kept, mut from) = (vec![0.0; values.len()], 0);
    for elements in tensors {
        let mut order: Vec<usize> = (from..from + elements).collect();
        order.sort_by(|a, b| values[*b].abs().total_cmp(&values[*a].abs()).then(a.cmp(b)));
        for index in &order[..k.min(*elements)] {
            kept[*index] = std::mem::take(&mut values[*index]);
        }
        from += elements;
    }
    kept
}

/// The tree, one merge after another: rounds of pairs that are 1, 2, 4 apart, of whole vectors.
fn reference(residuals: &mut [Vec<f32>], gradients: &[Vec<f32>], tensors: &[usize], k: usize) -> Vec<f32> {
    let ranks = gradients.len();
    let mut held: Vec<Vec<f32>> = Vec::new();
    for (residual, gradient) in residuals.iter_mut().zip(gradients) {
        residual.iter_mut().zip(gradient).for_each(|(e, g)| *e += g);
        held.push(select(residual, tensors, k));
    }
    let mut apart = 1;
    while apart < ranks {
        for rank in (0..ranks - apart).step_by(2 * apart) {
            let mut sum: Vec<f32> = held[rank].iter().zip(&held[rank + apart]).map(|(a, b)| a + b).collect();
            held[rank] = select(&mut sum, tensors, k);
            residuals[rank].iter_mut().zip(sum).for_each(|(e, dropped)| *e += dropped);
        }
        apart *= 2;
    }
    held.swap_remove(0).iter().map(|sum| sum * (1.0 / ranks as f32)).collect()
}

#[test]
fn the_tree_is_that_of_a_sequential_reference() {
    for ranks in 1..=9u32 {
        let seen = together(Threads::group(ranks).expect("a group"), |rank, mut group| {
            let mut compressor = of("topk:k=20+ef+gtopk", None);
            let mut outputs = Vec::new();
            for step in 0..4 {
                let mut x = gradient(compressor.elements(), rank, step);
                compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
                outputs.push((x, compressor.residual().expect("idle")));
            }
            outputs
        });
        let tensors = [600, 210, 500];
        let mut residuals = vec![vec![0.0; 1310]; ranks as usize];
        for step in 0..4 {
            let gradients: Vec<_> = (0..ranks).map(|rank| gradient(1310, rank, step)).collect();
            let mean = reference(&mut residuals, &gradients, &tensors, 20);
            for (rank, outputs) in seen.iter().enumerate() {
                let (output, residual) = &outputs[step as usize];
                assert!(*output == mean, "mean of rank {rank} of {ranks}, step {step}");
                assert!(*residual == residuals[rank], "residual of rank {rank} of {ranks}, step {step}");
            }
        }
    }
}

#[test]
fn no_gradient_is_lost_with_any_number_of_ranks() {
    for (text, other) in CLASSES {
        // A gather multiplies each payload by 1/P, and is exact for powers of two alone.
        for ranks in (1..=9u32).filter(|ranks| other.is_none() || ranks.is_power_of_two()) {
            let seen = together(Threads::group(ranks).expect("a group"), |rank, mut group| {
                let mut compressor = of(text, other);
                let mut steps = Vec::new();
                for step in 0..5 {
                    let mut x = dyadic(compressor.elements(), rank, step);
                    let mut before = compressor.residual().expect("idle");
                    before.iter_mut().zip(&x).for_each(|(e, g)| *e += g);
                    compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
                    steps.push([before, x, compressor.residual().expect("idle")]);
                }
                steps
            });
            for step in 0..5 {
                let column = |at: usize| seen.iter().map(move |steps: &Vec<[Vec<f32>; 3]>| steps[step][at].clone());
                let [before, means, after] = [0, 1, 2].map(|at| column(at).collect::<Vec<_>>());
                assert!(means.iter().all(|mean| bits(mean) == bits(&means[0])), "{text}: {ranks} ranks differ");
                assert!(means[0].iter().any(|v| *v != 0.0), "{text}: something is sent");
                expect_mass(&before, &means[0], &after, ranks, 1.0 / 16.0, text);
            }
        }
    }
}

#[test]
fn a_rank_sends_the_bytes_of_the_formula() {
    for (text, other) in CLASSES.into_iter().filter(|(text, _)| !text.contains("above") && !text.contains("warmup")) {
        for ranks in 1..=9 {
            together(Threads::group(ranks).expect("a group"), |rank, group| {
                let (mut compressor, mut group) = (of(text, other), Watched::new(group));
                for step in 0..3 {
                    let mut x = gradient(compressor.elements(), rank, step);
                    let expected = compressor.sent_bytes(rank, ranks).expect("valid").expect("of fixed lengths");
                    group.sent = 0;
                    compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
                    assert_eq!(group.sent, expected, "{text}: rank {rank} of {ranks}, step {step}");
                }
            });
        }
    }
}

/// What a rank cannot encode, or cannot read, is told to all through the tree; nothing changes, and the group goes on.
#[test]
fn a_refusal_reaches_every_rank_and_changes_nothing() {
    for ranks in 2..=7 {
        for wrong in 0..ranks {
            let done = together(Threads::group(ranks).expect("a group"), |rank, mut group| {
                let mut compressor = of("topk:0.05+ef+gtopk", None);
                let mut step =
                    |compressor: &mut Compressor, x: &mut Vec<f32>| compressor.exchange(&Device::cpu(), &mut group, x);
                let mut x = gradient(1310, rank, 0);
                step(&mut compressor, &mut x).expect("it runs");
                let (state, mut short) = (compressor.state().expect("idle"), gradient(1310, rank, 1));
                let mut other = compressor.clone();
                if rank == wrong {
                    short.truncate(1000);
                }
                let before = short.clone();
                let error = step(&mut other, &mut short).expect_err("one is short");
                assert!(short == before && other.state().expect("idle") == state, "rank {rank} of {ranks}");
                let mut x = gradient(1310, rank, 1);
                step(&mut other, &mut x).expect("the group goes on");
                (error, x)
            });
            for (rank, (error, x)) in (0..).zip(&done) {
                match rank == wrong {
                    true => assert!(matches!(error, Error::Length { .. }), "{error:?}"),
                    false => assert!(
                        matches!(error, Error::Exchange(ExchangeError::Refused { rank } | ExchangeError::Told { rank, .. }) if *rank == wrong),
                        "{error:?}"
                    ),
                }
                assert!(*x == done[0].1);
            }
        }
    }
}

#[test]
fn a_damaged_selection_is_refused_on_every_rank() {
    let run = |damages| {
        together(Threads::group(4).expect("four"), |rank, group| {
            let (mut compressor, mut group) = (of("topk:0.05+ef+gtopk", None), Watched::new(group));
            // The first step gathers heads, as its first call.
            group.damages = if rank == 2 { damages } else { 0 };
            let mut x = gradient(1310, rank, 0);
            let done = compressor.exchange(&Device::cpu(), &mut group, &mut x);
            assert_eq!(group.kinds.get("exchange").copied().unwrap_or(0), [4, 2, 4, 2][rank as usize]);
            (done, x == gradient(1310, rank, 0), compressor.steps())
        })
    };
    // What rank 2 receives of rank 3: all hear of it.
    for (rank, (done, same, steps)) in run(2).into_iter().enumerate() {
        match rank {
            2 => assert!(matches!(done, Err(Error::Exchange(ExchangeError::Damaged { rank: 3, .. }))), "{done:?}"),
            // The root hears it of rank 2, and the others of the root.
            0 | 3 => assert!(matches!(done, Err(Error::Exchange(ExchangeError::Refused { rank: 2 }))), "{done:?}"),
            _ => assert!(matches!(done, Err(Error::Exchange(ExchangeError::Told { rank: 2, by: 0 }))), "{done:?}"),
        }
        assert!(same && steps == 0);
    }
    // What it receives of the result, it hands to rank 3; the others go on.
    for (rank, (done, same, steps)) in run(4).into_iter().enumerate() {
        assert_eq!((done.is_err(), same, steps == 0), (rank >= 2, rank >= 2, rank >= 2), "{rank}: {done:?}");
    }
}

#[test]
fn a_group_that_fails_leaves_gradient_and_residual() {
    for fails in 1..=4 {
        let barrier = std::sync::Barrier::new(5);
        together(Threads::group(5).expect("five"), |rank, group| {
            let (mut compressor, mut group) = (of("topk:0.05+ef+gtopk", Some("qsgd:bits=8+ef")), Watched::new(group));
            let mut x = gradient(1310, rank, 0);
            compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
            let state = compressor.state().expect("idle");
            // A rank that fails early would end the first step of slower ones.
            barrier.wait();
            (group.calls, group.fails) = (0, if rank == 0 { fails } else { 0 });
            let mut x = gradient(1310, rank, 1);
            let before = x.clone();
            match compressor.exchange(&Device::cpu(), &mut group, &mut x) {
                Err(error) => {
                    assert!(matches!(error, Error::Collective(_)), "{error:?}");
                    assert!(x == before && compressor.state().expect("idle") == state, "rank {rank}, call {fails}");
                }
                Ok(()) => assert!(rank != 0, "call {fails}"),
            }
        });
    }
}
