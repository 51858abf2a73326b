//! Ranks that do not agree, and ranks that leave: an error on every rank, and no call that hangs.

use std::time::Duration;

use gradwire_collectives::{Collective, CollectiveError, Threads};

use super::run::{group, on};

/// Every rank runs `work`, which is not to succeed; then every operation gives the same error again, at once.
fn all_fail(ranks: u32, work: impl Fn(&mut Threads) -> Result<(), CollectiveError> + Clone + Send + 'static) {
    all_fail_with(ranks, work, |_| true);
}

fn all_fail_with(
    ranks: u32,
    work: impl Fn(&mut Threads) -> Result<(), CollectiveError> + Clone + Send + 'static,
    right: impl Fn(&CollectiveError) -> bool,
) {
    let again = move |mut group: Threads| {
        let Err(error) = work(&mut group) else { return Ok(vec![b"succeeded".to_vec()]) };
        let (mut all, mut bytes) = (Vec::new(), Vec::new());
        assert_eq!(group.all_gather(&[1], &mut all), Err(error.clone()));
        let parts = vec![&[1u8][..]; group.ranks() as usize];
        assert_eq!(group.all_to_all(&parts, &mut all), Err(error.clone()));
        assert_eq!(group.all_reduce_sum(&mut [1.0]), Err(error.clone()));
        assert_eq!(group.broadcast(0, &mut bytes), Err(error.clone()));
        let peer = (group.rank() + 1) % group.ranks();
        assert_eq!(group.exchange(peer, &[1], &mut bytes), Err(error.clone()));
        Err(error)
    };
    let outcomes = on(group(ranks), again);
    let first = outcomes[0].clone().expect_err("rank 0 fails");
    assert!(right(&first), "{first}");
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        assert_eq!(outcome, Err(first.clone()), "rank {rank} of {ranks}");
    }
}

#[test]
fn lengths_that_differ_are_a_mismatch_on_every_rank() {
    for ranks in [2, 3, 8] {
        let reduce = |group: &mut Threads| {
            let mut values = vec![1.0; if group.rank() == 1 { 5 } else { 4 }];
            group.all_reduce_sum(&mut values)
        };
        all_fail_with(ranks, reduce, |error| {
            let text = error.to_string();
            matches!(error, CollectiveError::Mismatch { .. }) && text.contains("5 values") && text.contains("4 values")
        });
    }
}

#[test]
fn different_operations_are_a_mismatch_on_every_rank() {
    for ranks in [2, 3, 8] {
        for odd in [0, ranks - 1] {
            let work = move |group: &mut Threads| match group.rank() == odd {
                true => group.broadcast(odd, &mut Vec::new()),
                false => group.all_gather(&[1, 2], &mut Vec::new()),
            };
            all_fail_with(ranks, work, |error| matches!(error, CollectiveError::Mismatch { .. }));
        }
        let work = move |group: &mut Threads| match group.rank() == 0 {
            true => group.exchange(1, &[], &mut Vec::new()),
            false => group.all_reduce_sum(&mut [1.0]),
        };
        all_fail_with(ranks, work, |error| matches!(error, CollectiveError::Mismatch { .. }));
    }
}

#[test]
fn different_roots_are_a_mismatch_on_every_rank() {
    for ranks in [2, 3, 8] {
        all_fail_with(
            ranks,
            |group| {
                group
                    .broadcast(group.rank() / 2, &mut vec![1, 2, 3])
                    .and_then(|()| group.broadcast(group.rank(), &mut vec![]))
            },
            |error| matches!(error, CollectiveError::Mismatch { .. }),
        );
    }
}

#[test]
fn exchanges_in_a_circle_are_a_mismatch_and_not_a_deadlock() {
    for ranks in [3, 4, 8] {
        let circle = |group: &mut Threads| {
            let next = (group.rank() + 1) % group.ranks();
            group.exchange(next, &[1], &mut Vec::new())
        };
        all_fail_with(ranks, circle, |error| matches!(error, CollectiveError::Mismatch { .. }));
    }
}

#[test]
fn an_exchange_with_a_rank_that_looks_elsewhere_is_no_deadlock() {
    // Rank 0 asks for 1, which asks for 2, which asks for 1 and has it; then 1 leaves.
    let outcomes = on(group(3), |mut group: Threads| {
        let peer = [1, 2, 1][group.rank() as usize];
        let mut theirs = Vec::new();
        group.exchange(peer, &[group.rank() as u8], &mut theirs).map(|()| vec![theirs])
    });
    assert_eq!(outcomes[1..], [Ok(vec![vec![2]]), Ok(vec![vec![1]])]);
    assert!(matches!(outcomes[0], Err(CollectiveError::Left { rank: 1, .. })), "{outcomes:?}");
}

#[test]
fn ranks_that_are_not_in_the_group_are_refused_on_every_rank() {
    for ranks in [2, 3, 8] {
        let wrong = CollectiveError::Rank { got: ranks, ranks };
        let work = move |group: &mut Threads| match group.rank() {
            0 => group.exchange(group.ranks(), &[1], &mut Vec::new()),
            _ => group.all_gather(&[1], &mut Vec::new()),
        };
        all_fail_with(ranks, work, |error| *error == wrong);
        all_fail_with(ranks, |group| group.broadcast(group.ranks(), &mut Vec::new()), |error| *error == wrong);
        let work = move |group: &mut Threads| match group.rank() {
            1 => group.exchange(1, &[1], &mut Vec::new()),
            _ => group.broadcast(0, &mut Vec::new()),
        };
        all_fail_with(ranks, work, |error| *error == CollectiveError::Rank { got: 1, ranks });
    }
    let mut alone = group(1).remove(0);
    assert_eq!(alone.exchange(0, &[], &mut Vec::new()), Err(CollectiveError::Rank { got: 0, ranks: 1 }));
}

#[test]
fn parts_are_one_per_rank() {
    for (ranks, got) in [(2, 0), (2, 3), (3, 2), (8, 9)] {
        let work = move |group: &mut Threads| {
            let parts = vec![&[1u8][..]; if group.rank() == 1 { got } else { ranks as usize }];
            group.all_to_all(&parts, &mut Vec::new())
        };
        all_fail_with(ranks, work, |error| *error == CollectiveError::Parts { got, ranks });
    }
}

#[test]
fn a_rank_that_leaves_is_named_on_every_other_rank() {
    type Work = fn(&mut Threads) -> Result<(), CollectiveError>;
    let works: [Work; 5] = [
        |group| group.all_gather(&[1], &mut Vec::new()),
        |group| group.all_to_all(&vec![&[1u8][..]; group.ranks() as usize], &mut Vec::new()),
        |group| group.all_reduce_sum(&mut [1.0; 10]),
        |group| group.exchange(1, &[], &mut Vec::new()),
        |group| group.broadcast(0, &mut vec![1]),
    ];
    for ranks in [2, 3, 8] {
        for work in works {
            for panics in [false, true] {
                let outcomes = on(group(ranks), move |mut group: Threads| {
                    let first = group.all_gather(&[], &mut Vec::new());
                    if group.rank() == 1 {
                        // The hook would print the panic, which is meant.
                        if panics {
                            std::panic::resume_unwind(Box::new("meant"));
                        }
                        return Ok(Vec::new());
                    }
                    // A rank that is slow may still wait in the first operation when a fast one is told in the second.
                    let later = (0..3).map(|_| work(&mut group)).map(|done| done.expect_err("rank 1 is gone"));
                    for error in later.chain(first.err()) {
                        assert!(matches!(error, CollectiveError::Left { rank: 1, .. }), "{error}");
                    }
                    Ok(vec![b"told".to_vec()])
                });
                for (rank, outcome) in outcomes.into_iter().enumerate() {
                    assert!(rank == 1 || outcome == Ok(vec![b"told".to_vec()]), "rank {rank} of {ranks}: {outcome:?}");
                }
            }
        }
    }
}

#[test]
fn ranks_may_end_at_different_times() {
    // Rank 0 is done long before the others take what it gave.
    for _ in 0..50 {
        let outcomes = on(group(4), |mut group: Threads| {
            let (rank, mut all) = (group.rank(), Vec::new());
            group.all_gather(&[rank as u8], &mut all)?;
            if rank >= 2 {
                std::thread::sleep(Duration::from_micros(300));
                group.exchange(5 - rank, &[], &mut Vec::new())?;
            }
            Ok(all)
        });
        assert_eq!(outcomes, vec![Ok(vec![vec![0], vec![1], vec![2], vec![3]]); 4]);
    }
}

#[test]
fn a_group_with_delays_fails_as_quickly() {
    for seed in 0..20 {
        let outcomes = on(Threads::with_delays(4, seed).expect("a group"), |mut group: Threads| {
            let mut values = vec![1.0; group.rank() as usize / 3];
            group.all_reduce_sum(&mut values).map(|()| Vec::new())
        });
        assert!(outcomes.iter().all(|o| matches!(o, Err(CollectiveError::Mismatch { .. }))), "{outcomes:?}");
    }
    all_fail(4, |group| {
        group.exchange(group.rank() ^ 2, &[], &mut Vec::new()).and(group.broadcast(7, &mut Vec::new()))
    });
}

/// Numbers that look random: a linear congruential generator, of which the upper half is used.
fn draw(state: &mut u64, below: u32) -> u32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*state >> 33) % u64::from(below)) as u32
}

/// One of the operations, with arguments that may be wrong.
fn any(group: &mut Threads, (kind, number): (u32, u32)) -> Result<(), CollectiveError> {
    let (mut many, mut one) = (Vec::new(), vec![number as u8]);
    match kind {
        0 => group.all_gather(&[1; 3][..(number % 4) as usize], &mut many),
        1 => group.all_to_all(&vec![&[1u8][..]; group.ranks() as usize], &mut many),
        2 => group.all_reduce_sum(&mut [1.0; 4][..(number % 5) as usize]),
        3 => match group.rank() ^ 1 {
            peer if peer < group.ranks() => group.exchange(peer, &[1], &mut one),
            _ => Ok(()),
        },
        4 => group.broadcast(number % group.ranks(), &mut one),
        // What no program should do.
        5 => group.exchange(number % (group.ranks() + 1), &[2], &mut one),
        6 => group.broadcast(number, &mut one),
        _ => group.all_to_all(&vec![&[1u8][..]; number as usize], &mut many),
    }
}

#[test]
fn programs_that_differ_in_any_way_end_on_every_rank() {
    let (mut failed, seeds) = (0, 600);
    for seed in 0..seeds {
        let mut state = seed;
        let ranks = 2 + draw(&mut state, 4);
        let program: Vec<(u32, u32)> = (0..6).map(|_| (draw(&mut state, 5), draw(&mut state, 7))).collect();
        let mut programs = vec![program; ranks as usize];
        // None to three operations are other ones, are left out, or come twice.
        for _ in 0..draw(&mut state, 4) {
            let (rank, at) = (draw(&mut state, ranks) as usize, draw(&mut state, 4) as usize);
            match draw(&mut state, 3) {
                0 => programs[rank][at] = (draw(&mut state, 8), draw(&mut state, 7)),
                1 => drop(programs[rank].remove(at)),
                _ => {
                    let twice = programs[rank][at];
                    programs[rank].insert(at, twice);
                }
            }
        }
        let same = programs.iter().all(|program| *program == programs[0]);
        let group = if seed % 2 == 0 { group(ranks) } else { Threads::with_delays(ranks, seed).expect("a group") };
        let outcomes = on(group, move |mut group: Threads| {
            let program = &programs[group.rank() as usize];
            program.iter().try_for_each(|operation| any(&mut group, *operation)).map(|()| vec![b"done".to_vec()])
        });
        for outcome in &outcomes {
            match outcome {
                Ok(done) => assert_eq!(*done, [b"done"], "seed {seed}"),
                Err(error) => {
                    assert!(!same && !matches!(error, CollectiveError::Engine { .. }), "seed {seed}: {error}")
                }
            }
        }
        failed += u32::from(outcomes.iter().any(Result::is_err));
    }
    assert!(failed > 200 && u64::from(failed) < seeds, "{failed} of {seeds} programs failed");
}

#[test]
fn a_rank_that_is_late_is_named_and_the_group_ends() {
    use std::sync::Barrier;

    // Rank 0 waits for rank 1, which waits for rank 2.
    let deadline = Duration::from_millis(50);
    let group = Threads::with_deadline(3, deadline).expect("a group");
    let told = Barrier::new(3);
    let outcomes: Vec<Result<(), CollectiveError>> = std::thread::scope(|scope| {
        let told = &told;
        let run = move |mut group: Threads| {
            let outcome = match group.rank() {
                2 => Ok(()),
                _ => group.all_reduce_sum(&mut [1.0; 3]),
            };
            told.wait();
            // Whoever comes after the deadline gets the error of those who waited.
            outcome.and_then(|()| group.all_gather(&[1], &mut Vec::new()))
        };
        let threads: Vec<_> = group.into_iter().map(|group| scope.spawn(move || run(group))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    });
    for outcome in outcomes {
        let late = CollectiveError::Late { rank: 2, asked: String::new(), waited: deadline };
        let CollectiveError::Late { rank, waited, .. } = outcome.expect_err("rank 2 is late") else {
            panic!("another error than {late}")
        };
        assert_eq!((rank, waited), (2, deadline));
    }
}
