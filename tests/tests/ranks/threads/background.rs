//! Exchanges on a thread of their own: the bits of exchanges in turn, what happens where they fail, and that nothing
//! waits.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use gradwire::{Compressor, Device, Error, Policy, Tensor};
use gradwire_collectives::{Background, BackgroundError, Collective, CollectiveError, Threads};

use super::run::group;

/// No part that works takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(60);
/// Elements of each part.
const PARTS: [u64; 3] = [700, 64, 3000];

/// A compressor of every part, of a feedback, a selection with momentum, and factors.
fn compressors() -> Vec<Compressor> {
    let recipes = ["qsgd:bits=4,bucket=64+ef", "topk:0.1+momentum=0.5", "powersgd:rank=2+ef"];
    let of_part = |(part, recipe)| {
        let policy = Policy::new(recipe).expect("a recipe").small(0);
        let shape = vec![PARTS[part] / 4, 4];
        Compressor::with_policy(&policy, &[Tensor::new("w", shape)], 7 + part as u64).expect("a compressor")
    };
    recipes.into_iter().enumerate().map(of_part).collect()
}

fn gradient(rank: u32, part: usize, step: usize) -> Vec<f32> {
    let value = |at: u64| ((at * 29 + u64::from(rank) * 71 + part as u64 * 13 + step as u64 * 5) % 503) as f32 - 251.5;
    (0..PARTS[part]).map(value).collect()
}

pub(super) fn on_ranks<G: Collective + Send, T: Send>(ranks: Vec<G>, work: impl Fn(G) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|group| scope.spawn(|| work(group))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

fn background<G: Collective + Send + 'static>(group: G, parts: Vec<Compressor>) -> Background<G> {
    Background::new(Device::cpu(), group, parts).expect("a thread")
}

/// Means and states of some steps, with the order in which each step's parts go.
const ORDERS: [[usize; 3]; 4] = [[2, 1, 0], [0, 1, 2], [1, 2, 0], [2, 0, 1]];

pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn means_and_states_are_those_of_exchanges_in_turn() {
    for ranks in [1, 2, 5] {
        let in_turn = on_ranks(group(ranks), |mut group| {
            let (mut parts, mut seen) = (compressors(), Vec::new());
            for (step, order) in ORDERS.into_iter().enumerate() {
                for part in order {
                    let mut mine = gradient(group.rank(), part, step);
                    parts[part].exchange(&Device::cpu(), &mut group, &mut mine).expect("an exchange");
                    seen.push(bits(&mine));
                }
            }
            (seen, parts.iter().map(Compressor::state).collect::<Result<Vec<_>, _>>().expect("states"))
        });
        let delayed = Threads::with_delays(ranks, 3).expect("a group");
        let beside = on_ranks(delayed, |group| {
            let rank = group.rank();
            let (mut work, mut seen) = (background(group, compressors()), Vec::new());
            for (step, order) in ORDERS.into_iter().enumerate() {
                let mut gradients = [0, 1, 2].map(|part| gradient(rank, part, step));
                for part in order {
                    work.start(part, &mut gradients[part]).expect("it starts");
                    assert!(gradients[part].is_empty() && work.compressor(part).is_none());
                }
                // Each rank waits in an order of its own.
                let mut waits = order;
                waits.rotate_left(rank as usize % 3);
                for part in waits {
                    work.finish(part, &mut gradients[part]).expect("it ends");
                }
                seen.extend(order.map(|part| bits(&gradients[part])));
            }
            let (mut group, parts) = work.close().expect("all is finished");
            group.all_reduce_sum(&mut [1.0]).expect("the group works");
            assert!(matches!(work.close(), Err(BackgroundError::Ended)));
            (seen, parts.iter().map(Compressor::state).collect::<Result<Vec<_>, _>>().expect("states"))
        });
        assert_eq!(in_turn, beside, "{ranks} ranks");
    }
}

/// A group of one that begins nothing before it is told to.
#[derive(Debug)]
struct Gated {
    group: Threads,
    open: Receiver<()>,
    begun: Sender<()>,
}

impl Collective for Gated {
    fn rank(&self) -> u32 {
        0
    }

    fn ranks(&self) -> u32 {
        1
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.begun.send(()).expect("the test listens");
        self.open.recv_timeout(PATIENCE).expect("the caller goes on while this waits");
        self.group.all_gather(mine, all)
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.group.all_to_all(to, from)
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.group.all_reduce_sum(values)
    }

    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.group.exchange(peer, mine, theirs)
    }

    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.group.broadcast(root, bytes)
    }
}

/// A background whose exchanges wait; what lets one go on; what hears that one has begun.
fn gated() -> (Background<Gated>, Sender<()>, Receiver<()>) {
    let ((go, open), (begun, heard)) = (channel(), channel());
    let gated = Gated { group: group(1).remove(0), open, begun };
    (background(gated, compressors()), go, heard)
}

#[test]
fn the_caller_goes_on_while_an_exchange_is_under_way() {
    let (mut work, go, heard) = gated();
    let mut gradients = [0, 1].map(|part| gradient(0, part, 0));
    // The gate is shut until both are started, so that a start that waited would end the test by its patience.
    for part in [1, 0] {
        work.start(part, &mut gradients[part]).expect("it starts");
    }
    heard.recv_timeout(PATIENCE).expect("the first has begun");
    assert!(heard.try_recv().is_err(), "the second waits for the first");
    let error = work.close().expect_err("two are under way");
    assert!(matches!(error, BackgroundError::UnderWay { part: 0 }), "{error}");
    go.send(()).and_then(|()| go.send(())).expect("the group listens");
    for part in [0, 1] {
        work.finish(part, &mut gradients[part]).expect("it ends");
    }
    work.close().expect("all is finished");
}

#[test]
fn what_is_dropped_waits_for_nothing_and_leaves_out_what_has_not_begun() {
    let (mut work, go, heard) = gated();
    for part in [0, 1] {
        work.start(part, &mut gradient(0, part, 0)).expect("it starts");
    }
    heard.recv_timeout(PATIENCE).expect("the first has begun");
    drop(work);
    go.send(()).expect("the first is under way still");
    // The group goes, and with it what it would say of a second exchange.
    assert_eq!(heard.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
}

#[test]
fn wrong_calls_change_nothing() {
    let mut work = background(group(1).remove(0), compressors());
    let given = gradient(0, 0, 0);
    let mut mine = given.clone();
    let refused = |result: Result<(), BackgroundError>, text: &str| {
        let error = result.expect_err("it is refused").to_string();
        assert!(error.contains(text), "{error}");
    };
    refused(work.start(3, &mut mine), "no part 3");
    refused(work.finish(3, &mut mine), "there are 3");
    refused(work.finish(0, &mut mine), "start(0, ...) first");
    let mut other = given.clone();
    work.start(0, &mut other).expect("it starts");
    refused(work.start(0, &mut mine), "finish(0, ...) first");
    assert_eq!(mine, given);
    work.finish(0, &mut other).expect("it ends");
    refused(work.finish(0, &mut mine), "start(0, ...) first");
    assert_eq!(mine, given);
    work.close().expect("all is finished");
    refused(work.start(0, &mut mine), "no part 0");
}

/// Rank 1 refuses a NaN: the step fails on all ranks and changes nothing, and what is queued after it goes on.
#[test]
fn an_exchange_that_fails_gives_back_the_gradient() {
    let outcomes = on_ranks(group(3), |group| {
        let rank = group.rank();
        let policy = Policy::new("topk:0.1+ef+finite").expect("a recipe").small(0);
        let guarded = Compressor::with_policy(&policy, &[Tensor::new("w", [700])], 1).expect("a compressor");
        let mut work = background(group, vec![guarded, compressors().remove(1)]);
        let before = work.compressor(0).expect("it is idle").state().expect("a state");
        let mut given = gradient(rank, 0, 0);
        if rank == 1 {
            given[5] = f32::NAN;
        }
        let (mut refused, mut short, mut good) = (given.clone(), vec![1.0; 63], gradient(rank, 1, 0));
        work.start(0, &mut refused).and_then(|()| work.start(1, &mut good)).expect("both start");
        let error = work.finish(0, &mut refused).expect_err("one gradient has a NaN");
        assert!(matches!(error, BackgroundError::Exchange { part: 0, .. }), "{error}");
        assert_eq!(bits(&refused), bits(&given));
        assert_eq!(work.compressor(0).expect("it is idle").state().expect("a state"), before);
        work.finish(1, &mut good).expect("the next exchange works");
        work.start(0, &mut gradient(rank, 0, 1)).expect("it starts");
        let mut mean = Vec::new();
        work.finish(0, &mut mean).expect("it ends");
        // Behind another failure the group is gone, though this one is every rank's.
        let mut behind = gradient(rank, 0, 2);
        work.start(1, &mut short).and_then(|()| work.start(0, &mut behind)).expect("both start");
        let error = work.finish(1, &mut short).expect_err("an element too few");
        assert!(matches!(error, BackgroundError::Exchange { source: Error::Length { .. }, .. }), "{error}");
        assert_eq!(short, [1.0; 63]);
        let error = work.finish(0, &mut behind).expect_err("not tried").to_string();
        assert!(error.contains(&format!("rank {rank} has left the group")), "{error}");
        assert_eq!(behind, gradient(rank, 0, 2));
        assert!(matches!(work.close(), Err(BackgroundError::Ended)));
        (bits(&good), bits(&mean))
    });
    assert!(outcomes.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_rank_that_leaves_is_told_of_by_every_part() {
    let on_one = on_ranks(group(2), |group| {
        if group.rank() == 0 {
            return None;
        }
        let mut work = background(group, compressors());
        let mut gradients = [0, 1].map(|part| gradient(1, part, 0));
        for (part, gradient) in gradients.iter_mut().enumerate() {
            work.start(part, gradient).expect("it starts");
        }
        let errors =
            [0, 1].map(|part| work.finish(part, &mut gradients[part]).expect_err("rank 0 has left").to_string());
        assert_eq!(gradients, [0, 1].map(|part| gradient(1, part, 0)));
        Some(errors)
    });
    for (error, rank) in on_one[1].as_ref().expect("rank 1 saw errors").iter().zip([0, 1]) {
        assert!(error.contains(&format!("rank {rank} has left the group")), "{error}");
    }
}

#[test]
fn a_group_that_panics_ends_the_thread_and_hangs_nothing() {
    let (mut work, go, _heard) = gated();
    // The gate's other side is gone, which the group takes for the end of the test.
    drop(go);
    work.start(0, &mut gradient(0, 0, 0)).expect("it starts");
    let mut mean = Vec::new();
    assert!(matches!(work.finish(0, &mut mean), Err(BackgroundError::Ended)));
    let mut mine = gradient(0, 1, 0);
    assert!(matches!(work.start(1, &mut mine), Err(BackgroundError::Ended)));
    assert_eq!(mine, gradient(0, 1, 0));
    assert!(matches!(work.finish(0, &mut mean), Err(BackgroundError::Ended)));
}

/// From the second step on nothing is gathered of sums, and parts of one length look alike.
#[test]
fn a_part_that_fails_on_one_rank_alone_is_not_taken_for_the_next() {
    let failed = on_ranks(group(2), |group| {
        let rank = group.rank();
        let part = |run| Compressor::new("none", [[8]], run).expect("a compressor");
        let mut work = background(group, vec![part(1), part(2)]);
        let mut all = [vec![1.0; 8], vec![2.0; 8]];
        for step in 0..2 {
            // One element too few, on rank 1 in the second step.
            if (rank, step) == (1, 1) {
                all[0].pop();
            }
            for (part, gradient) in all.iter_mut().enumerate() {
                work.start(part, gradient).expect("it starts");
            }
            let done: Vec<bool> =
                all.iter_mut().enumerate().map(|(part, all)| work.finish(part, all).is_ok()).collect();
            if step == 1 {
                return done;
            }
            assert_eq!((done, &all), (vec![true, true], &[vec![1.0; 8], vec![2.0; 8]]));
        }
        Vec::new()
    });
    assert_eq!(failed, [[false, false], [false, false]]);
}
