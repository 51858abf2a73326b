//! Ranks that got different bytes in a step, and whom a refusal names.

use gradwire::{Compressor, Device, Error, ExchangeError};
use gradwire_collectives::Threads;

use crate::exchanges::Forged;
use crate::training::forging::Forging;
use crate::training::{HOST_ALONE, TEXTS, all, bits, finite, gradient, of, together};

/// Two steps, in the second of which rank 1 takes another value of rank 0 or of a sum; then what a third gives.
fn part(make: impl Fn() -> Compressor + Sync, what: &str) -> Option<ExchangeError> {
    let mut done = together(Threads::group(2).expect("two"), |rank, group| {
        let mut group = Forging { group, sent: None, takes: false };
        let mut compressor = make();
        let elements = compressor.elements();
        let mut step = |compressor: &mut Compressor, number, takes| {
            group.takes = takes;
            let mut x = gradient(elements, rank, number);
            compressor.exchange(&Device::cpu(), &mut group, &mut x).map(|()| bits(&x))
        };
        step(&mut compressor, 0, false).expect(what);
        let state = compressor.state().expect("idle");
        let second = step(&mut compressor, 1, rank == 1).expect(what);
        let before = compressor.state().expect("idle");
        let third = step(&mut compressor, 2, false);
        if third.is_err() {
            assert!(compressor.state().expect("idle") == before, "{what}");
            // From a state of before, the same group goes on.
            compressor.restore(&[&state], 0, 1).expect("its own state");
            step(&mut compressor, 1, false).expect(what);
            step(&mut compressor, 2, false).expect(what);
        }
        (second, third.err())
    });
    let (of_other, error) = done.remove(1);
    let (of_first, first_error) = done.remove(0);
    assert_ne!(of_first, of_other, "{what}: the means differ");
    match (first_error, error) {
        (None, None) => None,
        (Some(Error::Exchange(one)), Some(Error::Exchange(other))) if one == other => Some(one),
        errors => panic!("{what}: {errors:?}"),
    }
}

/// Where nothing but sums is exchanged, no heads say what was taken.
fn sums_alone(text: &str) -> bool {
    text.starts_with("none")
        || text.contains("randomk")
        || text.starts_with("powersgd") && !["qsgd", "float", "sign"].iter().any(|codec| text.contains(codec))
}

#[test]
fn means_that_differ_are_found_in_the_next_step_and_named_alike() {
    let parted = Some(ExchangeError::Parted { first: 0, rank: 1, step: 1 });
    for text in TEXTS.iter().chain(&HOST_ALONE) {
        let expected = if sums_alone(text) { None } else { parted.clone() };
        assert_eq!(part(|| of(text), text), expected, "{text}");
        if finite(text).is_some() {
            assert_eq!(part(|| finite(text).expect("valid"), text), parted, "{text} with finite");
        }
    }
    for (index, make) in all().into_iter().enumerate().skip(TEXTS.len()) {
        assert_eq!(part(make, "several recipes"), parted, "compressor {index}");
    }
}

#[test]
fn a_rank_that_was_restored_and_a_step_that_is_taken_back_are_no_parting() {
    for text in ["qsgd:bits=4,bucket=64+ef", "topk:0.02+ef+gtopk", "powersgd:rank=2+qsgd:bits=8,bucket=64+elias"] {
        together(Threads::group(2).expect("two"), |rank, mut group| {
            let mut compressor = of(text);
            let elements = compressor.elements();
            let mut step = |compressor: &mut Compressor, number| {
                compressor.exchange(&Device::cpu(), &mut group, &mut gradient(elements, rank, number)).expect(text);
            };
            (0..3).for_each(|number| step(&mut compressor, number));
            compressor.undo().expect("a step was made");
            step(&mut compressor, 2);
            if rank == 1 {
                let state = compressor.state().expect("idle");
                compressor.restore(&[state], 0, 1).expect("its own state");
            }
            (3..5).for_each(|number| step(&mut compressor, number));
        });
    }
}

/// A head of kind 1 of rank 1, which names this rank.
fn refusal(mine: &[u8], of: u32) -> Vec<u8> {
    let mut message = mine[..24].to_vec();
    message[5] = 1;
    message.extend(4u64.to_le_bytes());
    message.extend(of.to_le_bytes());
    message
}

#[test]
fn who_says_that_another_rank_refused_is_named() {
    let mut compressor = of("topk:0.01+ef");
    let mut x = gradient(compressor.elements(), 0, 0);
    for (of, error) in [
        (1, ExchangeError::Refused { rank: 1 }),
        (0, ExchangeError::Told { rank: 0, by: 1 }),
        (7, ExchangeError::Told { rank: 7, by: 1 }),
    ] {
        let mut group = Forged(|mine: &[u8]| refusal(mine, of));
        match compressor.exchange(&Device::cpu(), &mut group, &mut x) {
            Err(Error::Exchange(found)) => assert_eq!(found, error),
            other => panic!("{other:?}"),
        }
    }
}
