//! Links that are throttled, and what a measurement of them says. A busy machine makes every time longer and none
//! shorter, so that no bound from above is tested.

use std::time::{Duration, Instant};

use gradwire_collectives::{Collective, CollectiveError, Link, Threads, ping};

use super::run::{Outcome, group, on};
use super::{SIZES, everything, plain};

const MS: Duration = Duration::from_millis(1);

fn throttled(ranks: u32, bytes_per_second: u64, latency: Duration) -> Vec<Threads> {
    Threads::throttled(ranks, Link::new(bytes_per_second, latency).expect("a link")).expect("a group")
}

#[test]
fn slow_links_change_no_bit() {
    for ranks in SIZES {
        for (rank, seen) in (0..).zip(on(throttled(ranks, 10_000_000, MS / 10), everything)) {
            assert_eq!(seen, Ok(plain(rank, ranks)), "rank {rank} of {ranks}");
        }
    }
}

/// A rank's three messages leave one after another; a sum is two rounds of messages of a quarter each.
#[test]
fn operations_take_what_the_links_take() {
    let gather = |mut group: Threads| {
        let start = Instant::now();
        group.all_gather(&[1; 4000], &mut Vec::new())?;
        Ok(vec![u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX).to_le_bytes().to_vec()])
    };
    let sum = |mut group: Threads| {
        let start = Instant::now();
        group.all_reduce_sum(&mut [1.0; 4000])?;
        Ok(vec![u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX).to_le_bytes().to_vec()])
    };
    let most = |outcomes: Vec<Outcome>| {
        let micros = |outcome: Outcome| outcome.expect("a group")[0].as_chunks::<8>().0[0];
        outcomes.into_iter().map(|outcome| u64::from_le_bytes(micros(outcome))).max().expect("a rank")
    };
    // 3 * 4000 bytes at 1 byte per microsecond, and 5 milliseconds.
    assert!(most(on(throttled(4, 1_000_000, 5 * MS), gather)) >= 17_000);
    // Twice 3 * 4000 bytes, and twice 5 milliseconds.
    assert!(most(on(throttled(4, 1_000_000, 5 * MS), sum)) >= 34_000);
}

/// The slower rank began first, and so waits for a whole message of the other.
#[test]
fn a_ping_is_never_faster_than_its_link() {
    let (sizes, link) = ([0, 1000, 20_000], Link::new(1_000_000, 2 * MS).expect("a link"));
    for ranks in [2, 3] {
        let outcomes = on(throttled(ranks, 1_000_000, 2 * MS), move |mut group: Threads| {
            let pings = ping(&mut group, &sizes, 3)?;
            let bytes = |ping: &gradwire_collectives::Ping| {
                assert_eq!(ping.seconds.len(), 3);
                ping.seconds.iter().flat_map(|seconds| seconds.to_le_bytes()).collect()
            };
            assert!(pings.iter().map(|ping| ping.bytes).eq(sizes));
            Ok(pings.iter().map(bytes).collect())
        });
        assert!(outcomes.iter().all(|outcome| outcome == &outcomes[0]), "all ranks know the same");
        for (size, seconds) in sizes.iter().zip(outcomes[0].as_ref().expect("a group")) {
            let least = link.alone(*size as u64).as_secs_f64();
            let seconds = seconds.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
            assert!(seconds.clone().all(|seconds| seconds >= least), "{size} bytes: {:?}", seconds.collect::<Vec<_>>());
        }
    }
}

#[test]
fn one_rank_has_no_link() {
    let alone = ping(&mut group(1)[0], &[1], 1);
    assert_eq!(alone, Err(CollectiveError::Rank { got: 1, ranks: 1 }));
}
