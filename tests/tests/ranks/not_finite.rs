//! Steps in which a gradient, or what a rank sends, is not finite.

use gradwire::{Compressor, Device, Error, ExchangeError};
use gradwire_collectives::Threads;

use crate::training::forging::Forging;
use crate::training::{HOST_ALONE, RUN, TEXTS, bits, finite, gradient, host as all, together};

/// What makes a gradient of the model not finite: a number, and the elements that it replaces.
fn spoils(elements: usize) -> [(f32, Vec<usize>); 6] {
    [
        (f32::NAN, vec![7]),
        (f32::INFINITY, vec![elements - 1]),
        // In a vector that goes uncompressed.
        (f32::NEG_INFINITY, vec![64 * 48 + 3]),
        (f32::INFINITY, vec![8000, 8001]),
        // More of them than a selection keeps.
        (f32::NEG_INFINITY, (0..elements).step_by(3).collect()),
        (f32::NAN, (0..elements).collect()),
    ]
}

/// What a compressor keeps: state, bytes of both residuals, and of the last step.
fn held(compressor: &Compressor) -> (Vec<u8>, [Vec<u32>; 2], u64) {
    let residuals = [compressor.residual(), compressor.owner_residual()].map(|all| bits(&all.expect("idle")));
    (compressor.state().expect("idle"), residuals, compressor.last_bytes())
}

#[test]
fn a_step_that_is_not_finite_on_one_rank_changes_no_state_on_any() {
    for ranks in 1..=3 {
        for make in all() {
            together(Threads::group(ranks).expect("ranks"), |rank, mut group| {
                let mut compressor = make();
                let what = format!("{:?}, rank {rank} of {ranks}", compressor.recipes()[0]);
                let is_plain = compressor.recipes().iter().all(|recipe| recipe.is_none());
                let elements = compressor.elements();
                for number in 0..2 {
                    let mut gradient = gradient(elements, rank, number);
                    compressor.exchange(&Device::cpu(), &mut group, &mut gradient).expect("it is finite");
                }
                for (case, (value, places)) in spoils(elements).into_iter().enumerate() {
                    let before = held(&compressor);
                    let steps = compressor.steps();
                    let mut step = gradient(elements, rank, 9);
                    if rank == case as u32 % ranks {
                        places.iter().for_each(|place| step[*place] = value);
                    }
                    compressor.exchange(&Device::cpu(), &mut group, &mut step).expect("it is skipped");
                    if is_plain {
                        assert!(places.iter().all(|place| !step[*place].is_finite()), "{what}, case {case}");
                    } else {
                        assert!(step.iter().all(|mean| mean.is_nan()), "{what}, case {case}");
                        assert!(held(&compressor).1 == before.1, "{what}, case {case}");
                    }
                    assert_eq!(compressor.steps(), steps + 1, "{what}");
                    compressor.undo().expect("a step was made, or skipped");
                    assert!(held(&compressor) == before, "{what}, case {case}");
                }
                let mut step = gradient(elements, rank, 2);
                compressor.exchange(&Device::cpu(), &mut group, &mut step).expect("it is finite");
                assert!(step.iter().all(|mean| mean.is_finite()), "{what}");
            });
        }
    }
}

#[test]
fn a_step_after_a_skipped_one_is_that_of_a_run_without_it() {
    // What draws nothing does not depend on the number of the step.
    for text in
        ["topk:0.01+ef", "powersgd:rank=2", "topk:0.05+ef21", "onebit+ef:beta=0.5,gamma=2", "topk:0.02+momentum=0.9"]
    {
        let run = |skips: bool| {
            together(Threads::group(2).expect("ranks"), |rank, mut group| {
                let mut compressor = crate::training::of(text);
                let mut means = Vec::new();
                for number in 0..4 {
                    if skips && number == 2 {
                        let mut infinite = gradient(compressor.elements(), rank, 50);
                        infinite[5 + rank as usize] = f32::INFINITY;
                        compressor.exchange(&Device::cpu(), &mut group, &mut infinite).expect("it is skipped");
                    }
                    let mut step = gradient(compressor.elements(), rank, number);
                    compressor.exchange(&Device::cpu(), &mut group, &mut step).expect("it is finite");
                    means.push(bits(&step));
                }
                (means, bits(&compressor.residual().expect("idle")))
            })
        };
        assert!(run(true) == run(false), "{text}");
    }
}

#[test]
fn with_finite_the_step_fails_on_every_rank_and_changes_nothing() {
    for text in TEXTS.iter().chain(&HOST_ALONE) {
        if finite(text).is_none() {
            continue;
        }
        for ranks in [1, 3] {
            together(Threads::group(ranks).expect("ranks"), |rank, mut group| {
                let mut compressor = finite(text).expect("a recipe");
                let elements = compressor.elements();
                let mut step = gradient(elements, rank, 0);
                compressor.exchange(&Device::cpu(), &mut group, &mut step).expect("it is finite");
                for (case, (value, places)) in spoils(elements).into_iter().enumerate() {
                    let before = held(&compressor);
                    let mut step = gradient(elements, rank, 9);
                    if rank == case as u32 % ranks {
                        places.iter().for_each(|place| step[*place] = value);
                    }
                    let given = bits(&step);
                    let error = compressor.exchange(&Device::cpu(), &mut group, &mut step).expect_err(text);
                    if rank == case as u32 % ranks {
                        assert!(matches!(error, Error::NotFinite { .. }), "{text}, case {case}: {error}");
                    } else {
                        assert!(
                            matches!(
                                error,
                                Error::Exchange(ExchangeError::Refused { .. } | ExchangeError::Told { .. })
                            ),
                            "{text}, case {case}: {error}"
                        );
                    }
                    assert!(bits(&step) == given && held(&compressor) == before, "{text}, case {case}");
                }
            });
        }
    }
}

#[test]
fn what_another_rank_forges_is_found_on_arrival() {
    for text in TEXTS.iter().chain(&HOST_ALONE).filter(|text| **text != "none") {
        for guarded in [false, true] {
            if guarded && finite(text).is_none() {
                continue;
            }
            together(Threads::group(2).expect("ranks"), |rank, group| {
                let mut group = Forging { group, sent: None, takes: false };
                let mut compressor = if guarded { finite(text).expect("valid") } else { crate::training::of(text) };
                let elements = compressor.elements();
                compressor
                    .exchange(&Device::cpu(), &mut group, &mut gradient(elements, rank, 0))
                    .expect("it is finite");
                group.sent = (rank == 1).then_some(f32::NAN);
                let before = held(&compressor);
                let mut step = gradient(elements, rank, 1);
                let given = bits(&step);
                let done = compressor.exchange(&Device::cpu(), &mut group, &mut step);
                if guarded {
                    let error = done.expect_err("finite refuses it");
                    let Error::Exchange(error) = error else { panic!("{text}: {error}") };
                    let refuses = matches!(error, ExchangeError::NotFinite { .. } | ExchangeError::NotFiniteSum { .. });
                    // In a tree and in two phases, one rank finds it and tells the others.
                    let told = HOST_ALONE.contains(text)
                        && matches!(error, ExchangeError::Refused { .. } | ExchangeError::Told { .. });
                    assert!(refuses || told, "{text}: {error}");
                    assert!(bits(&step) == given && held(&compressor) == before, "{text}");
                } else {
                    done.expect("the step is skipped");
                    assert!(step.iter().all(|mean| mean.is_nan()), "{text}");
                    compressor.undo().expect("a step was skipped");
                    assert!(held(&compressor) == before, "{text}");
                }
                group.sent = None;
                compressor.exchange(&Device::cpu(), &mut group, &mut gradient(elements, rank, 1)).expect("it goes on");
            });
        }
    }
}

#[test]
fn a_mean_is_finite_where_its_sum_is_not() {
    let two_phases = "uniform:bits=8,bucket=64+noef+twophase";
    for (text, ranks) in [("none", 2), ("none", 3), ("powersgd:rank=1", 2), ("powersgd:rank=1", 3), (two_phases, 3)] {
        together(Threads::group(ranks).expect("ranks"), |rank, mut group| {
            let mut compressor = Compressor::new(text, [vec![4, 4], vec![70_000]], RUN).expect("valid");
            let mut step = gradient(compressor.elements(), rank, 0);
            // In the vector, which goes uncompressed with factors.
            step[20..30].fill(3e38);
            compressor.exchange(&Device::cpu(), &mut group, &mut step).expect("it is finite");
            // A code of 8 bits is one of 256, twice.
            let most = if text == two_phases { 0.01 } else { 1e-6 };
            assert!(step[20..30].iter().all(|mean| (mean / 3e38 - 1.0).abs() < most), "{text}: {:?}", &step[20..30]);
        });
    }
}

#[test]
fn entries_that_are_drawn_have_a_finite_mean_where_their_sum_is_not() {
    together(Threads::group(2).expect("two"), |_, mut group| {
        let mut compressor = Compressor::new("randomk:0.5+noef", [[64, 64]], RUN).expect("valid");
        let mut step = vec![3e38; 4096];
        compressor.exchange(&Device::cpu(), &mut group, &mut step).expect("it is finite");
        let drawn = step.iter().filter(|mean| **mean == 3e38).count();
        assert_eq!((drawn, step.iter().filter(|mean| **mean == 0.0).count()), (2048, 2048));
    });
}
