//! Ranks that are threads: each operation against a plain computation, and what happens where ranks do not agree.

use std::sync::mpsc;
use std::time::Duration;

use gradwire_collectives::{Collective, CollectiveError, Threads};

const SIZES: [u32; 5] = [1, 2, 3, 4, 8];
/// No group that works takes nearly as long. A test that meets it has found a call that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `work` on every rank of a group, and gives what each rank gives.
fn on(group: Vec<Threads>, work: impl Fn(Threads) -> Outcome + Clone + Send + 'static) -> Vec<Outcome> {
    let (sender, receiver) = mpsc::channel();
    let ranks = group.len();
    for handle in group {
        let (sender, work, rank) = (sender.clone(), work.clone(), handle.rank() as usize);
        std::thread::spawn(move || sender.send((rank, work(handle))));
    }
    drop(sender);
    let mut outcomes: Vec<Option<Outcome>> = vec![None; ranks];
    while let Some(place) = outcomes.iter().position(Option::is_none) {
        match receiver.recv_timeout(PATIENCE) {
            Ok((rank, outcome)) => outcomes[rank] = Some(outcome),
            // A thread that panicked sends nothing.
            Err(mpsc::RecvTimeoutError::Disconnected) => outcomes[place] = Some(Ok(vec![b"panicked".to_vec()])),
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("rank {place} of {ranks} hangs"),
        }
    }
    outcomes.into_iter().flatten().collect()
}

type Outcome = Result<Vec<Vec<u8>>, CollectiveError>;

fn group(ranks: u32) -> Vec<Threads> {
    Threads::group(ranks).expect("a group")
}

/// What rank `from` has for rank `to`: lengths differ, and some are 0.
fn part(from: u32, to: u32) -> Vec<u8> {
    let len = [0, 5, 1, 300, 17][((3 * from + to) % 5) as usize];
    (0..len).map(|at: u32| (from * 31 + to * 7 + at) as u8).collect()
}

/// Values whose sum depends on the order of the additions.
fn values(rank: u32, len: usize) -> Vec<f32> {
    let value = |at: usize| ((at * 37 + rank as usize * 101) % 1009) as f32 - 504.3;
    (0..len).map(|at| value(at) * 10f32.powi(((at + rank as usize) % 9) as i32 - 4)).collect()
}

fn bits(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_bits().to_le_bytes()).collect()
}

/// The sum in the order of ranks.
fn sum(ranks: u32, len: usize) -> Vec<u8> {
    let mut sum = values(0, len);
    for rank in 1..ranks {
        sum.iter_mut().zip(values(rank, len)).for_each(|(sum, value)| *sum += value);
    }
    bits(&sum)
}

/// Every operation, twice with the same buffers, and all that came of it.
fn everything(mut group: Threads) -> Outcome {
    let (rank, ranks) = (group.rank(), group.ranks());
    let (mut all, mut from, mut theirs) = (vec![b"old".to_vec(); 11], Vec::new(), b"old".to_vec());
    let mut seen = Vec::new();
    for _ in 0..2 {
        group.all_gather(&part(rank, 0), &mut all)?;
        seen.extend(all.clone());
        let to: Vec<Vec<u8>> = (0..ranks).map(|to| part(rank, to)).collect();
        let to: Vec<&[u8]> = to.iter().map(Vec::as_slice).collect();
        group.all_to_all(&to, &mut from)?;
        seen.extend(from.clone());
        for len in [0, 1, 2, 1000] {
            let mut sums = values(rank, len);
            group.all_reduce_sum(&mut sums)?;
            seen.push(bits(&sums));
        }
        // Neighbours in pairs; the last one of an odd number stays out.
        let peer = rank ^ 1;
        if peer < ranks {
            group.exchange(peer, &part(rank, peer), &mut theirs)?;
            seen.push(theirs.clone());
        }
        for root in 0..ranks {
            let mut bytes = if rank == root { part(root, 9) } else { b"old".to_vec() };
            group.broadcast(root, &mut bytes)?;
            seen.push(bytes);
        }
    }
    Ok(seen)
}

/// What [`everything`] has to give.
fn plain(rank: u32, ranks: u32) -> Vec<Vec<u8>> {
    let mut seen: Vec<Vec<u8>> = (0..ranks).map(|from| part(from, 0)).collect();
    seen.extend((0..ranks).map(|from| part(from, rank)));
    seen.extend([0, 1, 2, 1000].map(|len| sum(ranks, len)));
    if rank ^ 1 < ranks {
        seen.push(part(rank ^ 1, rank));
    }
    seen.extend((0..ranks).map(|root| part(root, 9)));
    [seen.clone(), seen].concat()
}

#[test]
fn every_operation_gives_what_a_plain_computation_gives() {
    for ranks in SIZES {
        for (rank, seen) in (0..).zip(on(group(ranks), everything)) {
            assert_eq!(seen, Ok(plain(rank, ranks)), "rank {rank} of {ranks}");
        }
    }
}

#[test]
fn orders_of_arrival_change_no_bit() {
    for seed in 0..50 {
        for ranks in [3, 4] {
            let group = Threads::with_delays(ranks, seed).expect("a group");
            for (rank, seen) in (0..).zip(on(group, everything)) {
                assert_eq!(seen, Ok(plain(rank, ranks)), "rank {rank} of {ranks}, seed {seed}");
            }
        }
    }
}

#[test]
fn the_sum_of_one_test_does_depend_on_the_order() {
    let mut sum_back = values(3, 1000);
    for rank in (0..3).rev() {
        sum_back.iter_mut().zip(values(rank, 1000)).for_each(|(sum, value)| *sum += value);
    }
    assert_ne!(bits(&sum_back), sum(4, 1000));
}

#[test]
fn buffers_are_used_again() {
    let mut handle = group(1).remove(0);
    let mut all = vec![Vec::with_capacity(100)];
    let place = all[0].as_ptr();
    handle.all_gather(&[1; 100], &mut all).expect("a group of one");
    assert_eq!((all[0].as_ptr(), all), (place, vec![vec![1; 100]]));
}

#[test]
fn a_pointer_to_a_group_is_a_group() {
    fn ranks(group: impl Collective) -> u32 {
        group.ranks()
    }
    let mut handles = group(2);
    let group: &mut dyn Collective = &mut handles[0];
    assert_eq!(ranks(group), 2);
    let group: Box<dyn Collective> = Box::new(handles.remove(1));
    assert_eq!((group.rank(), ranks(group)), (1, 2));
}

#[test]
fn a_group_has_one_rank_at_least_and_not_too_many() {
    for got in [0, Threads::MOST + 1, u32::MAX] {
        let error = Threads::group(got).expect_err("no such group");
        assert_eq!(error, CollectiveError::Size { engine: "Threads", got, most: Threads::MOST });
        assert!(Threads::with_delays(got, 1).is_err());
    }
    assert_eq!(group(Threads::MOST).len(), 1024);
}

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
