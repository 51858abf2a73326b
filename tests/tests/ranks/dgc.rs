//! Deep gradient compression: its momentum in both forms, what it masks, and what it clips, against formulas that are
//! written here once more.

use crate::training::{RUN, bits, gradient, of, together};
use gradwire::{Compressor, Device, Error, Policy, Tensor};
use gradwire_collectives::Threads;

/// Residual and momentum of a state: after the description, each after its length.
fn planes(compressor: &Compressor) -> [Vec<f32>; 2] {
    let state = compressor.state().expect("idle");
    let mut rest = &state[32..];
    let mut part = || {
        let (length, behind) = rest.split_first_chunk().expect("a length");
        let (part, behind) = behind.split_at(u64::from_le_bytes(*length) as usize);
        rest = behind;
        part.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    let [_, residual, momentum] = [part(), part(), part()];
    [residual, momentum]
}

/// A rank as equation 4 of Lin et al. has it, without a selection's own code.
struct Rank {
    u: Vec<f32>,
    v: Vec<f32>,
}

impl Rank {
    /// What is sent of a gradient: an entry per element, zero if there is none.
    fn step(&mut self, g: &[f32], m: f32, nesterov: bool, k: usize) -> Vec<f32> {
        for ((u, v), g) in self.u.iter_mut().zip(&mut self.v).zip(g) {
            if nesterov {
                *u = m * (*u + g);
                *v += *u + g;
            } else {
                *u = m * *u + g;
                *v += *u;
            }
        }
        let mut order: Vec<usize> = (0..g.len()).collect();
        order.sort_by(|a, b| self.v[*b].abs().total_cmp(&self.v[*a].abs()).then(a.cmp(b)));
        let mut sent = vec![0.0; g.len()];
        for index in &order[..k] {
            sent[*index] = std::mem::take(&mut self.v[*index]);
            self.u[*index] = 0.0;
        }
        sent
    }
}

#[test]
fn both_forms_of_the_momentum_are_the_paper_s_to_the_bit() {
    let (n, k, ranks, m) = (3000, 90, 3u32, 0.9);
    for (text, nesterov) in [("dgc:ratio=0.03", false), ("dgc:ratio=0.03,nesterov", true)] {
        let seen = together(Threads::group(ranks).expect("three"), |rank, mut group| {
            let mut compressor = Compressor::new(text, [[60, 50]], RUN).expect("valid");
            let step = |step| {
                let mut x = gradient(n, rank, step);
                compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
                (bits(&x), planes(&compressor))
            };
            (0..8).map(step).collect::<Vec<_>>()
        });
        let new = |_| Rank { u: vec![0.0; n], v: vec![0.0; n] };
        let mut all: Vec<Rank> = (0..ranks).map(new).collect();
        for step in 0..8 {
            let mut mean = vec![0.0f32; n];
            for (rank, own) in (0..).zip(&mut all) {
                let sent = own.step(&gradient(n, rank, step), m, nesterov, k);
                mean.iter_mut()
                    .zip(&sent)
                    .filter(|(_, sent)| **sent != 0.0)
                    .for_each(|(x, sent)| *x += 1.0 / 3.0 * sent);
                let [v, kept] = &seen[rank as usize][step as usize].1;
                assert_eq!(bits(v), bits(&own.v), "{text}: v of rank {rank} behind step {step}");
                let u: Vec<f32> = kept.iter().map(|kept| if nesterov { m * kept } else { *kept }).collect();
                assert_eq!(bits(&u), bits(&own.u), "{text}: u of rank {rank} behind step {step}");
                // Who was sent has neither.
                let masked = sent.iter().zip(v).zip(&u).filter(|((sent, _), _)| **sent != 0.0);
                assert_eq!(masked.filter(|((_, v), u)| v.to_bits() | u.to_bits() == 0).count(), k);
            }
            for rank in &seen {
                assert_eq!(rank[step as usize].0, bits(&mean), "{text}: mean of step {step}");
            }
        }
    }
}

#[test]
fn without_momentum_both_forms_are_error_feedback_alone() {
    let run = |text: &str| {
        together(Threads::group(2).expect("two"), |rank, mut group| {
            let mut compressor = of(text);
            let step = |step| {
                let mut x = gradient(compressor.elements(), rank, step);
                compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
                (bits(&x), bits(&compressor.residual().expect("there is memory")))
            };
            (0..5).map(step).collect::<Vec<_>>()
        })
    };
    for (plain, texts) in [
        ("topk:0.03+ef", ["dgc:ratio=0.03,momentum=0", "dgc:ratio=0.03,momentum=0,nesterov"]),
        ("qsgd:bits=4,bucket=64+ef", ["qsgd:bits=4,bucket=64+momentum=0", "qsgd:bits=4,bucket=64+momentum=0+nesterov"]),
    ] {
        let expected = run(plain);
        for text in texts {
            assert!(run(text) == expected, "{text} is not {plain}");
        }
    }
}

/// What one rank's gradient becomes where all of it is sent: clipped.
fn clipped(text: &str, elements: u64, x: &[f32]) -> Result<Vec<f32>, Error> {
    let policy = Policy::new(text).expect(text).small(0);
    let mut compressor = Compressor::with_policy(&policy, &[Tensor::new("", [elements])], RUN).expect(text);
    let mut x = x.to_vec();
    compressor.exchange(&Device::cpu(), &mut Threads::group(1).expect("one").remove(0), &mut x)?;
    Ok(x)
}

fn norm(x: &[f32]) -> f64 {
    x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt()
}

/// Of lengths about a span of a statistic, and of values over the whole range of binary32.
#[test]
fn a_long_gradient_is_as_long_as_the_limit_and_a_short_one_keeps_its_bits() {
    for n in [1, 2, 255, 8191, 8193, 40_000] {
        for scale in [1e-42, 1e-30, 1.0, 1e19, 1e33] {
            let x: Vec<f32> = gradient(n, n as u32, 3).iter().map(|v| v * scale).collect();
            let long = norm(&x);
            for part in [0.999, 0.5, 1e-3] {
                let c = (long * part) as f32;
                if c < 1e-40 {
                    continue;
                }
                let out = clipped(&format!("topk:1+ef+clip={c}"), n as u64, &x).expect("it runs");
                // Each element by one factor, to the bit, and a residual of 0.0 is added, which makes -0.0 0.0. It is
                // near the quotient: the norm loses sqrt(n) 2^-23 of itself at most.
                let (near, c) = ((f64::from(c) / long) as f32, f64::from(c));
                let factor = |d: i32| f32::from_bits(near.to_bits().wrapping_add_signed(d));
                let by = |s: f32| x.iter().zip(&out).all(|(x, y)| (x * s + 0.0).to_bits() == y.to_bits());
                let most = 4 + 2 * (n as f64).sqrt() as i32;
                assert!((-most..=most).any(|d| by(factor(d))), "{n} elements of {scale} to {part}");
                if scale > 1e-35 {
                    let apart = 2f64.powi(-22) + (n as f64).sqrt() * 2f64.powi(-23);
                    assert!((norm(&out) / c - 1.0).abs() <= apart, "{n} elements of {scale} to {part}");
                }
            }
            let c = (long * 1.001) as f32;
            if c > 0.0 {
                let out = clipped(&format!("topk:1+ef+clip={c}"), n as u64, &x).expect("it runs");
                assert!(x.iter().zip(&out).all(|(x, y)| (x + 0.0).to_bits() == y.to_bits()), "{n} elements of {scale}");
            }
        }
    }
}

#[test]
fn what_is_not_finite_is_skipped_or_refused_and_not_clipped() {
    for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let x = [3.0, broken, 400.0];
        let out = clipped("topk:1+ef+clip=1", 3, &x).expect("it is skipped");
        assert!(out.iter().all(|mean| mean.is_nan()));
        let error = clipped("dgc:ratio=1,nesterov,clip=1+finite", 3, &x).expect_err("it is refused");
        assert!(matches!(error, Error::NotFinite { index: 1 }), "{error:?}");
    }
    assert_eq!(bits(&clipped("topk:1+ef+clip=1", 3, &[0.0, -0.0, 0.0]).expect("zeros")), bits(&[0.0; 3]));
}

/// With four ranks the limit is half of what was said; each rank has its own norm, and each recipe.
#[test]
fn the_limit_is_a_rank_s_part_and_each_recipe_has_its_own() {
    let means = together(Threads::group(4).expect("four"), |rank, mut group| {
        let policy =
            Policy::new("topk:1+momentum=0+clip=10").and_then(|p| p.named("b", "topk:1+ef+clip=2")).expect("valid");
        let policy = policy.named("c", "none").expect("valid").small(0);
        let tensors = ["a", "b", "c", "a"].map(|name| Tensor::new(name, [2]));
        let mut compressor = Compressor::with_policy(&policy, &tensors, RUN).expect("valid");
        // Of norm 10, 5 and more; the first rank's is within its limit.
        let a = if rank == 0 { [1.0, 2.0] } else { [0.0, 8.0] };
        let behind = if rank == 0 { [-4.0, 2.0] } else { [-6.0, 0.0] };
        let mut x = [a, [0.0, -5.0], [70.0, 80.0], behind].concat();
        compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
        x
    });
    for mean in means {
        assert_eq!(mean, [0.25, 3.5, 0.0, -1.0, 70.0, 80.0, -3.25, 0.5]);
    }
}

/// Ranks that go on with fewer take up all momenta and residuals, which add up exactly where they are dyadic.
#[test]
fn momenta_of_ranks_that_leave_are_taken_up() {
    let text = "dgc:ratio=0.02,momentum=0.5,nesterov";
    let dyadic = |rank: u32, step: u64| -> Vec<f32> {
        gradient(of(text).elements(), rank, step).iter().map(|v| (v * 64.0).round() / 64.0).collect()
    };
    let saved = together(Threads::group(3).expect("three"), |rank, mut group| {
        let mut compressor = of(text);
        for step in 0..3 {
            compressor.exchange(&Device::cpu(), &mut group, &mut dyadic(rank, step)).expect("it runs");
        }
        (compressor.state().expect("idle"), planes(&compressor))
    });
    let states: Vec<&[u8]> = saved.iter().map(|(state, _)| state.as_slice()).collect();
    let mut two = [of(text), of(text)];
    for (rank, compressor) in (0..).zip(&mut two) {
        compressor.restore(&states, rank, 2).expect("theirs");
    }
    let [first, second] = two.each_ref().map(planes);
    for plane in 0..2 {
        for i in 0..first[plane].len() {
            let before: f32 = saved.iter().map(|(_, planes)| planes[plane][i]).sum();
            assert_eq!(first[plane][i] + second[plane][i], before, "plane {plane}, element {i}");
        }
    }
    assert!(first[1].iter().any(|p| *p != 0.0));
}

#[test]
fn tensors_that_go_uncompressed_have_the_momentum_too() {
    let texts = [
        ("dgc:ratio=0.5", 0.9, false),
        ("dgc:ratio=0.5,nesterov", 0.9, true),
        ("qsgd:bits=8+momentum=0.5", 0.5, false),
        ("powersgd:rank=1+momentum=0.5+nesterov", 0.5, true),
        ("none+momentum=0.9", 0.9, false),
        ("none+momentum=0.9+nesterov", 0.9, true),
    ];
    for (text, m, nesterov) in texts {
        together(Threads::group(2).expect("two"), |rank, mut group| {
            let mut compressor = Compressor::new(text, [vec![64, 64], vec![100]], RUN).expect("valid");
            let bias = 4096..4196;
            let (mut u, mut mean) = ([[0.0f32; 100]; 2], [0.0f32; 100]);
            for step in 0..6 {
                for (rank, u) in (0..).zip(&mut u) {
                    for (u, g) in u.iter_mut().zip(&gradient(4196, rank, step)[bias.clone()]) {
                        // Of Nesterov's form what is kept is u + g.
                        *u = m * *u + g;
                    }
                }
                for (index, mean) in mean.iter_mut().enumerate() {
                    let sent = |rank: usize| match nesterov {
                        true => gradient(4196, rank as u32, step)[4096 + index] + m * u[rank][index],
                        false => u[rank][index],
                    };
                    *mean = 0.5 * sent(0) + 0.5 * sent(1);
                }
                let mut x = gradient(4196, rank, step);
                compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
                assert_eq!(bits(&x[bias.clone()]), bits(&mean), "{text}, step {step}");
            }
        });
    }
}

#[test]
fn a_momentum_that_is_unmasked_stays_where_entries_are_sent() {
    let mut group = Threads::group(1).expect("one").remove(0);
    for (text, stays) in [("dgc:ratio=0.5", false), ("dgc:ratio=0.5,unmasked", true)] {
        let mut compressor = Compressor::new(text, [[60, 50]], RUN).expect("valid");
        let mut x = gradient(3000, 0, 0);
        compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
        let [_, momentum] = planes(&compressor);
        let zeros = momentum.iter().filter(|u| **u == 0.0).count();
        assert_eq!(zeros, if stays { 0 } else { 1500 }, "{text}");
    }
}
