//! How far the mean of ranks is from the mean of their gradients: of drawn codecs it falls with the number of ranks, and
//! of rotated ones it is what the papers say, whatever the gradient. Seeds are fixed, so each test has one outcome.

use crate::training::{RUN, together};
use gradwire::{Compressor, Device, Eden, Recipe, Rotation, Seed};
use gradwire_collectives::Threads;
use gradwire_tests::cases::{Random, normal};

/// Elements of the gradient, a matrix of 128 rows.
const N: usize = 1 << 14;
const STEPS: u64 = 4;

/// The squared error of the mean over this many ranks that have the same gradient, as a part of the gradient's square,
/// over all steps.
fn error(text: &str, ranks: u32, x: &[f32]) -> f64 {
    let groups = Threads::group(ranks).expect("a group");
    let square = |x: f64| x * x;
    let of_ranks = together(groups, |_, mut group| {
        let mut compressor = Compressor::new(text, [[128, 128]], RUN).unwrap_or_else(|error| panic!("{text}: {error}"));
        let off = |_| {
            let mut mean = x.to_vec();
            compressor.exchange(&Device::cpu(), &mut group, &mut mean).expect("exchanged");
            x.iter().zip(mean).map(|(x, y)| square(f64::from(*x) - f64::from(y))).sum::<f64>()
        };
        (0..STEPS).map(off).sum::<f64>()
    });
    of_ranks[0] / (STEPS as f64 * x.iter().map(|x| square(f64::from(*x))).sum::<f64>())
}

/// Every codec that draws, with draws of each rank.
const DRAWN: [&str; 17] = [
    "qsgd:bits=4,bucket=64",
    "qsgd:bits=2,bucket=whole",
    "uniform:bits=4",
    "ternary:bucket=64",
    "natural:bits=8",
    "natural:bits=4,bucket=64",
    "float:e4m3,scaled",
    "float:bf16",
    "float:int8,scaled",
    "topk:above=0+qsgd:bits=4,bucket=64",
    "rotate+qsgd:bits=4",
    "rotate:own+qsgd:bits=4",
    "drive",
    "eden:bits=1",
    "eden:bits=2",
    "eden:bits=4",
    "eden:bits=3,bucket=1024",
];

/// Draws of ranks are independent, so the squared error of the mean of N ranks is 1/N of one rank's.
#[test]
fn the_error_of_drawn_codecs_falls_with_the_ranks() {
    let x = normal(N, 5);
    let mut wrong = Vec::new();
    for text in DRAWN {
        let ([one, sixteen], ranks) = ([1, 16].map(|ranks| error(text, ranks, &x)), 16.0);
        let ratio = ranks * sixteen / one;
        println!("{text}: {one:.5} and {sixteen:.6}, {ratio:.3} times 1/16");
        wrong.extend((!(0.9..1.1).contains(&ratio)).then_some((text, one, sixteen)));
    }
    assert!(wrong.is_empty(), "the errors of one rank and of 16: {wrong:?}");
}

/// Common signs and no draw: all ranks make the same error, which is the mean's.
#[test]
fn common_signs_leave_the_error_of_one_rank() {
    let x = normal(N, 5);
    for text in ["rotate:common+drive", "rotate:common+eden:bits=2"] {
        let [one, sixteen] = [1, 16].map(|ranks| error(text, ranks, &x));
        assert!((one / sixteen - 1.0).abs() < 1e-4, "{text}: {one} of one rank, {sixteen} of 16");
    }
}

/// What [`Eden`] says of a rotated block: D / (1 - D) of the gradient's square, D what the centroids lose of normal
/// values. Without a rotation both codecs lose more than the gradient of the second and third kind.
#[test]
fn a_rotation_makes_the_error_that_of_normal_values() {
    let mut random = Random(11);
    let sparse: Vec<f32> = (0..N).map(|i| if i % 100 == 0 { random.normal() as f32 } else { 0.0 }).collect();
    let cauchy: Vec<f32> = (0..N).map(|_| (random.normal() / random.normal()) as f32).collect();
    let layers: Vec<f32> = (0..N).map(|i| (random.normal() * 10f64.powi((i / 1024) as i32 % 5 - 3)) as f32).collect();
    for (name, x) in [("normal", normal(N, 5)), ("1 % not zero", sparse), ("Cauchy", cauchy), ("layers", layers)] {
        for (text, expected) in [
            ("drive", 0.571),
            ("eden:bits=1", 0.571),
            ("eden:bits=2", 0.133),
            ("eden:bits=3", 0.0358),
            ("eden:bits=4", 0.00959),
        ] {
            let found = error(text, 1, &x);
            println!("{name}, {text}: {found:.5}");
            // Of few large elements a rotated block has few magnitudes, which have less error.
            let least = if name == "normal" { 0.9 } else { 0.0 };
            assert!((least..1.1).contains(&(found / expected)), "{name}, {text}: {found}, {expected} is expected");
        }
    }
}

/// With own signs each payload is rotated back by the signs of its rank, and added in the order of the ranks.
#[test]
fn an_exchange_with_own_signs_is_its_stages_one_after_another() {
    let device = &Device::cpu();
    let gradient = |rank: u32| normal(N, 100 + u64::from(rank));
    let dense = |recipe: &str| recipe.parse::<Recipe>().expect("valid").quantizer().expect("a quantizer");
    for (text, rotation, codec) in [
        ("rotate:own+qsgd:bits=4,bucket=64", Rotation::default().own(), dense("qsgd:bits=4,bucket=64")),
        ("eden:bits=3,bucket=512", Rotation::block(512).own(), Eden::bits(3).bucket(512).into()),
    ] {
        let weight = 1.0 / 3.0f32;
        let mut expected = vec![-0.0f32; N];
        for rank in 0..3 {
            let seed = Seed::new(RUN).worker(rank);
            let rotated = device.rotate(rotation, &gradient(rank), seed).expect("valid");
            let payload = device.encode(&codec, &rotated, seed).expect("valid");
            let mut sent = vec![0.0; N];
            device.decode_add(&payload, weight, &mut sent).expect("its own");
            let back = device.unrotate(rotation, &sent, N, seed).expect("valid");
            expected.iter_mut().zip(back).for_each(|(sum, x)| *sum += x);
        }
        let means = together(Threads::group(3).expect("three"), |rank, mut group| {
            let mut compressor = Compressor::new(text, [[128, 128]], RUN).expect(text);
            let mut mean = gradient(rank);
            compressor.exchange(device, &mut group, &mut mean).map(|()| mean).expect("exchanged")
        });
        for mean in means {
            assert!(mean.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()), "{text}");
        }
    }
}
