//! Steps that are taken back, and steps in several messages of which one fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;

use gradwire::{Collective, CollectiveError, Compressor, Device, Error, ExchangeError, MessageError, Policy, Tensor};
use gradwire_collectives::Threads;

use crate::training::{RUN, bits, gradient, host as all, together};

/// A group whose nth call fails on this rank, before it is made or after it.
struct Any {
    group: Threads,
    calls: u32,
    fails: u32,
    behind: bool,
}

impl Any {
    fn new(group: Threads) -> Self {
        Self { group, calls: 0, fails: u32::MAX, behind: false }
    }

    fn call(&mut self, call: impl FnOnce(&mut Threads) -> Result<(), CollectiveError>) -> Result<(), CollectiveError> {
        self.calls += 1;
        let fails = self.calls == self.fails;
        if !fails || self.behind {
            call(&mut self.group)?;
        }
        if fails { Err(CollectiveError::Left { rank: 9, asked: "a test".into() }) } else { Ok(()) }
    }
}

impl Collective for Any {
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

/// What a compressor holds: state, residuals, bytes of the last step.
fn held(compressor: &Compressor) -> (Vec<u8>, Vec<u32>, Vec<u32>, u64) {
    let residuals = [compressor.residual(), compressor.owner_residual()].map(|all| bits(&all.expect("idle")));
    let [residual, owner] = residuals;
    (compressor.state().expect("idle"), residual, owner, compressor.last_bytes())
}

#[test]
fn a_step_that_is_taken_back_leaves_no_trace() {
    for ranks in 1..=4 {
        for make in all() {
            let agree = together(Threads::group(ranks).expect("ranks"), |rank, mut group| {
                let mut compressor = make();
                let what = format!("{:?}, {ranks} ranks", compressor.recipes()[0]);
                let mut step = |compressor: &mut Compressor, step| {
                    let mut gradient = gradient(compressor.elements(), rank, step);
                    compressor.exchange(&Device::cpu(), &mut group, &mut gradient).expect("it runs");
                    bits(&gradient)
                };
                assert!(matches!(compressor.undo(), Err(Error::Exchange(ExchangeError::NothingToUndo))));
                let mut means = Vec::new();
                // The first step is the one in which owners and factors begin.
                for number in 0..3 {
                    let before = held(&compressor);
                    // Another gradient, so that what is left of it shows.
                    step(&mut compressor, number + 100);
                    assert!(compressor.clone().undo().is_err(), "a copy has nothing to take back");
                    compressor.undo().expect("a step was made");
                    assert!(held(&compressor) == before, "{what}, step {number}");
                    assert!(matches!(compressor.undo(), Err(Error::Exchange(ExchangeError::NothingToUndo))));
                    means.push(step(&mut compressor, number));
                }
                (means, held(&compressor))
            });
            let straight = together(Threads::group(ranks).expect("ranks"), |rank, mut group| {
                let mut compressor = make();
                let mut step = |step| {
                    let mut gradient = gradient(compressor.elements(), rank, step);
                    compressor.exchange(&Device::cpu(), &mut group, &mut gradient).expect("it runs");
                    bits(&gradient)
                };
                let means: Vec<_> = (0..3).map(&mut step).collect();
                (means, held(&compressor))
            });
            for ((means, end), (straight, straight_end)) in agree.iter().zip(&straight) {
                assert!(means == straight, "{:?}, {ranks} ranks", make().recipes()[0]);
                // A step that asks whether ranks agree has sent a message more.
                assert!(end.0 == straight_end.0 && end.1 == straight_end.1 && end.2 == straight_end.2);
            }
        }
    }
}

#[test]
fn a_state_that_was_replaced_has_nothing_to_take_back() {
    let mut group = Threads::group(1).expect("one rank").remove(0);
    let mut made = || {
        let mut compressor = Compressor::new("topk:0.1+ef", [[64, 64]], RUN).expect("valid");
        compressor.exchange(&Device::cpu(), &mut group, &mut gradient(4096, 0, 0)).expect("it runs");
        compressor
    };
    let replaced: [fn(&mut Compressor); 4] = [
        |compressor| compressor.clear_residual().expect("idle"),
        |compressor| compressor.restore(&[compressor.state().expect("idle")], 0, 1).expect("its own"),
        |compressor| {
            let mut group = Threads::group(1).expect("one rank").remove(0);
            compressor.exchange(&Device::cpu(), &mut group, &mut [1.0]).expect_err("an element alone");
        },
        |compressor| *compressor = compressor.clone(),
    ];
    for replace in replaced {
        let mut compressor = made();
        replace(&mut compressor);
        let before = held(&compressor);
        assert!(matches!(compressor.undo(), Err(Error::Exchange(ExchangeError::NothingToUndo))));
        assert!(held(&compressor) == before);
    }
    let named = || {
        let policy = Policy::new("topk:0.1+ef").expect("valid").small(0);
        Compressor::with_policy(&policy, &[Tensor::new("a", [64, 64])], RUN).expect("valid")
    };
    let (mut first, other) = (named(), named());
    first.exchange(&Device::cpu(), &mut group, &mut gradient(4096, 0, 0)).expect("it runs");
    first.take_over(&[&other]).expect("the same tensor");
    assert!(matches!(first.undo(), Err(Error::Exchange(ExchangeError::NothingToUndo))));
}

/// Messages of a plan, by recipe, each of tensors of its own.
const PLANS: [[&str; 3]; 6] = [
    ["qsgd:bits=4,bucket=64+ef", "none", "topk:0.1+momentum=0.5"],
    ["powersgd:rank=2", "qsgd:bits=4,bucket=64+ef+twophase", "topk:0.1+ef+gtopk"],
    ["topk:0.1+ef+gtopk", "powersgd:rank=1+momentum=0.5", "onebit+ef21"],
    ["qsgd:bits=8,bucket=64+diana", "randomk:0.1", "qsgd:bits=4,bucket=64+ef+twophase"],
    ["signum", "float:bf16+ef", "powersgd:rank=2"],
    ["powersgd:rank=2+qsgd:bits=8,bucket=64", "none", "powersgd:rank=2+sign:bucket=whole+momentum=0.5"],
];

fn compressors(plan: [&str; 3]) -> Vec<Compressor> {
    let shapes: [&[u64]; 3] = [&[16, 24], &[300], &[20, 21]];
    let of = |((text, shape), run): ((&str, &[u64]), u64)| {
        let policy = Policy::new(text).expect(text).small(0);
        let tensors = [Tensor::new("a", shape), Tensor::new("b", [7])];
        Compressor::with_policy(&policy, &tensors, RUN + run).expect(text)
    };
    plan.into_iter().zip(shapes).zip(0..).map(of).collect()
}

fn gradients(messages: &[Compressor], rank: u32, step: u64) -> Vec<Vec<f32>> {
    let of = |(message, at): (&Compressor, u64)| gradient(message.elements(), rank, 10 * step + at);
    messages.iter().zip(0..).map(of).collect()
}

fn exchange(
    messages: &mut [Compressor],
    group: &mut impl Collective,
    gradients: &mut [Vec<f32>],
) -> Result<(), MessageError> {
    let parts = gradients.iter_mut().map(Vec::as_mut_slice);
    Compressor::exchange_all(&Device::cpu(), group, messages.iter_mut().zip(parts))
}

type Seen = (Vec<Vec<u32>>, Vec<(Vec<u8>, Vec<u32>, Vec<u32>, u64)>);

fn seen(messages: &[Compressor], gradients: &[Vec<f32>]) -> Seen {
    (gradients.iter().map(|all| bits(all)).collect(), messages.iter().map(held).collect())
}

/// Whichever call fails, on whichever rank: a rank that gets an error has gradients and states as before the step, and
/// one that gets none has those of a step that was made.
#[test]
fn a_step_of_messages_is_made_whole_or_not_at_all() {
    for plan in PLANS {
        for ranks in 1..=4u32 {
            let run = |fails: u32, failing: u32, behind: bool| {
                let warm_is_over = Barrier::new(ranks as usize);
                together(Threads::group(ranks).expect("ranks"), |rank, group| {
                    let (mut group, mut messages) = (Any::new(group), compressors(plan));
                    let mut warm = gradients(&messages, rank, 0);
                    exchange(&mut messages, &mut group, &mut warm).expect("nothing fails yet");
                    // A failure ends calls of ranks that are behind.
                    warm_is_over.wait();
                    group.calls = 0;
                    (group.fails, group.behind) = (if rank == failing { fails } else { u32::MAX }, behind);
                    let mut mine = gradients(&messages, rank, 1);
                    let before = seen(&messages, &mine);
                    let done = exchange(&mut messages, &mut group, &mut mine);
                    (done.is_ok(), group.calls, before, seen(&messages, &mine))
                })
            };
            let whole = run(u32::MAX, 0, false);
            assert!(whole.iter().all(|(made, ..)| *made), "{plan:?}");
            for failing in [0, ranks - 1] {
                let calls = whole[failing as usize].1;
                assert!(calls >= 3, "a call for each message at least");
                for (fails, behind) in (1..=calls).flat_map(|call| [(call, false), (call, true)]) {
                    let all = run(fails, failing, behind);
                    assert!(!all[failing as usize].0, "{plan:?}: call {fails} fails");
                    for ((made, _, before, after), (_, _, _, right)) in all.iter().zip(&whole) {
                        let what = format!("{plan:?}: {ranks} ranks, call {fails} of rank {failing}, {behind}");
                        assert!(after == if *made { right } else { before }, "{what}: made {made}");
                    }
                }
            }
        }
    }
}

/// A rank refuses the second message: the first is taken back on all ranks, and the group goes on as if nothing had
/// been.
#[test]
fn a_message_that_one_rank_refuses_takes_the_step_back_on_all() {
    let plan = ["powersgd:rank=2", "qsgd:bits=4,bucket=64+ef+finite", "none"];
    let run = |refuses: bool| {
        together(Threads::group(3).expect("ranks"), |rank, mut group| {
            let (mut messages, mut all) = (compressors(plan), Vec::new());
            for step in 0..3 {
                let mut mine = gradients(&messages, rank, step);
                if step == 1 && refuses {
                    let mut bad = mine.clone();
                    bad[1][5] = if rank == 1 { f32::NAN } else { 0.0 };
                    let before = seen(&messages, &bad);
                    let error = exchange(&mut messages, &mut group, &mut bad).expect_err("rank 1 refuses");
                    assert_eq!(error.message, 1, "{error}");
                    assert!(error.to_string().starts_with("message 1 of the step failed"), "{error}");
                    let known = match rank {
                        1 => matches!(error.source, Error::NotFinite { index: 5 }),
                        _ => matches!(error.source, Error::Exchange(ExchangeError::Refused { rank: 1 })),
                    };
                    assert!(known, "{error}");
                    assert!(seen(&messages, &bad) == before);
                }
                exchange(&mut messages, &mut group, &mut mine).expect("all are finite");
                all.push(mine.iter().map(|mean| bits(mean)).collect::<Vec<_>>());
            }
            (all, messages.iter().map(|message| message.state().expect("idle")).collect::<Vec<_>>())
        })
    };
    assert!(run(true) == run(false));
}

/// A group of one rank whose second all-reduce panics.
struct Panics(Threads, u32);

impl Collective for Panics {
    fn rank(&self) -> u32 {
        0
    }

    fn ranks(&self) -> u32 {
        1
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.0.all_gather(mine, all)
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.0.all_to_all(to, from)
    }

    fn all_reduce_sum(&mut self, _: &mut [f32]) -> Result<(), CollectiveError> {
        self.1 += 1;
        assert!(self.1 != 2, "a defect of the group");
        Ok(())
    }

    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.0.exchange(peer, mine, theirs)
    }

    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.0.broadcast(root, bytes)
    }
}

#[test]
fn behind_a_panic_all_messages_that_were_begun_are_broken_off() {
    let mut messages = compressors(["none", "none", "none"]);
    let saved: Vec<_> = messages.iter().map(|message| message.state().expect("idle")).collect();
    let mut group = Panics(Threads::group(1).expect("one rank").remove(0), 0);
    let mut mine = gradients(&messages, 0, 0);
    let step = || exchange(&mut messages, &mut group, &mut mine).map(drop);
    catch_unwind(AssertUnwindSafe(step)).expect_err("the group's own panic");
    let broken = messages.iter().map(|message| message.state().is_err()).collect::<Vec<_>>();
    assert_eq!(broken, [true, true, false]);
    // Nothing is sent by what cannot go on.
    let error = exchange(&mut messages, &mut group, &mut mine).expect_err("broken off");
    assert!(matches!(error, MessageError { message: 0, source: Error::Exchange(ExchangeError::BrokenOff) }), "{error}");
    for (message, saved) in messages.iter_mut().zip(saved) {
        message.restore(&[saved], 0, 1).expect("its own state");
    }
    exchange(&mut messages, &mut group, &mut mine).expect("restored");
}

#[test]
fn a_step_without_messages_is_no_step() {
    let mut group = Any::new(Threads::group(1).expect("one rank").remove(0));
    exchange(&mut [], &mut group, &mut []).expect("nothing to do");
    assert_eq!(group.calls, 0);
}
