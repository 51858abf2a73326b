//! What compressors of buckets keep, carried to compressors of other buckets of the same tensors.

use crate::training::{HOST_ALONE, RUN, TEXTS, bits, gradient, tensors, together};
use gradwire::{Collective, Compressor, Device, Error, Policy, Tensor};
use gradwire_collectives::Threads;

/// Tensors of the model, by their numbers, in two ways to split them.
const BEFORE: [&[usize]; 2] = [&[0, 1, 2], &[3, 4, 5]];
const AFTER: [&[usize]; 2] = [&[5, 0, 3], &[2, 4, 1]];

/// Recipes that draw nothing at random after their first step, so that buckets make no difference to a tensor.
const DRAWLESS: [&str; 11] = [
    "none",
    "onebit",
    "sign",
    "signum",
    "topk:0.01+ef",
    "topk:0.02+momentum=0.9",
    "topk:0.05+ef21",
    "topk:0.02+ef:beta=0.75+momentum=0.5",
    "onebit+ef:beta=0.5,gamma=2",
    "powersgd:rank=2",
    "powersgd:rank=1+momentum=0.5",
];

fn bucket(text: &str, of: &[usize]) -> Compressor {
    let all = tensors();
    let chosen: Vec<Tensor> = of.iter().map(|index| all[*index].clone()).collect();
    Compressor::with_policy(&Policy::new(text).expect(text), &chosen, RUN).expect(text)
}

/// The gradient of each tensor of the model.
fn gradients(rank: u32, step: u64) -> Vec<Vec<f32>> {
    (0..).zip(tensors()).map(|(index, tensor)| gradient(tensor.elements() as usize, rank, 100 * step + index)).collect()
}

/// A step, bucket by bucket; what becomes of each tensor.
fn step(buckets: &mut [Compressor; 2], split: [&[usize]; 2], group: &mut Threads, step: u64) -> Vec<Vec<u32>> {
    let (mut all, mut means) = (gradients(group.rank(), step), vec![Vec::new(); 6]);
    for (compressor, of) in buckets.iter_mut().zip(split) {
        let mut whole: Vec<f32> = of.iter().flat_map(|index| std::mem::take(&mut all[*index])).collect();
        compressor.exchange(&Device::cpu(), group, &mut whole).expect("exchanged");
        take_apart(&whole, of, &mut means);
    }
    means
}

fn take_apart(mut whole: &[f32], of: &[usize], into: &mut [Vec<u32>]) {
    for index in of {
        let (mine, rest) = whole.split_at(tensors()[*index].elements() as usize);
        into[*index] = bits(mine);
        whole = rest;
    }
}

/// What each tensor's residual is, an owner's with it.
fn residuals(buckets: &[Compressor; 2], split: [&[usize]; 2]) -> Vec<Vec<u32>> {
    let mut all = vec![Vec::new(); 6];
    for (compressor, of) in buckets.iter().zip(split) {
        let (own, owner) = (compressor.residual().expect("kept"), compressor.owner_residual().expect("kept"));
        let sums: Vec<f32> = own.iter().zip(owner).map(|(a, b)| if b == 0.0 { *a } else { a + b }).collect();
        take_apart(&sums, of, &mut all);
    }
    all
}

fn carried(text: &str, from: &[Compressor; 2]) -> [Compressor; 2] {
    AFTER.map(|of| {
        let mut new = bucket(text, of);
        new.take_over(&[&from[0], &from[1]]).expect(text);
        new
    })
}

#[test]
fn buckets_made_anew_go_on_to_the_bit() {
    for text in DRAWLESS {
        together(Threads::group(2).expect("a group"), |_, mut group| {
            let mut old = BEFORE.map(|of| bucket(text, of));
            (0..3).for_each(|at| drop(step(&mut old, BEFORE, &mut group, at)));
            let mut new = carried(text, &old);
            for at in 3..6 {
                let [theirs, ours] = [step(&mut old, BEFORE, &mut group, at), step(&mut new, AFTER, &mut group, at)];
                assert!(theirs == ours, "{text}, step {at}");
                assert!(residuals(&old, BEFORE) == residuals(&new, AFTER), "{text}, residual behind step {at}");
                assert_eq!(new[0].steps(), at + 1);
            }
        });
    }
}

#[test]
fn every_residual_is_carried() {
    for text in TEXTS.into_iter().chain(HOST_ALONE) {
        if ["above", "estimate", "block=64+", "dct"].iter().any(|whole| text.contains(whole)) {
            continue; // These keep residuals that go by all tensors of a compressor as one, or refuse.
        }
        together(Threads::group(3).expect("a group"), |_, mut group| {
            let mut old = BEFORE.map(|of| bucket(text, of));
            (0..2).for_each(|at| drop(step(&mut old, BEFORE, &mut group, at)));
            let mut new = carried(text, &old);
            assert!(residuals(&old, BEFORE) == residuals(&new, AFTER), "{text}");
            step(&mut new, AFTER, &mut group, 2);
        });
    }
}

/// Coefficients are of blocks of all tensors of a compressor: other tensors make another basis.
#[test]
fn coefficients_are_carried_to_the_same_tensors_alone() {
    let texts = ["dct:block=8+topk:0.1+ef", "dct+qsgd:bits=4,bucket=64+noef+momentum=0.5", "dct+topk:0.1+ef21"];
    for text in texts.into_iter().chain(["dct:block=8,tiles+topk:0.1+ef"]) {
        let old = bucket(text, &[0, 2]);
        bucket(text, &[0, 2]).take_over(&[&old]).expect("the same tensors");
        for others in [&[0][..], &[2, 0], &[0, 2, 5]] {
            let mut new = bucket(text, others);
            let before = new.state().expect("saved");
            let error = new.take_over(&[&old]).expect_err("others");
            assert!(
                error.to_string().contains("coefficients of blocks of") && error.to_string().contains("leave out dct"),
                "{text}: {error}"
            );
            assert!(new.state().expect("saved") == before, "{text}");
        }
        let mut both = bucket(text, &[0, 2]);
        let halves = [bucket(text, &[0]), bucket(text, &[2])];
        both.take_over(&[&halves[0], &halves[1]]).expect_err("blocks of each");
        bucket(text, &[5]).take_over(&[&old]).expect("none of them");
    }
    // Tiles are another basis.
    let error =
        bucket("dct:tiles+topk:0.1+ef", &[0]).take_over(&[&bucket("dct+topk:0.1+ef", &[0])]).expect_err("another");
    assert!(error.to_string().contains("with dct:tiles+topk:0.1+ef"), "{error}");
    // Nothing is kept, and nothing is lost.
    bucket("dct+topk:0.1", &[0]).take_over(&[&bucket("dct+topk:0.1", &[0, 2])]).expect("no memory");
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let mut new = bucket("topk:0.01+ef", &[0, 1]);
    let before = new.state().expect("saved");
    let of = |shape: [u64; 2]| {
        let tensors = [Tensor::new("a.weight", shape)];
        Compressor::with_policy(&Policy::new("topk:0.01+ef").expect("valid"), &tensors, RUN).expect("valid")
    };
    let mut later = bucket("topk:0.01+ef", &[1]);
    together(Threads::group(1).expect("a group"), |_, mut group| {
        let mut later = bucket("topk:0.01+ef", &[1]);
        later.exchange(&Device::cpu(), &mut group, &mut [0.5; 64]).expect("exchanged");
        later
    })
    .into_iter()
    .for_each(|stepped| later = stepped);
    let same = bucket("topk:0.01+ef", &[0]);
    let wrong: [(&[&Compressor], &str); 3] = [
        (&[&of([48, 64])], "a.weight of shape [48, 64]"),
        (&[&bucket("topk:0.02+ef", &[0])], "a.weight with topk:0.02+ef"),
        (&[&same, &later], "step"),
    ];
    for (others, names) in wrong {
        let error = new.take_over(others).expect_err(names);
        assert!(matches!(error, Error::Saved(_)) && error.to_string().contains(names), "{error}");
        assert_eq!(new.state().expect("saved"), before);
    }
    // Tensors that nobody has begin anew.
    new.take_over(&[&bucket("topk:0.01+ef", &[4])]).expect("nothing in common");
    assert_eq!(new.state().expect("saved"), before);
}
