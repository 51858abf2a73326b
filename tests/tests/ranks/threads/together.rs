//! Steps in several parts on a thread of their own: made whole or not at all, whichever call fails on whichever rank.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};

use gradwire::{Compressor, Device, Policy, Tensor};
use gradwire_collectives::{BackgroundError, Collective, CollectiveError, Threads, Together};

use super::background::{bits, on_ranks};
use super::run::group;

/// Elements of each part.
const PARTS: [u64; 4] = [300, 64, 800, 10];
/// The order in which parts go.
const ORDER: [usize; 4] = [3, 1, 2, 0];

/// Feedback with a selection, factors, two phases with an owner's residual, and none.
fn compressors() -> Vec<Compressor> {
    let recipes = ["topk:0.1+momentum=0.5", "powersgd:rank=2", "qsgd:bits=4,bucket=32+ef+twophase", "none+finite"];
    let of_part = |(part, recipe): (usize, &str)| {
        let policy = Policy::new(recipe).expect("a recipe").small(0);
        let shape = vec![PARTS[part] / 2, 2];
        Compressor::with_policy(&policy, &[Tensor::new("w", shape)], 3 + part as u64).expect("a compressor")
    };
    recipes.into_iter().enumerate().map(of_part).collect()
}

fn gradients(rank: u32, step: u64) -> Vec<Vec<f32>> {
    let value = |at: u64| ((at * 29 + u64::from(rank) * 71 + step * 5) % 503) as f32 - 251.5;
    (0..).zip(PARTS).map(|(part, elements)| (0..elements).map(|at| value(at + 1000 * part)).collect()).collect()
}

/// Starts all parts, and finishes them.
fn step<G: Collective + Send + 'static>(
    work: &mut Together<G>,
    gradients: &mut [Vec<f32>],
) -> Result<(), BackgroundError> {
    ORDER.into_iter().try_for_each(|part| work.start(part, &gradients[part]))?;
    work.finish(gradients.iter_mut().map(Vec::as_mut_slice))
}

type Seen = (Vec<Vec<u32>>, Vec<Vec<u8>>);

fn seen<G: Collective + Send + 'static>(work: &Together<G>, gradients: &[Vec<f32>]) -> Seen {
    let state = |part| work.compressor(part).expect("no step is under way").state().expect("a state");
    (gradients.iter().map(|all| bits(all)).collect(), (0..PARTS.len()).map(state).collect())
}

/// A group whose nth call fails, and which counts them. At call 0 none does.
struct Failing {
    group: Threads,
    calls: Arc<AtomicU32>,
    fails: Arc<AtomicU32>,
    panics: bool,
}

impl Failing {
    fn call(&mut self, call: impl FnOnce(&mut Threads) -> Result<(), CollectiveError>) -> Result<(), CollectiveError> {
        if self.calls.fetch_add(1, Ordering::SeqCst) + 1 == self.fails.load(Ordering::SeqCst) {
            assert!(!self.panics, "a defect of the group");
            return Err(CollectiveError::Left { rank: 9, asked: "a test".into() });
        }
        call(&mut self.group)
    }
}

impl Collective for Failing {
    fn rank(&self) -> u32 {
        self.group.rank()
    }

    fn ranks(&self) -> u32 {
        self.group.ranks()
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.call(|group| group.all_gather(mine, all))
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.call(|group| group.all_to_all(to, from))
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.call(|group| group.all_reduce_sum(values))
    }

    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.call(|group| group.exchange(peer, mine, theirs))
    }

    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.call(|group| group.broadcast(root, bytes))
    }
}

fn failing(group: Threads, panics: bool) -> (Together<Failing>, Arc<AtomicU32>, Arc<AtomicU32>) {
    let (calls, fails) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let group = Failing { group, calls: calls.clone(), fails: fails.clone(), panics };
    (Together::new(Device::cpu(), group, compressors()).expect("a thread"), calls, fails)
}

#[test]
fn a_step_is_that_of_exchanges_in_turn() {
    for ranks in [1, 2, 4] {
        let in_turn = on_ranks(group(ranks), |mut group| {
            let (mut parts, mut all) = (compressors(), Vec::new());
            for step in 0..3 {
                let mut mine = gradients(group.rank(), step);
                for part in ORDER {
                    parts[part].exchange(&Device::cpu(), &mut group, &mut mine[part]).expect("an exchange");
                }
                all.push(mine.iter().map(|mean| bits(mean)).collect::<Vec<_>>());
            }
            (all, parts.iter().map(|part| part.state().expect("a state")).collect::<Vec<_>>())
        });
        let beside = on_ranks(Threads::with_delays(ranks, 5).expect("a group"), |group| {
            let rank = group.rank();
            let mut work = Together::new(Device::cpu(), group, compressors()).expect("a thread");
            let mut all = Vec::new();
            for number in 0..3 {
                let mut mine = gradients(rank, number);
                step(&mut work, &mut mine).expect("nothing fails");
                all.push(mine.iter().map(|mean| bits(mean)).collect::<Vec<_>>());
            }
            let (mut group, parts) = work.close().expect("all is finished");
            group.all_reduce_sum(&mut [1.0]).expect("the group works");
            (all, parts.iter().map(|part| part.state().expect("a state")).collect::<Vec<_>>())
        });
        assert_eq!(in_turn, beside, "{ranks} ranks");
    }
}

#[test]
fn a_step_is_made_whole_or_not_at_all() {
    for ranks in 1..=4u32 {
        let run = |fails: u32, which: u32| {
            let first_is_over = Barrier::new(ranks as usize);
            on_ranks(group(ranks), |group| {
                let rank = group.rank();
                let (mut work, calls, failing) = failing(group, false);
                step(&mut work, &mut gradients(rank, 0)).expect("nothing fails yet");
                // A failure ends calls of ranks that are behind.
                first_is_over.wait();
                calls.store(0, Ordering::SeqCst);
                failing.store(if rank == which { fails } else { 0 }, Ordering::SeqCst);
                let mut mine = gradients(rank, 1);
                let before = seen(&work, &mine);
                let done = step(&mut work, &mut mine);
                (done.is_ok(), calls.load(Ordering::SeqCst), before, seen(&work, &mine))
            })
        };
        let whole = run(0, 0);
        assert!(whole.iter().all(|(made, ..)| *made));
        for which in [0, ranks - 1] {
            for fails in 1..=whole[which as usize].1 {
                let all = run(fails, which);
                assert!(!all[which as usize].0, "call {fails} fails");
                for ((made, _, before, after), (_, _, _, right)) in all.iter().zip(&whole) {
                    assert!(after == if *made { right } else { before }, "{ranks}, call {fails} of {which}: {made}");
                }
            }
        }
    }
}

/// Rank 1 refuses a part: the step is taken back on all ranks, and the next one is what it would have been.
#[test]
fn a_part_that_one_rank_refuses_takes_the_step_back_on_all() {
    let run = |refuses: bool| {
        on_ranks(group(3), |group| {
            let rank = group.rank();
            let mut work = Together::new(Device::cpu(), group, compressors()).expect("a thread");
            step(&mut work, &mut gradients(rank, 0)).expect("all are finite");
            if refuses {
                let mut bad = gradients(rank, 1);
                bad[3][4] = if rank == 1 { f32::NAN } else { 0.0 };
                let before = seen(&work, &bad);
                let error = step(&mut work, &mut bad).expect_err("rank 1 refuses");
                assert!(matches!(error, BackgroundError::Exchange { part: 3, .. }), "{error}");
                assert_eq!(seen(&work, &bad), before);
            }
            let mut mine = gradients(rank, 2);
            step(&mut work, &mut mine).expect("all are finite");
            seen(&work, &mine)
        })
    };
    assert!(run(true) == run(false));
}

#[test]
fn wrong_calls_change_nothing() {
    let mut work = Together::new(Device::cpu(), group(1).remove(0), compressors()).expect("a thread");
    let mut mine = gradients(0, 0);
    let given = mine.clone();
    let refused = |result: Result<(), BackgroundError>, text: &str| {
        let error = result.expect_err("it is refused").to_string();
        assert!(error.contains(text), "{error}");
    };
    refused(work.start(4, &mine[0]), "no part 4");
    for part in [1, 2, 3] {
        work.start(part, &mine[part]).expect("it starts");
    }
    refused(work.start(1, &mine[1]), "finish(1, ...) first");
    assert!(work.compressor(0).is_none() && work.compressor_mut(0).is_none(), "a step is under way");
    refused(work.finish(mine.iter_mut().map(Vec::as_mut_slice)), "start(0, ...) first");
    refused(work.finish(mine.iter_mut().take(3).map(Vec::as_mut_slice)), "4 parts");
    refused(work.close().map(drop), "finish(1, ...) first");
    work.start(0, &mine[0]).expect("it starts");
    refused(work.finish(mine.iter_mut().map(|all| &mut all[1..])), "part 0 had 300 elements");
    assert_eq!(mine, given);
    work.finish(mine.iter_mut().map(Vec::as_mut_slice)).expect("all are there");
    assert!(mine != given && work.compressor(0).is_some());
    work.close().expect("all is finished");
}

#[test]
fn behind_a_panic_gradients_are_as_they_were() {
    let (mut work, calls, fails) = failing(group(1).remove(0), true);
    step(&mut work, &mut gradients(0, 0)).expect("nothing fails yet");
    let before = work.compressor(3).expect("idle").state().expect("a state");
    calls.store(0, Ordering::SeqCst);
    fails.store(4, Ordering::SeqCst);
    let mut mine = gradients(0, 1);
    // The panic comes while parts are started, or later.
    assert!(matches!(step(&mut work, &mut mine), Err(BackgroundError::Ended)));
    assert_eq!(mine, gradients(0, 1));
    // The part that was exchanged before the panic is taken back.
    assert_eq!(work.compressor(3).expect("idle").state().expect("a state"), before);
}

#[test]
fn a_part_that_no_thread_takes_any_more_takes_the_others_back() {
    let (mut work, calls, fails) = failing(group(1).remove(0), true);
    step(&mut work, &mut gradients(0, 0)).expect("nothing fails yet");
    let before = work.compressor(3).expect("idle").state().expect("a state");
    calls.store(0, Ordering::SeqCst);
    // Part 3 makes two calls, and part 1 the third.
    fails.store(3, Ordering::SeqCst);
    let mine = gradients(0, 1);
    for part in [3, 1] {
        work.start(part, &mine[part]).expect("the thread waits for parts");
    }
    // The thread drops the group last of all.
    while Arc::strong_count(&calls) > 1 {
        std::thread::yield_now();
    }
    assert!(matches!(work.start(2, &mine[2]), Err(BackgroundError::Ended)));
    assert_eq!(work.compressor(3).expect("idle").state().expect("a state"), before);
}
