//! Ranks that send more than a recipe's bound: `peers:norm`.

use gradwire::{Compressor, Device, Dtype, Error, ExchangeError, Policy, Seed, Tensor, TopK};
use gradwire_collectives::Threads;

use crate::exchanges::Forged;
use crate::training::forging::Forging;
use crate::training::{RUN, TEXTS, bits, gradient, of, tensors, together};

/// Whether a recipe can have a bound.
fn takes(text: &str) -> bool {
    format!("{text}+peers:norm=1").parse::<gradwire::Recipe>().is_ok()
}

fn with_bound(text: &str, norm: f32, small: u64) -> Compressor {
    let policy = Policy::new(&*format!("{}+peers:norm={norm}", text.replace("+peers:norm=1000", ""))).expect(text);
    Compressor::with_policy(&policy.small(small), &tensors(), RUN).expect(text)
}

#[test]
fn what_sends_payloads_takes_a_bound_and_what_is_summed_refuses_it() {
    for text in TEXTS {
        let summed = text.starts_with("powersgd") || text.contains("randomk");
        let has_one = text.contains("peers");
        assert_eq!(takes(text), !summed && !has_one, "{text}");
    }
    for text in ["sign:unit+vote", "topk:0.1+ef+gtopk", "qsgd+twophase"] {
        assert!(!takes(text), "{text}");
    }
}

/// Whether payloads of a recipe do not grow with the gradient: it is clipped, or all but its signs is dropped.
fn is_short(text: &str) -> bool {
    text.contains("clip=0.5") || text.contains("clip=3") || text == "sign:unit" || text == "signum"
}

#[test]
fn a_rank_above_the_bound_is_named_on_every_rank_and_nothing_changes() {
    for text in TEXTS.into_iter().filter(|text| takes(text)) {
        // The whole model by the recipe, and its vectors uncompressed.
        for small in [0, 1 << 12] {
            together(Threads::group(3).expect("three"), |rank, mut group| {
                let mut bounded = with_bound(text, 2e4, small);
                let plain = Policy::new(text).expect(text).small(small);
                let mut plain = Compressor::with_policy(&plain, &tensors(), RUN).expect(text);
                let elements = bounded.elements();
                for number in 0..4 {
                    if number == 2 {
                        let before = bounded.state().expect("idle");
                        let mut mine = gradient(elements, rank, number);
                        let times = if rank == 1 { 1e6 } else { 1.0 };
                        mine.iter_mut().for_each(|value| *value *= times);
                        let sent = mine.clone();
                        let done = bounded.exchange(&Device::cpu(), &mut group, &mut mine);
                        if small == 0 && is_short(text) {
                            done.expect(text);
                            bounded.undo().expect("it was made");
                        } else {
                            let Err(Error::Exchange(ExchangeError::Norm { rank: 1, norm, bound })) = done else {
                                panic!("{text}, {small}: {done:?}")
                            };
                            assert!(
                                norm.parse::<f32>().expect("a number") > 2e4 && bound == "20000.0",
                                "{norm} {bound}"
                            );
                            assert_eq!(bits(&mine), bits(&sent), "{text}");
                        }
                        assert!(bounded.state().expect("idle") == before, "{text}");
                    }
                    let step = |compressor: &mut Compressor, group: &mut Threads| {
                        let mut mean = gradient(elements, rank, number);
                        compressor.exchange(&Device::cpu(), group, &mut mean).expect(text);
                        bits(&mean)
                    };
                    assert_eq!(step(&mut bounded, &mut group), step(&mut plain, &mut group), "{text}, step {number}");
                }
            });
        }
    }
}

/// A model of two tensors, of which the second goes uncompressed.
fn two(text: &str) -> Compressor {
    let policy = Policy::new("none").and_then(|policy| policy.named("a", text)).expect(text);
    let policy = policy.named("b", "none+peers:norm=5").expect("valid");
    Compressor::with_policy(&policy, &[Tensor::new("a", [2]), Tensor::new("b", [2])], RUN).expect(text)
}

#[test]
fn the_bound_is_the_largest_norm_that_is_taken() {
    // Norms are right to 2^-22 of themselves.
    let above = 4.000_01_f32;
    for text in ["none+peers:norm=5", "topk:1+peers:norm=5", "none+peers:norm=4", "topk:1+peers:norm=4", "topk:1"] {
        let limit: f32 = text.split_once("norm=").map_or(f32::MAX, |(_, norm)| norm.parse().expect("a number"));
        for (a, b) in
            [([3.0, 4.0], [0.0, 5.0]), ([3.0, above], [0.0; 2]), ([0.0; 2], [3.0, above]), ([4.0, 0.0], [3.0, 4.0])]
        {
            let long = |[x, y]: [f32; 2]| (f64::from(x).powi(2) + f64::from(y).powi(2)).sqrt() as f32;
            // Uncompressed tensors of one bound count together.
            let together_with_b = text == "none+peers:norm=5";
            let refused = match together_with_b {
                true => long([long(a), long(b)]) > 5.0,
                false => long(a) > limit || long(b) > 5.0,
            };
            let done = together(Threads::group(2).expect("two"), |rank, mut group| {
                let mut mine = if rank == 1 { [a, b].concat() } else { vec![0.0; 4] };
                two(text).exchange(&Device::cpu(), &mut group, &mut mine).map(|()| mine)
            });
            for done in done {
                match done {
                    Ok(mean) => {
                        assert!(!refused, "{text} {a:?} {b:?}");
                        assert_eq!(mean, [a, b].concat().iter().map(|v| v / 2.0).collect::<Vec<_>>(), "{text}");
                    }
                    Err(Error::Exchange(ExchangeError::Norm { rank: 1, .. })) => assert!(refused, "{text} {a:?} {b:?}"),
                    Err(other) => panic!("{text}: {other}"),
                }
            }
        }
    }
}

#[test]
fn uncompressed_values_of_another_rank_that_are_damaged_or_of_another_form_are_refused() {
    let sizes = [2, 3];
    let compressor = |run| {
        let shapes = sizes.map(|n| Tensor::new("", [n]));
        Compressor::with_policy(&Policy::new("none+peers:norm=1000").expect("valid"), &shapes, run).expect("valid")
    };
    // In the message: the length of the payload, its magic, its count of entries, its checksum, its values.
    for flip in [24, 32, 48, 60, 67] {
        let mut mine = [1.0f32, 2.0, 3.0, 4.0, 5.0];
        let mut group = Forged(|message: &[u8]| {
            let mut message = message.to_vec();
            message[flip] ^= 1;
            message
        });
        let mut compressor = compressor(RUN);
        let before = compressor.state().expect("idle");
        let error = compressor.exchange(&Device::cpu(), &mut group, &mut mine).expect_err("it is damaged");
        assert!(error.to_string().contains("rank 1"), "{flip}: {error}");
        assert_eq!(mine, [1.0, 2.0, 3.0, 4.0, 5.0], "{flip}");
        assert!(compressor.state().expect("idle") == before, "{flip}");
    }
    // Payloads that are sound, and not all values of the tensors: fewer entries, another length, another type.
    let device = Device::cpu();
    for (codec, n, what) in [
        (TopK::count(4), 5, "format of values"),
        (TopK::fraction(1.0), 4, "length"),
        (TopK::fraction(1.0).values(Dtype::F16), 5, "format of values"),
    ] {
        let payload = device.encode_sparse(&codec, &[1.0f32, 2.0, 3.0, 4.0, 5.0][..n], Seed::new(1)).expect("valid");
        let mut group = Forged(|message: &[u8]| {
            let length = (payload.as_bytes().len() as u64).to_le_bytes();
            [&message[..24], &length, payload.as_bytes()].concat()
        });
        let mut mine = [1.0f32, 2.0, 3.0, 4.0, 5.0];
        let error = compressor(RUN).exchange(&device, &mut group, &mut mine).expect_err(what);
        assert!(
            matches!(error, Error::Exchange(ExchangeError::Payload { rank: 1, what: found, .. }) if found == what),
            "{error}"
        );
    }
}

/// A rank whose uncompressed values differ from those that others got is found as with payloads.
#[test]
fn a_rank_that_sends_others_other_values_is_found() {
    let done = together(Threads::group(2).expect("two"), |rank, group| {
        let mut group = Forging { group, sent: None, takes: rank == 1 };
        let mut compressor = of("none+peers:norm=1000");
        let mut step = |number| {
            let mut mine = gradient(compressor.elements(), rank, number);
            compressor.exchange(&Device::cpu(), &mut group, &mut mine)
        };
        step(0).expect("nobody knows yet");
        step(1)
    });
    for done in done {
        assert!(matches!(done, Err(Error::Exchange(ExchangeError::Parted { .. }))), "{done:?}");
    }
}
