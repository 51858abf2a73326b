//! Ranks that are threads: each operation against a plain computation. `failures` has what happens where ranks do not
//! agree.

mod background;
mod choose;
mod failures;
mod links;
mod run;
mod together;

use gradwire_collectives::{Collective, CollectiveError, Threads};

use run::{Outcome, group, on};

const SIZES: [u32; 5] = [1, 2, 3, 4, 8];
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
