//! PowerSGD's factors through a quantizer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::exchanges::{Forged, Watched};
use crate::training::{RUN, bits, gradient, tensors, together};
use gradwire::{Compressor, Device, Error, ExchangeError, Matrix, Policy, PowerSgd, Qsgd, Recipe, Seed, Sign, Tensor};
use gradwire_collectives::Threads;
use gradwire_tests::{Depth, require};

/// Matrices with a vector between them, which goes as it is, after the last factor.
const SHAPES: [&[u64]; 3] = [&[64, 48], &[64], &[48, 40]];
const ELEMENTS: usize = 64 * 48 + 64 + 48 * 40;

fn of(text: &str) -> Compressor {
    Compressor::new(text, SHAPES, RUN).expect(text)
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()
}

/// What each rank has of a step: the mean, and the residual after it.
type Seen = (Vec<f32>, Vec<f32>);

/// Steps of all ranks, of gradients by rank and step.
fn run(
    make: impl Fn() -> Compressor + Sync,
    device: &Device,
    ranks: u32,
    steps: u64,
    x: impl Fn(u32, u64) -> Vec<f32> + Sync,
) -> Vec<Vec<Seen>> {
    together(Threads::group(ranks).expect("a group"), |rank, mut group| {
        let mut compressor = make();
        let mut step = |step| {
            let mut x = x(rank, step);
            compressor.exchange(device, &mut group, &mut x).expect("it runs");
            (x, compressor.residual().expect("idle"))
        };
        (0..steps).map(&mut step).collect()
    })
}

/// The steps of a device, and payloads of the CPU: what a compressor does on that device, to the bit. So payloads are
/// the same on every device that has the same factors.
fn by_hand(device: &Device, factors: PowerSgd, quantizer: &str, ranks: u32, steps: u64) -> Vec<Vec<Seen>> {
    let (cpu, weight) = (Device::cpu(), 1.0 / ranks as f32);
    let codec = quantizer.parse::<Recipe>().expect("valid").quantizer().expect("a quantizer");
    let matrices = [Matrix::new(64, 48), Matrix::vector(64), Matrix::new(48, 40)];
    let places = [(0, 0, [64, 48]), (2, 64 * 48 + 64, [48, 40])];
    let of_ranks = || 0..ranks as usize;
    let new = |_| factors.without_feedback().state(&matrices, Seed::new(RUN)).expect("valid");
    let mut states: Vec<_> = of_ranks().map(new).collect();
    let mut residuals = vec![vec![0.0f32; ELEMENTS]; ranks as usize];
    let mut seen = vec![Vec::new(); ranks as usize];
    for step in 0..steps {
        let sums = |rank: usize| -> Vec<f32> {
            gradient(ELEMENTS, rank as u32, step).iter().zip(&residuals[rank]).map(|(g, e)| g + e).collect()
        };
        let sums: Vec<Vec<f32>> = of_ranks().map(sums).collect();
        let begin = |rank: usize| {
            let mut factor = vec![0.0; states[rank].factor_len()];
            device.begin_low_rank(&mut states[rank], &sums[rank], &mut factor).expect("it begins");
            factor
        };
        let mut given: Vec<Vec<f32>> = of_ranks().map(begin).collect();
        let rounds = states[0].rounds();
        let mut own = Vec::new();
        for round in 1..=rounds {
            // Of one-sided steps, every other one ends with the right factor.
            let right = if rounds == 1 { step % 2 == 1 } else { round % 2 == 0 };
            let (mut mean, mut at) = (Vec::new(), 0);
            own = vec![Vec::new(); ranks as usize];
            for (k, (_, _, sides)) in (0..).zip(places) {
                let length = 2 * sides[usize::from(right)];
                let seed = |rank: usize| Seed::new(RUN).step(step).tensor(k).worker(ranks * round + rank as u32);
                let encode =
                    |rank: usize| cpu.encode(&codec, &given[rank][at..at + length], seed(rank)).expect("it encodes");
                let payloads: Vec<_> = of_ranks().map(encode).collect();
                let mut sum = vec![0.0; length];
                cpu.decode_sum(&payloads, weight, &mut sum).expect("valid");
                mean.extend(sum);
                own.iter_mut().zip(&payloads).for_each(|(own, p)| own.push(cpu.decode(p).expect("valid")));
                at += length;
            }
            for place in at..given[0].len() {
                mean.push(given.iter().fold(0.0, |sum, factor| sum + factor[place]) * weight);
            }
            if round < rounds {
                let advance = |rank: usize| {
                    let mut factor = vec![0.0; states[rank].factor_len()];
                    device.advance_low_rank(&mut states[rank], &mean, &mut factor).expect("it advances");
                    factor
                };
                given = of_ranks().map(advance).collect();
                continue;
            }
            for rank in of_ranks() {
                let mut output = vec![0.0; ELEMENTS];
                device.finish_low_rank(&mut states[rank], &mean, &mut output).expect("it ends");
                let residual = &mut residuals[rank];
                residual.fill(0.0);
                for ((tensor, first, [rows, columns]), own) in places.into_iter().zip(&own[rank]) {
                    let [mut left, mut right_factor] = states[rank].factors_of(tensor).expect("compressed");
                    *(if right { &mut right_factor } else { &mut left }) = own.clone();
                    for (i, j) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))) {
                        let sum = left[i] * right_factor[j] + left[rows + i] * right_factor[columns + j];
                        let at = first + i * columns + j;
                        residual[at] = sums[rank][at] - sum;
                    }
                }
                seen[rank].push((output, residual.clone()));
            }
        }
        assert!(!own.is_empty());
    }
    seen
}

#[test]
fn a_step_is_its_stages_one_after_another_on_every_device() {
    let factors = [
        ("powersgd:rank=2", PowerSgd::rank(2)),
        ("powersgd:rank=2,onesided", PowerSgd::rank(2).one_sided()),
        ("powersgd:rank=2,iterations=2", PowerSgd::rank(2).iterations(2)),
    ];
    let mut checked = 0;
    for device in require::devices() {
        for (number, (text, codec)) in factors.into_iter().enumerate() {
            let quantizers = ["qsgd:bits=4,bucket=64", "sign:bucket=whole", "natural:bits=8", "float:e4m3,scaled"];
            for (index, quantizer) in quantizers.into_iter().enumerate() {
                if !runs(&device, index + number) {
                    continue;
                }
                let text = format!("{text}+{quantizer}");
                let found = run(|| of(&text), &device, 3, 3, |rank, step| gradient(ELEMENTS, rank, step));
                let expected = by_hand(&device, codec, quantizer, 3, 3);
                for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
                        assert_eq!(bits(&found.0), bits(&expected.0), "{text} on {device}, rank {rank}, mean {step}");
                        assert_eq!(bits(&found.1), bits(&expected.1), "{text} on {device}, rank {rank}, rest {step}");
                        checked += 1;
                    }
                }
            }
        }
    }
    assert!(checked >= 3 * 4 * 9, "{checked}");
}

/// Whether a case runs on a device: by default one of four has its turn where that is not the CPU.
fn runs(device: &Device, index: usize) -> bool {
    device.kind() == gradwire::BackendKind::Cpu || Depth::of_tests().takes(index, 4)
}

const LAWFUL: [&str; 12] = [
    "powersgd:rank=2+qsgd:bits=4,bucket=64",
    "powersgd:rank=2+qsgd:bits=4,bucket=64+elias",
    "powersgd:rank=4+qsgd:bits=8,bucket=512+delta",
    "powersgd:rank=1+qsgd:bits=2,bucket=64,contractive",
    "powersgd:rank=2,onesided+uniform:bits=8,bucket=64",
    "powersgd:rank=2,iterations=2+natural:bits=8",
    "powersgd:rank=2+onebit:bucket=64",
    "powersgd:rank=2+sign:bucket=whole",
    "powersgd:rank=2+ternary:stretch=1.5,bucket=64+base3",
    "powersgd:rank=2+quantile:levels=16,bucket=256",
    "powersgd:rank=2+float:e4m3,scaled",
    "powersgd:rank=2+tree",
];

/// With feedback nothing is lost, whatever the quantizer makes of the factors: gradients and all residuals are as many
/// times the mean as there are ranks, and all residuals after it. All ranks have the mean's bits.
///
/// What a rank keeps is M - L C(Q)^T of its own, and the mean is L times the mean of all C(Q)^T, each rounded. An entry
/// of either is a sum of r products below |C(Q)|, which is at most 2 |M| for what is tested here, and C(Q)'s mean one
/// of P terms: so the two sides are apart by P (2 r + P + 6) 2^-24 times 2 |M| and the residual's rounding at most, |M|
/// the largest norm of a matrix of a rank.
#[test]
fn no_gradient_is_lost() {
    for device in require::devices() {
        for (_, text) in LAWFUL.into_iter().enumerate().filter(|(index, _)| runs(&device, *index)) {
            for ranks in [1, 3, 4] {
                if ranks == 4 && device.kind() != gradwire::BackendKind::Cpu {
                    continue;
                }
                let seen = run(|| of(text), &device, ranks, 4, |rank, step| gradient(ELEMENTS, rank, step));
                let mut lost = vec![0.0f64; ELEMENTS];
                let (mut slack, mut moved) = (0.0, 0.0f64);
                for step in 0..4usize {
                    let mut most = 0.0f64;
                    for (rank, seen) in (0..).zip(&seen) {
                        let x = gradient(ELEMENTS, rank, step as u64);
                        lost.iter_mut().zip(&x).for_each(|(lost, x)| *lost += f64::from(*x));
                        let before = if step == 0 { 0.0 } else { norm(&seen[step - 1].1) };
                        most = most.max(before + norm(&x));
                    }
                    let mean = &seen[0][step].0;
                    assert!(seen.iter().all(|seen| bits(&seen[step].0) == bits(mean)), "{text}: ranks differ");
                    lost.iter_mut().zip(mean).for_each(|(lost, v)| *lost -= f64::from(ranks) * f64::from(*v));
                    let p = f64::from(ranks);
                    slack += p * (2.0 * 4.0 + p + 6.0) * 2f64.powi(-24) * 2.0 * most;
                    let left = |i: usize| seen.iter().map(|seen| f64::from(seen[step].1[i])).sum::<f64>();
                    for (index, lost) in lost.iter().enumerate() {
                        let left = left(index);
                        moved = moved.max(left.abs());
                        assert!(
                            (lost - left).abs() <= slack,
                            "{text} on {device}, {ranks} ranks, step {step}, element {index}: {lost}, not {left}, to \
                             within {slack}"
                        );
                    }
                }
                // A residual that is not kept would be seen.
                assert!(moved > 100.0 * slack, "{text}: {moved} and {slack}");
            }
        }
    }
}

/// What a rank sends is its own, and so no residual is longer than gradient + residual: |M|^2 - |Q|^2 + |C(Q) - Q|^2,
/// for a quantizer whose error is within |Q| in every draw.
#[test]
fn no_rank_keeps_more_than_it_had() {
    // An element errs by less than a level, so the square of a bucket's error is below 64/127^2 and 512/127^2 of its
    // own; 1 - 1/32 and so on for the others.
    let texts = [
        "powersgd:rank=2+qsgd:bits=8,bucket=64",
        "powersgd:rank=4+qsgd:bits=8,bucket=512",
        "powersgd:rank=2+onebit:bucket=64",
        "powersgd:rank=2+float:e4m3,scaled,nearest",
    ];
    for text in texts {
        // What ranks differ by is of rank 2, the same in each step, and zero in the mean.
        let own = |rank: u32, step: u64| -> Vec<f32> {
            let (mut x, turn) = (gradient(ELEMENTS, 9, step), [1.0, -1.0, 2.0, -2.0][rank as usize]);
            let rows = 0..64usize;
            for (i, j) in rows.flat_map(|i| (0..48).map(move |j| (i, j))) {
                x[i * 48 + j] += turn * ((i % 5) as f32 - 2.0 + (i % 3) as f32 * (j % 4) as f32);
            }
            x
        };
        let steps = 20;
        let seen = run(|| of(text), &Device::cpu(), 4, steps, own);
        for (rank, seen) in (0..).zip(&seen) {
            for step in 0..steps as usize {
                let mut sums = own(rank, step as u64);
                if step > 0 {
                    sums.iter_mut().zip(&seen[step - 1].1).for_each(|(sum, e)| *sum += e);
                }
                // The vector between the matrices is sent whole, and is no part of this.
                sums[64 * 48..64 * 48 + 64].fill(0.0);
                let (kept, had) = (norm(&seen[step].1), norm(&sums));
                assert!(kept <= had * (1.0 + 1e-6), "{text}, rank {rank}, step {step}: {kept} of {had}");
            }
        }
    }
}

fn apart(a: &[f32], b: &[f32]) -> f64 {
    norm(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>())
}

/// A quadratic of which each rank has its own minimum: the mean of the minima is reached to within what the quantizer
/// errs. What the ranks' gradients differ by is the same in every step. Were the mean taken off each rank's residual,
/// in place of what the rank has sent, the differences of all 800 steps would be kept, and the quantizer's error
/// with them: in a model of that, 3.9 % of the way is left with 8 bits, and 70 % with 4.
#[test]
fn it_converges_and_differences_between_ranks_do_not_add_up() {
    let n = 64 * 48;
    let ends: Vec<Vec<f32>> = (0..3).map(|rank| gradient(n, rank, 77)).collect();
    let mean: Vec<f32> = (0..n).map(|i| ends.iter().map(|end| end[i]).sum::<f32>() / 3.0).collect();
    let off = |text: &str| {
        let ends = &ends;
        let found = together(Threads::group(3).expect("three"), |rank, mut group| {
            let mut compressor = Compressor::new(text, [[64, 48]], RUN).expect(text);
            let mut x = vec![0.0f32; n];
            for step in 0..800 {
                let mut g: Vec<f32> = x.iter().zip(&ends[rank as usize]).map(|(x, end)| x - end).collect();
                compressor.exchange(&Device::cpu(), &mut group, &mut g).expect("it runs");
                let rate = if step < 500 { 0.03 } else { 0.01 };
                x.iter_mut().zip(&g).for_each(|(x, g)| *x -= rate * g);
            }
            (x, compressor.residual().expect("idle"))
        });
        assert!(found.iter().all(|(x, _)| bits(x) == bits(&found[0].0)), "{text}: ranks are apart");
        [apart(&found[0].0, &mean) / norm(&mean), apart(&found[0].1, &found[1].1) / apart(&ends[0], &ends[1])]
    };
    for (quantizer, most) in [("", 0.005), ("+qsgd:bits=8,bucket=64", 0.005), ("+qsgd:bits=4,bucket=64", 0.05)] {
        let text = format!("powersgd:rank=4{quantizer}");
        let [off, kept] = off(&text);
        println!("{text}: {off} of the way is left, and the difference of {kept} steps is kept");
        assert!(off < most, "{text}: {off} of the way is left");
        // Sums in f32 see no difference, and keep it.
        assert_eq!(kept < 100.0, !quantizer.is_empty(), "{text}: the difference of {kept} steps is kept");
    }
}

/// A head of a message, a length and a header for each matrix, codes and scales: of factors of 256 and of 512 entries
/// for each rank.
#[test]
fn a_rank_sends_the_bytes_of_the_formula() {
    for ranks in [1u32, 4] {
        for rank_of in [1u64, 4] {
            for (settings, side) in [("", None), (",onesided", Some([256u64, 512]))] {
                let text = format!("powersgd:rank={rank_of}{settings}+qsgd:bits=8,bucket=64");
                together(Threads::group(ranks).expect("a group"), |rank, group| {
                    let mut compressor = Compressor::new(text.as_str(), [[256u64, 512], [3, 3]], 5).expect("valid");
                    let mut group = Watched::new(group);
                    for step in 0..3 {
                        (group.sent, group.kinds) = (0, BTreeMap::new());
                        let foretold = compressor.sent_bytes(rank, ranks).expect("valid");
                        let mut x = gradient(256 * 512 + 9, rank, step);
                        compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
                        let message = |side: u64| 24 + 8 + 32 + side * rank_of + side * rank_of / 64 * 4;
                        let bytes = match side {
                            None => message(256) + message(512),
                            Some(sides) => message(sides[step as usize % 2]),
                        };
                        // Before the first factor, each rank says that it has begun.
                        let begun = 24;
                        assert_eq!(compressor.last_bytes(), bytes + 4 * 9 + begun, "{text}, step {step}");
                        assert_eq!(group.sent, u64::from(ranks - 1) * (bytes + begun), "{text}, step {step}");
                        assert_eq!(foretold, Some(group.sent), "{text}, step {step}");
                        assert_eq!(group.kinds["all_reduce_sum"], 1, "{text}: what goes as it is");
                    }
                });
            }
        }
    }
    let packed = Compressor::new("powersgd+qsgd:bits=4,bucket=64+elias", [[64, 48]], 5).expect("valid");
    assert_eq!(packed.sent_bytes(0, 4).expect("valid"), None, "codes of any length");
    // No matrix gains by factors: nothing is quantized, and nothing gathered.
    let mut plain = Compressor::new("powersgd:rank=30+qsgd:bits=8", [[64, 48]], 5).expect("valid");
    let mut group = Watched::new(Threads::group(1).expect("one").remove(0));
    for step in 0..2 {
        let mut x = gradient(64 * 48, 0, step);
        plain.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
        assert_eq!(bits(&x), bits(&gradient(64 * 48, 0, step)), "it goes as it is");
    }
    assert_eq!(group.kinds["all_gather"], 1, "of the first step");
}

/// Wherever a group fails or bytes are damaged: gradient, residuals, factors and state are as before.
#[test]
fn a_failure_leaves_everything_as_it_was() {
    for text in ["powersgd:rank=2+qsgd:bits=8,bucket=64", "powersgd:rank=2+qsgd:bits=8,bucket=64+momentum=0.5"] {
        let step = |fails: [u32; 2], odd: Option<f32>| {
            let barrier = std::sync::Barrier::new(3);
            together(Threads::group(3).expect("three"), |rank, group| {
                let (mut compressor, mut group) = (of(text), Watched::new(group));
                for step in 0..2 {
                    let mut x = gradient(ELEMENTS, rank, step);
                    compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
                }
                let state = compressor.state().expect("idle");
                // A rank that fails early would end the first step of slower ones.
                barrier.wait();
                let mut x = gradient(ELEMENTS, rank, 2);
                if rank == 1 {
                    (group.calls, group.fails, group.damages) = (0, fails[0], fails[1]);
                    if let Some(odd) = odd {
                        x[7] = odd;
                    }
                }
                let before = x.clone();
                let done = compressor.exchange(&Device::cpu(), &mut group, &mut x);
                let same = bits(&x) == bits(&before) && compressor.state().expect("idle") == state;
                assert_ne!(same, done.is_ok(), "rank {rank}: {done:?}");
                done
            })
        };
        // Each rank says that it has begun. Momentum keeps vectors apart from factors, which are summed before.
        let first = if text.contains("momentum") { 3 } else { 2 };
        for fails in 1..=4 {
            let done = step([fails, 0], None);
            assert!(matches!(done[1], Err(Error::Collective(_))), "call {fails}: {done:?}");
            assert!(done.iter().all(Result::is_err), "call {fails}: {done:?}");
        }
        step([5, 0], None).into_iter().for_each(|done| done.expect("there are four calls"));
        let refused =
            |done: &Result<(), Error>| matches!(done, Err(Error::Exchange(ExchangeError::Refused { rank: 1 })));
        let damaged = |done: &Result<(), Error>| {
            matches!(done, Err(Error::Exchange(ExchangeError::Damaged { rank: 2, tensor: 2, .. })))
        };
        let done = step([0, first], None);
        assert!(refused(&done[0]) && damaged(&done[1]) && refused(&done[2]), "all hear of P: {done:?}");
        let done = step([0, first + 1], None);
        assert!(done[0].is_ok() && damaged(&done[1]) && done[2].is_ok(), "Q has arrived elsewhere: {done:?}");
    }
}

/// What goes wrong on rank 1.
enum Wrong {
    Length,
    /// What arrives with a call, counted from 1.
    Damaged(u32),
    #[cfg_attr(not(feature = "wgpu"), allow(dead_code, reason = "only such a device can be made small"))]
    Device(Device),
}

/// A rank that cannot go on says so with the next message that can: no rank has left its group, and yet none waits.
#[test]
fn every_rank_ends_wherever_one_fails() {
    let alone = || of("powersgd:rank=2+qsgd:bits=8,bucket=64");
    // Two recipes, each with factors, and a vector that is summed before.
    let two = || {
        let policy = Policy::new("powersgd:rank=2+qsgd:bits=8,bucket=64");
        let policy = policy.and_then(|p| p.named("d", "powersgd:rank=1+natural:bits=8")).expect("valid");
        let tensors =
            [("a", &[64u64, 48][..]), ("b", &[64]), ("d", &[48, 40])].map(|(name, shape)| Tensor::new(name, shape));
        Compressor::with_policy(&policy, &tensors, RUN).expect("valid")
    };
    let momentum = || of("powersgd:rank=2+qsgd:bits=8,bucket=64+momentum=0.5");
    let makes: [(&(dyn Fn() -> Compressor + Sync), u32); 3] = [(&alone, 3), (&momentum, 4), (&two, 6)];
    for (make, last) in makes {
        let mut wrongs = vec![(Wrong::Length, true)];
        // With the call that is summed nothing can be damaged. What is damaged in the last is this rank's alone.
        let summed = if last == 3 { 0 } else { 2 };
        wrongs.extend((1..=last).filter(|call| *call != summed).map(|call| (Wrong::Damaged(call), call < last)));
        #[cfg(feature = "wgpu")]
        if let Ok(wgpu) = gradwire::backend::wgpu::Wgpu::open() {
            let limits = gradwire::plan::Limits { binding_bytes: 256, groups: 1, ..gradwire::plan::Limits::NONE };
            wrongs.push((Wrong::Device(wgpu.with_limits(limits).into()), true));
        }
        for (steps, (wrong, told)) in [0, 1, 2].into_iter().flat_map(|steps| wrongs.iter().map(move |w| (steps, w))) {
            let ended = AtomicU32::new(0);
            let done = together(Threads::group(3).expect("three"), |rank, group| {
                let (mut compressor, mut group) = (make(), Watched::new(group));
                let elements = compressor.elements();
                for step in 0..steps {
                    compressor
                        .exchange(&Device::cpu(), &mut group, &mut gradient(elements, rank, step))
                        .expect("it runs");
                }
                let state = compressor.state().expect("idle");
                group.calls = 0;
                let (mut x, cpu) = (gradient(elements, rank, steps), Device::cpu());
                let mut device = &cpu;
                match wrong {
                    _ if rank != 1 => {}
                    Wrong::Length => x.truncate(elements - 1),
                    Wrong::Damaged(call) => group.damages = *call,
                    Wrong::Device(small) => device = small,
                }
                let before = x.clone();
                let done = compressor.exchange(device, &mut group, &mut x);
                let same = bits(&x) == bits(&before) && compressor.state().expect("idle") == state;
                assert_ne!(same, done.is_ok(), "rank {rank}: {done:?}");
                // Until all have ended, all groups stand: a rank that waits longer than a minute finds others gone.
                ended.fetch_add(1, Ordering::SeqCst);
                let until = Instant::now() + Duration::from_secs(60);
                while ended.load(Ordering::SeqCst) < 3 && Instant::now() < until {
                    std::thread::yield_now();
                }
                (done, group.calls)
            });
            match (wrong, &done[1].0) {
                (Wrong::Length, Err(Error::Length { .. })) | (Wrong::Device(_), Err(Error::Limit { .. })) => {}
                (Wrong::Damaged(_), Err(Error::Exchange(error))) => {
                    assert!(!matches!(error, ExchangeError::Refused { .. }), "{error:?}");
                }
                (_, other) => panic!("{other:?}"),
            }
            for (done, calls) in [&done[0], &done[2]] {
                match done {
                    Ok(()) => assert!(!told && *calls == last + u32::from(last == 3), "{calls} calls"),
                    Err(Error::Exchange(ExchangeError::Refused { rank: 1 })) => assert!(told),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

/// A NaN of one rank makes its matrix one on every rank, and no other; under `finite` all refuse, and go on.
#[test]
fn what_is_not_finite_fails_the_step_with_finite() {
    let text = "powersgd:rank=2+qsgd:bits=4,bucket=64+finite";
    together(Threads::group(3).expect("three"), |rank, mut group| {
        let mut compressor = of(text);
        for step in 0..3 {
            let (mut x, before) = (gradient(ELEMENTS, rank, step), compressor.state().expect("idle"));
            if (rank, step) == (1, 1) {
                x[70] = f32::NAN;
            }
            let done = compressor.exchange(&Device::cpu(), &mut group, &mut x);
            match (step, rank, done) {
                (0 | 2, _, done) => done.expect("the group goes on"),
                (_, 1, done) => assert!(matches!(done, Err(Error::NotFinite { index: 70 })), "{done:?}"),
                (_, _, done) => {
                    assert!(matches!(done, Err(Error::Exchange(ExchangeError::Refused { rank: 1 }))), "{done:?}");
                    assert!(compressor.state().expect("idle") == before);
                }
            }
        }
    });
}

#[test]
fn hostile_messages_end_in_a_typed_error_and_change_nothing() {
    let text = "powersgd:rank=1+qsgd:bits=4,bucket=64";
    let mut compressor = Compressor::new(text, [[33, 32], [32, 40]], RUN).expect(text);
    compressor.exchange(&Device::cpu(), &mut Forged(<[u8]>::to_vec), &mut gradient(2336, 0, 0)).expect("an echo");
    let (state, x) = (compressor.state().expect("idle"), gradient(2336, 0, 1));
    let mut lengths = Vec::new();
    let note = |mine: &[u8]| {
        lengths.push(mine.len());
        mine.to_vec()
    };
    compressor.clone().exchange(&Device::cpu(), &mut Forged(note), &mut x.clone()).expect("an echo");
    assert_eq!(lengths.len(), 3, "a head, and two factors");
    let mut refused = |round: usize, forge: &(dyn Fn(&[u8]) -> Vec<u8> + Sync), what: &str| {
        let (mut calls, mut given) = (0, x.clone());
        let mut group = Forged(|mine: &[u8]| {
            calls += 1;
            if calls == round { forge(mine) } else { mine.to_vec() }
        });
        let error = compressor.exchange(&Device::cpu(), &mut group, &mut given).expect_err(what);
        assert!(matches!(error, Error::Exchange(_)), "{what}: {error:?}");
        assert!(compressor.state().expect("idle") == state && bits(&given) == bits(&x), "{what}");
        error
    };
    let encode = |bits, n| Device::cpu().encode(&Qsgd::bits(bits).bucket(64), &vec![1.0f32; n], Seed::new(1));
    for (round, length) in (1..).zip(lengths) {
        for at in 0..length {
            let turned = |mine: &[u8]| {
                let mut bytes = mine.to_vec();
                bytes[at] ^= 0x55;
                bytes
            };
            refused(round, &turned, &format!("message {round}, byte {at}"));
            refused(round, &|mine| mine[..at].to_vec(), &format!("message {round}, {at} bytes"));
        }
        refused(round, &|mine| [mine, &[0; 8]].concat(), "one more");
        if round == 1 {
            continue;
        }
        // Readable, and another codec's setting, or of another matrix's length.
        for (bits, n, differs) in [(8, 33, "setting"), (4, 34, "length")] {
            let payload = encode(bits, n).expect("it encodes").into_bytes();
            let one = [&(payload.len() as u64).to_le_bytes()[..], &payload].concat();
            let error = refused(round, &|mine| [&mine[..24], &one, &one].concat(), differs);
            assert!(
                matches!(error, Error::Exchange(ExchangeError::Payload { rank: 1, tensor: 0, .. })),
                "{differs}: {error:?}"
            );
        }
    }
}

/// A state goes on with the bits of an uninterrupted run, and for other numbers of ranks with all that was kept.
#[test]
fn a_state_that_is_saved_and_restored_goes_on() {
    let text = "powersgd:rank=2+qsgd:bits=4,bucket=64+momentum=0.5";
    let run = |ranks: u32, states: Option<&[Vec<u8>]>, steps: std::ops::Range<u64>| {
        together(Threads::group(ranks).expect("a group"), |rank, mut group| {
            let mut compressor = of(text);
            if let Some(states) = states {
                compressor.restore(states, rank, ranks).expect("its own");
            }
            let kept = compressor.residual().expect("idle");
            for step in steps.clone() {
                let mut x = gradient(ELEMENTS, rank, step);
                compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
            }
            (compressor.state().expect("idle"), kept)
        })
    };
    let states = |of: Vec<(Vec<u8>, Vec<f32>)>| -> Vec<Vec<u8>> { of.into_iter().map(|(state, _)| state).collect() };
    let saved = states(run(3, None, 0..3));
    assert!(states(run(3, Some(&saved), 3..5)) == states(run(3, None, 0..5)));
    let mass = |ranks| -> Vec<f64> {
        let all = run(ranks, Some(&saved), 3..3);
        (0..ELEMENTS).map(|i| all.iter().map(|(_, kept)| f64::from(kept[i])).sum()).collect()
    };
    let expected = mass(3);
    for ranks in [1, 2, 5] {
        let apart = mass(ranks).iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        // Two additions of residuals below 2^5.
        assert!(apart <= 2.0 * 2f64.powi(5 - 24), "{ranks} ranks: {apart}");
    }
}

#[test]
fn stages_that_do_not_go_with_it_say_what_to_do() {
    let text = |text: &str| text.parse::<Recipe>().map(|recipe| recipe.to_string()).map_err(|error| error.to_string());
    let both = "powersgd:rank=4+qsgd:bits=8";
    for order in [both, "qsgd:bits=8+powersgd:rank=4", "ef+powersgd+qsgd:bits=8"] {
        assert_eq!(text(order).as_deref(), Ok(both));
    }
    assert_eq!(text("qsgd:bits=4+powersgd+elias+noef").as_deref(), Ok("powersgd:rank=4+qsgd:bits=4+elias+noef"));
    let typed = Recipe::from(PowerSgd::rank(4)).quantize(Qsgd::bits(8));
    assert_eq!((typed.to_string().as_str(), typed.is_linear()), (both, false));
    assert!(typed.quantizer().is_none() && typed.selection().is_none());
    let promise = typed.promise(10_000).expect("valid");
    assert!(!promise.linear && !promise.unbiased && promise.delta.is_none() && promise.omega == Some(1.0));
    let coarse = "powersgd:rank=4+qsgd:bits=2,bucket=64+noef".parse::<Recipe>().expect("valid");
    assert_eq!(coarse.promise(10_000).expect("valid").omega, Some(8.0), "sqrt(64) over a level");
    for (refused, remedy) in [
        ("powersgd+f16", "float:f16"),
        ("powersgd+sign:unit+noef+vote", "leave out vote"),
        ("powersgd+rotate+qsgd+noef", "leave out rotate"),
        ("powersgd+dct+qsgd", "leave out powersgd"),
        ("powersgd+qsgd+twophase", "leave out twophase"),
        ("powersgd+qsgd+gtopk", "leave out gtopk"),
        ("powersgd+qsgd+ef21", "leave out ef21"),
        ("powersgd+qsgd+ef:beta=0.5", "leave out beta"),
        ("powersgd+qsgd+topk:0.1", "another kind"),
        ("powersgd+qsgd+uniform", "another kind"),
        ("powersgd+none", "another kind"),
        ("powersgd+uniform+elias", "leave out elias"),
        ("powersgd+qsgd+noef+momentum=0.5", "neither"),
    ] {
        let error = text(refused).expect_err(refused);
        assert!(error.contains(remedy), "{refused}: {error}");
    }
    // What feedback multiplies is found where the length of a factor is known, and is refused there.
    let new = |recipe: Recipe| Compressor::new(recipe, [[900, 900]], RUN).map(drop);
    let wide = Recipe::from(PowerSgd::rank(4)).quantize(Qsgd::bits(2).bucket(8192));
    let error = new(wide.clone()).expect_err("omega is 60");
    assert!(matches!(error, Error::FeedbackDiverges { omega, .. } if omega > 50.0), "{error:?}");
    assert!(error.to_string().contains("contractive()"), "{error}");
    new(wide.clone().without_feedback()).expect("without feedback nothing is multiplied");
    new(wide.quantize(Qsgd::bits(2).bucket(8192).contractive())).expect("a contraction");
    let error = new(Recipe::from(PowerSgd::rank(4)).quantize(Sign::unit())).expect_err("signs alone");
    assert!(error.to_string().contains("Sign::new()"), "{error}");
    let policy = Policy::new(both).expect("valid").all_reduce_only();
    let error = Compressor::with_policy(&policy, &[Tensor::new("", [100, 100])], 1).expect_err("codes");
    assert!(error.to_string().contains("without a quantizer of its factors"), "{error}");
}

/// Beside other recipes, packed; taken back; and on ranks that are handed another's tensors.
#[test]
fn it_goes_beside_other_recipes_and_is_taken_back() {
    let make = || {
        let policy = Policy::new("qsgd:bits=8,bucket=64+ef").and_then(|p| p.named("b.*", "topk:0.1+ef"));
        let policy = policy.and_then(|p| p.named("d", "powersgd:rank=2+qsgd:bits=4,bucket=64")).expect("valid");
        Compressor::with_policy(&policy, &tensors(), RUN).expect("valid")
    };
    let all = together(Threads::group(2).expect("two"), |rank, mut group| {
        let mut compressor = make();
        let mut step = |compressor: &mut Compressor, step| {
            let mut x = gradient(compressor.elements(), rank, step);
            compressor.exchange(&Device::cpu(), &mut group, &mut x).expect("it runs");
            (bits(&x), compressor.state().expect("idle"))
        };
        step(&mut compressor, 0);
        let before = compressor.state().expect("idle");
        let first = step(&mut compressor, 1);
        compressor.undo().expect("a step");
        assert!(compressor.state().expect("idle") == before);
        assert!(step(&mut compressor, 1) == first);
        first.0
    });
    assert!(all[0] == all[1]);
}

/// Each call of one rank's device fails in turn: all is as it was there, and the other rank is told with the next
/// factor, or has what it needs.
#[cfg(feature = "cuda")]
#[test]
fn a_device_that_fails_on_one_rank_ends_the_step_on_the_other() {
    use std::sync::Arc;

    use crate::training::faulty::Faulty;
    use gradwire::backend::cuda::Cuda;
    use gradwire_ptx_machine::Machine;

    let machine = Arc::new(Machine::new((8, 0), 1));
    let (mut told, mut late) = (0, 0);
    for calls in 0.. {
        let driver = Arc::new(Faulty::new(machine.clone()));
        let device = Device::from(Cuda::with_driver(driver.clone(), None).expect("an artifact that fits"));
        let done = together(Threads::group(2).expect("two"), |rank, mut group| {
            let text = "powersgd:rank=1+qsgd:bits=8,bucket=64";
            let mut compressor = Compressor::new(text, [[40, 32]], RUN).expect(text);
            let first = compressor.exchange(&Device::cpu(), &mut group, &mut gradient(1280, rank, 0));
            first.expect("nothing fails yet");
            let (state, mut x) = (compressor.state().expect("idle"), gradient(1280, rank, 1));
            let own = if rank == 1 { &device } else { &Device::cpu() };
            if rank == 1 {
                driver.fail_behind(calls);
            }
            let done = compressor.exchange(own, &mut group, &mut x);
            if done.is_err() {
                assert!(compressor.state().expect("idle") == state, "{calls} calls, rank {rank}: the state");
                assert_eq!(bits(&x), bits(&gradient(1280, rank, 1)), "{calls} calls, rank {rank}: the gradient");
            }
            done
        });
        if !driver.has_failed() {
            driver.fail_behind(u32::MAX);
            done.into_iter().for_each(|done| done.expect("no call was left to fail"));
            break;
        }
        match (&done[1], &done[0]) {
            (Err(Error::Backend { .. }), Err(Error::Exchange(ExchangeError::Refused { rank: 1 }))) => told += 1,
            (Err(Error::Backend { .. }), Ok(())) => late += 1,
            // What only makes a step faster may fail.
            (Ok(()), Ok(())) => {}
            _ => panic!("{calls} calls: {done:?}"),
        }
    }
    assert!(told > 10 && late > 2, "{told} and {late}");
}
