//! What goes wrong with one rank, and what the others get.

use std::time::{Duration, Instant};

use gradwire::{Device, Error};
use gradwire_collectives::{Collective, CollectiveError, Nccl};

use super::stand_in::{Fault, LONG, SHORT, fault, has_code, id, on, settings};
use super::work;

/// Every operation of the group gives the error again, at once.
fn expect_poisoned(group: &mut Nccl, error: &CollectiveError) {
    let start = Instant::now();
    let (mut all, mut bytes) = (Vec::new(), Vec::new());
    assert_eq!(group.all_gather(&[1], &mut all).as_ref(), Err(error));
    let parts = vec![&[1u8][..]; group.ranks() as usize];
    assert_eq!(group.all_to_all(&parts, &mut all).as_ref(), Err(error));
    assert_eq!(group.all_reduce_sum(&mut [1.0]).as_ref(), Err(error));
    assert_eq!(group.broadcast(0, &mut bytes).as_ref(), Err(error));
    let peer = (group.rank() + 1) % group.ranks();
    assert_eq!(group.exchange(peer, &[1], &mut bytes).as_ref(), Err(error));
    assert!(start.elapsed() < Duration::from_secs(1), "an error that is known took {:?}", start.elapsed());
}

/// Makes a good step and then steps until one fails, on every rank. Gradient, residual and state are as before that.
///
/// Rank 1 does something wrong at an operation after the first step.
fn exchange_fails(kind: Fault, code: i32, text: &'static str) -> Vec<CollectiveError> {
    const RANKS: u32 = 3;
    // So many operations a step has at least; the fault is in the second or a later one.
    for operation in 7..12 {
        let id = id();
        fault(&id, 1, operation, kind, code);
        let outcomes = on(id, RANKS, SHORT, move |mut group| {
            let device = Device::cpu();
            let mut compressor = work::compressor(text).expect(text);
            for step in 0..20 {
                let before = compressor.state().expect("a state");
                let given = work::gradient(compressor.elements(), group.rank(), step);
                let mut gradient = given.clone();
                match compressor.exchange(&device, &mut group, &mut gradient) {
                    Ok(()) => {}
                    Err(Error::Collective(error)) => {
                        let after = compressor.state().expect("a state");
                        assert!(after == before && gradient == given, "{text}: a step that failed left its traces");
                        expect_poisoned(&mut group, &error);
                        return error;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            panic!("{text}: 20 steps without operation {operation}");
        });
        if operation == 11 {
            return outcomes;
        }
    }
    Vec::new()
}

const TEXTS: [&str; 3] = ["qsgd:bits=4,bucket=64+ef", "topk:0.05+ef+gtopk", "qsgd:bits=4,bucket=64+ef+twophase"];

#[test]
fn a_rank_that_hangs_stalls_the_others_until_their_deadlines() {
    for text in TEXTS {
        for error in exchange_fails(Fault::Hang, 0, text) {
            assert!(matches!(error, CollectiveError::Stalled { waited: SHORT, .. }), "{text}: {error}");
        }
    }
}

#[test]
fn a_code_of_nccl_comes_with_its_words_and_the_others_stall() {
    for kind in [Fault::Fail, Fault::Refuse] {
        for (rank, error) in exchange_fails(kind, 2, TEXTS[0]).into_iter().enumerate() {
            match rank {
                1 => assert!(has_code(&error, 2) && error.to_string().contains("unhandled system error"), "{error}"),
                _ => assert!(matches!(error, CollectiveError::Stalled { .. }), "{error}"),
            }
        }
    }
}

#[test]
fn a_rank_that_ends_is_a_remote_error_on_the_others() {
    for (rank, error) in exchange_fails(Fault::Lost, 0, TEXTS[0]).into_iter().enumerate() {
        match rank {
            1 => assert!(matches!(error, CollectiveError::Stalled { .. }), "{error}"),
            _ => assert!(has_code(&error, 6) && error.to_string().contains("remote process exited"), "{error}"),
        }
    }
}

#[test]
fn a_rank_that_does_not_open_the_group_stalls_the_others() {
    let start = Instant::now();
    let error = Nccl::open(&id(), 0, 2, &settings(SHORT)).expect_err("rank 1 does not come");
    assert!(matches!(&error, CollectiveError::Stalled { asked, .. } if asked == "opening the group"), "{error}");
    assert!(start.elapsed() < SHORT + Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn a_rank_that_drops_its_group_stalls_the_others() {
    let errors = on(id(), 2, SHORT, |mut group| {
        group.all_gather(&[1], &mut Vec::new()).expect("both take part");
        if group.rank() == 1 { None } else { group.all_reduce_sum(&mut [1.0]).err() }
    });
    assert!(matches!(errors[..], [Some(CollectiveError::Stalled { .. }), None]), "{errors:?}");
}

/// Every rank gets an error that is right, and the group is done for.
fn all_fail(
    ranks: u32,
    work: impl Fn(&mut Nccl) -> Result<(), CollectiveError> + Clone + Send + 'static,
    right: impl Fn(u32, &CollectiveError) -> bool,
) {
    let errors = on(id(), ranks, LONG, move |mut group| {
        let error = work(&mut group).expect_err("ranks that differ");
        expect_poisoned(&mut group, &error);
        error
    });
    for (rank, error) in (0..).zip(&errors) {
        assert!(right(rank, error), "rank {rank} of {ranks}: {error}");
    }
}

#[test]
fn operations_and_lengths_that_differ_are_a_mismatch_on_every_rank() {
    for ranks in [2, 3, 8] {
        let reduce = |group: &mut Nccl| group.all_reduce_sum(&mut vec![1.0; if group.rank() == 1 { 5 } else { 4 }]);
        all_fail(ranks, reduce, |_, error| {
            let text = error.to_string();
            matches!(error, CollectiveError::Mismatch { .. }) && text.contains("5 values") && text.contains("4 values")
        });
        let different = move |group: &mut Nccl| match group.rank() {
            1 => group.broadcast(1, &mut Vec::new()),
            _ => group.all_gather(&[1, 2], &mut Vec::new()),
        };
        all_fail(ranks, different, |_, error| matches!(error, CollectiveError::Mismatch { .. }));
        let roots = |group: &mut Nccl| group.broadcast(group.rank() / 2, &mut vec![1, 2, 3]);
        let roots = move |group: &mut Nccl| roots(group).and_then(|()| group.broadcast(group.rank(), &mut vec![]));
        all_fail(ranks, roots, |_, error| matches!(error, CollectiveError::Mismatch { .. }));
    }
}

#[test]
fn a_wrong_argument_of_one_rank_is_told_to_all() {
    for ranks in [2, 3] {
        let parts = move |group: &mut Nccl| {
            let parts = vec![&[1u8][..]; if group.rank() == 1 { 9 } else { ranks as usize }];
            group.all_to_all(&parts, &mut Vec::new())
        };
        all_fail(ranks, parts, |rank, error| match rank {
            1 => *error == CollectiveError::Parts { got: 9, ranks },
            _ => matches!(error, CollectiveError::Mismatch { rank: 1, found, .. } if found.contains("wrong argument")),
        });
        let root = |group: &mut Nccl| group.broadcast(group.ranks(), &mut Vec::new());
        all_fail(ranks, root, |_, error| *error == CollectiveError::Rank { got: ranks, ranks });
        let peer = |group: &mut Nccl| group.exchange(group.rank(), &[], &mut Vec::new());
        all_fail(ranks, peer, |rank, error| *error == CollectiveError::Rank { got: rank, ranks });
    }
}
