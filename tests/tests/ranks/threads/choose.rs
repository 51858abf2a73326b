//! The choice of an exchange's algorithm over links of threads: the same on every rank, and the predicted best.

use std::time::Duration;

use gradwire::{Compressor, Device};
use gradwire_collectives::{Choice, ChooseError, Collective, Link, Threads, choose};

use super::background::{bits, on_ranks};
use super::run::group;

/// 32768 elements, of which none are small.
const SHAPES: [[u64; 2]; 2] = [[128, 128], [64, 256]];
/// The share of the time that a codec has to save.
const MARGIN: f64 = 0.05;

/// What all ranks choose over links of `bytes_per_second`; the choice is then used.
fn chosen(ranks: u32, bytes_per_second: u64, recipe: &str) -> Choice {
    let link = Link::new(bytes_per_second, Duration::from_micros(100)).expect("a link");
    let all = on_ranks(Threads::throttled(ranks, link).expect("ranks"), |mut group| {
        let device = Device::cpu();
        let choice = choose(&device, &mut group, recipe, &SHAPES, MARGIN).expect("a choice");
        let mut compressor = Compressor::new(choice.recipe.as_str(), SHAPES, 1).expect("a recipe");
        let mut gradient = vec![1.0 + group.rank() as f32; compressor.elements()];
        compressor.exchange(&device, &mut group, &mut gradient).expect("it runs");
        (choice, bits(&gradient))
    });
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{recipe}: ranks differ");
    all.into_iter().next().expect("a rank").0
}

/// Which way is the fastest goes by the machine's load, and is decided from times alone in `choose.rs`.
#[test]
fn all_ranks_choose_the_fastest_way_of_those_that_there_are() {
    for (ranks, recipe, ways) in [
        (4, "qsgd:bits=4,bucket=64+ef", &["", "+twophase"][..]),
        (2, "qsgd:bits=4,bucket=64+ef", &["", "+twophase"]),
        (8, "topk:0.3+ef", &["", "+gtopk"]),
        // Factors are summed.
        (4, "powersgd:rank=2", &[""]),
        (4, "none", &[]),
    ] {
        let choice = chosen(ranks, 20_000_000, recipe);
        let mut found: Vec<_> = choice.ways.iter().map(|way| way.recipe.as_str()).collect();
        let mut wanted: Vec<_> = ways.iter().map(|stage| format!("{recipe}{stage}")).collect();
        wanted.push("none".to_owned());
        found.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(found, wanted, "{ranks} ranks");
        let fastest = choice.ways.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds)).expect("a way");
        let pays = choice.dense - fastest.seconds >= MARGIN * choice.dense;
        let best = if pays { (&fastest.recipe, fastest.seconds) } else { (&"none".to_owned(), choice.dense) };
        assert_eq!((&choice.recipe, choice.seconds), best, "{choice:?}");
    }
}

#[test]
fn what_rank_0_refuses_every_rank_hears_and_the_group_goes_on() {
    for (recipe, wanted) in [
        ("nonsense", "nonsense"),
        ("qsgd:bits=4,bucket=64+twophase", "leave out gtopk and twophase"),
        ("topk:0.01+ef+gtopk", "leave out gtopk and twophase"),
    ] {
        let all = on_ranks(group(3), |mut group| {
            // The other ranks' own is not looked at.
            let mine = if group.rank() == 0 { recipe } else { "none" };
            let error = choose(&Device::cpu(), &mut group, mine, &SHAPES, 0.0).expect_err("refused");
            let mut sum = [1.0];
            group.all_reduce_sum(&mut sum).expect("the group works");
            (error, sum)
        });
        for (error, sum) in all {
            assert!(matches!(&error, ChooseError::Refused { reason } if reason.contains(wanted)), "{error}");
            assert_eq!(sum, [3.0]);
        }
    }
    let error = choose(&Device::cpu(), &mut group(1).remove(0), "topk:0.1", &SHAPES, f64::NAN).expect_err("refused");
    assert!(error.to_string().contains("least_margin"), "{error}");
}

#[test]
fn a_rank_alone_compresses_nothing() {
    let choice = choose(&Device::cpu(), &mut group(1).remove(0), "topk:0.1+ef", &SHAPES, 0.0).expect("a choice");
    assert_eq!((choice.recipe.as_str(), choice.seconds), ("none", 0.0));
    let nothing: [[u64; 1]; 0] = [];
    let choice = choose(&Device::cpu(), &mut group(1).remove(0), "topk:0.1+ef", &nothing, 0.0).expect("a choice");
    assert_eq!(choice.recipe, "none");
}

/// A rank that broadcasts something else than a choice.
#[test]
fn an_answer_that_is_none_is_told_of() {
    for answer in [&b""[..], b"x", b"c{}", b"r\xff", b"\xff"] {
        let all = on_ranks(group(2), |mut group| {
            if group.rank() == 0 {
                gradwire_collectives::ping_group(&mut group, &[1 << 8, 1 << 12, 1 << 15, 1 << 17], 5).expect("pings");
                let mut bytes = answer.to_vec();
                group.broadcast(0, &mut bytes).expect("a broadcast");
                return None;
            }
            Some(choose(&Device::cpu(), &mut group, "none", &SHAPES, 0.0).expect_err("no choice"))
        });
        assert!(matches!(all[1], Some(ChooseError::Answer { .. })), "{answer:?}: {:?}", all[1]);
    }
}
