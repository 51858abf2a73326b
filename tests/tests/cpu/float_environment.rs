//! A caller whose floating-point environment is not the standard one: bytes, values and state are what they are in the
//! standard one, and afterwards each thread has the environment that it had.

use std::collections::BTreeMap;

use gradwire::{
    Compressor, Dct, Device, Dtype, Error, Estimate, Layout, LazyResidual, Matrix, Payload, PowerSgd, Qsgd, RandomK,
    Recipe, Rotation, Seed, Sign, SparsePayload, TopK,
};
use gradwire_collectives::Threads;
use gradwire_tests::cases::{self, Case};
use gradwire_tests::low_rank;

/// The register's control bits that a caller may have set, each with its name.
#[cfg(target_arch = "x86_64")]
mod register {
    use std::arch::asm;

    pub(super) type Word = u32;
    pub(super) const STANDARD: Word = 0x1f80;
    /// Subnormal operands are zeros, subnormal results too, as `torch.set_flush_denormal(True)` has it; and the ways of
    /// rounding.
    pub(super) const OTHERS: [(&str, Word); 4] = [
        ("flushed", STANDARD | 0x8040),
        ("toward zero", STANDARD | 0x6000),
        ("up", STANDARD | 0x4000),
        ("down and flushed", STANDARD | 0x2000 | 0x8040),
    ];

    /// Without the flags of exceptions that were raised.
    pub(super) fn get() -> Word {
        let mut word: Word = 0;
        // SAFETY: the instruction needs four bytes that it may write.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) };
        word & 0xffc0
    }

    pub(super) fn set(word: Word) {
        // SAFETY: the instruction needs four bytes that it may read; all words here have bits that exist alone. What
        // runs until the standard environment is back computes nothing in floating point but what is tested.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack)) };
    }
}

#[cfg(target_arch = "aarch64")]
mod register {
    use std::arch::asm;

    pub(super) type Word = u64;
    pub(super) const STANDARD: Word = 0;
    /// Flush to zero, and the ways of rounding.
    pub(super) const OTHERS: [(&str, Word); 4] =
        [("flushed", 1 << 24), ("toward zero", 3 << 22), ("up", 1 << 22), ("down and flushed", 2 << 22 | 1 << 24)];

    pub(super) fn get() -> Word {
        let word: Word;
        // SAFETY: every program may read the register.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nostack, preserves_flags)) };
        word
    }

    pub(super) fn set(word: Word) {
        // SAFETY: every program may write the register. What runs until the standard environment is back computes
        // nothing in floating point but what is tested.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nostack)) };
    }
}

/// Elsewhere nothing is promised, since there is nothing to set.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod register {
    pub(super) type Word = u32;
    pub(super) const STANDARD: Word = 0;
    pub(super) const OTHERS: [(&str, Word); 0] = [];

    pub(super) fn get() -> Word {
        STANDARD
    }

    pub(super) fn set(_: Word) {}
}

/// A long input is cut into several tasks, a short one is not.
const LENGTHS: [usize; 2] = [1000, 200_000];
/// A gradient's usual size, one whose products are subnormal, and subnormal values.
const SCALES: [f32; 3] = [1e-3, 1e-36, 1e-40];

fn input(n: usize, scale: f32, seed: u64) -> Vec<f32> {
    cases::normal(n, seed).into_iter().map(|value| value * 100.0 * scale).collect()
}

/// Results by their names, as bytes.
type Results = BTreeMap<String, Vec<u8>>;

/// Runs `work` in a pool of its own and on the calling thread, whose environments are all `word`. They have to be as
/// they were afterwards.
fn within(word: register::Word, work: impl Fn(&mut Results) + Sync) -> [Results; 2] {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().expect("threads");
    let before = register::get();
    pool.broadcast(|_| register::set(word));
    register::set(word);
    let mut results = [Results::new(), Results::new()];
    work(&mut results[0]);
    pool.install(|| work(&mut results[1]));
    let behind = (register::get(), pool.broadcast(|_| register::get()));
    register::set(before);
    assert_eq!(behind, (word, vec![word; 3]), "each thread has its environment back");
    results
}

/// Compares what `work` comes to in every environment with what it comes to in the standard one.
fn same_everywhere(what: &str, work: impl Fn(&mut Results) + Sync) {
    let [expected, in_pool] = within(register::STANDARD, &work);
    assert!(expected == in_pool, "{what}: threads change nothing");
    assert!(!expected.is_empty(), "{what}: nothing was done");
    for (name, word) in register::OTHERS {
        for found in within(word, &work) {
            let differ = |key: &&String| found.get(*key) != expected.get(*key);
            let differ: Vec<&String> = expected.keys().chain(found.keys()).filter(differ).collect();
            assert!(differ.is_empty(), "{what}, {name}: {differ:?} differ");
        }
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_bits().to_le_bytes()).collect()
}

/// Everything that is done with a codec's payload.
fn codec(case: &Case, x: &[f32], residual: &[f32], to: &mut Results) {
    let (device, codec, label) = (Device::cpu(), case.codec(), case.label());
    let mut put = |what: &str, bytes: Vec<u8>| drop(to.insert(format!("{label}: {what}"), bytes));
    let sent = device.encode(&codec, x, cases::seed()).expect("it encodes");
    put("payload", sent.as_bytes().to_vec());
    let read = Payload::from_bytes(sent.as_bytes()).expect("it is whole");
    put("decoded", bytes(&device.decode(&read).expect("it decodes")));
    let mut sum = residual.to_vec();
    device.decode_add(&sent, 0.3, &mut sum).expect("it is added");
    put("added", bytes(&sum));
    device.decode_sum(&[&sent, &sent, &sent], 1.0 / 3.0, &mut sum).expect("they are summed");
    put("summed", bytes(&sum));
    let mut left = residual.to_vec();
    match device.encode_with_feedback(&codec, x, &mut left, cases::seed()) {
        Ok(sent) => put("with feedback", sent.into_bytes()),
        Err(Error::FeedbackDiverges { .. }) => {}
        Err(error) => panic!("{label}: {error}"),
    }
    put("residual", bytes(&left));
}

#[test]
fn every_codec_has_the_bytes_and_values_of_the_standard_environment() {
    let settings = cases::settings();
    for n in LENGTHS {
        for scale in SCALES {
            let (x, residual) = (input(n, scale, 1), input(n, scale, 2));
            // Of long inputs one setting of each formula: a task does the same with all of them.
            let mut kinds = Vec::new();
            let is_taken = |case: &&Case| {
                let is_new = !kinds.contains(&case.kind);
                kinds.push(case.kind);
                n == LENGTHS[0] || is_new
            };
            let taken: Vec<&Case> = settings.iter().filter(is_taken).collect();
            same_everywhere(&format!("{n} elements of {scale:e}"), |to| {
                taken.iter().for_each(|case| codec(case, &x, &residual, to));
            });
        }
    }
}

/// Selections, with and without a residual, and what becomes of their payloads.
fn selections(x: &[f32], residual: &[f32], to: &mut Results) {
    let device = Device::cpu();
    let above = x.iter().map(|v| v.to_bits() & 0x7fff_ffff).max().map_or(0.0, |most| f32::from_bits(most / 2));
    let codecs = [
        ("fraction", TopK::fraction(0.01)),
        ("blocks", TopK::blocks(256, 5)),
        ("above", TopK::above(above)),
        ("f16", TopK::fraction(0.1).values(Dtype::F16)),
        ("bf16", TopK::fraction(0.1).values(Dtype::Bf16)),
        ("quantized", TopK::fraction(0.1).then(Qsgd::bits(4).bucket(32))),
        ("gaussian", TopK::estimate(0.01, Estimate::Gaussian)),
        ("sidco", TopK::estimate(0.01, Estimate::Sidco)),
        ("per sign", TopK::per_sign(0.01)),
    ];
    for (name, codec) in codecs {
        let mut put = |what: &str, bytes: Vec<u8>| drop(to.insert(format!("top-k, {name}: {what}"), bytes));
        let sent = device.encode_sparse(&codec, x, cases::seed()).expect("it encodes");
        put("payload", sent.as_bytes().to_vec());
        let read = SparsePayload::from_bytes(sent.as_bytes()).expect("it is whole");
        put("decoded", bytes(&device.decode_sparse(&read).expect("it decodes")));
        let mut sum = residual.to_vec();
        device.decode_sparse_add(&sent, 0.3, &mut sum).expect("it is added");
        put("added", bytes(&sum));
        device.decode_sparse_sum(&[&sent, &sent, &sent], 1.0 / 3.0, &mut sum).expect("they are summed");
        put("summed", bytes(&sum));
        let mut left = residual.to_vec();
        let other = device.encode_sparse_with_feedback(&codec, x, &mut left, cases::seed()).expect("it encodes");
        put("with feedback", other.as_bytes().to_vec());
        put("residual", bytes(&left));
        if !matches!(name, "gaussian" | "sidco" | "per sign") {
            let merged = device.merge_sparse(&codec, &sent, &other, &mut left, cases::seed()).expect("they merge");
            put("merged", merged.as_bytes().to_vec());
            put("residual of the merge", bytes(&left));
        }
    }
    let mut lazy = LazyResidual::from(residual.to_vec());
    for step in 0..2 {
        let sent = device.encode_sparse_lazily(&TopK::fraction(0.01), x, &mut lazy, cases::seed().step(step));
        to.insert(format!("lazy step {step}"), sent.expect("it encodes").into_bytes());
    }
    to.insert("lazy residual".into(), bytes(&lazy.into_values()));
}

/// What changes or mixes a gradient.
fn transforms(x: &[f32], residual: &[f32], to: &mut Results) {
    let (device, n) = (Device::cpu(), x.len());
    let mut put = |what: &str, values: Result<Vec<f32>, Error>| {
        let values = values.unwrap_or_else(|error| panic!("{what}: {error}"));
        to.insert(what.into(), bytes(&values));
        values
    };
    let rotation = Rotation::block(1024);
    let rotated = put("rotated", device.rotate(rotation, x, cases::seed()));
    put("turned back", device.unrotate(rotation, &rotated, n, cases::seed()));
    let dct = Dct::block(64);
    let coefficients = put("dct", device.dct(dct, x));
    put("inverse dct", device.inverse_dct(dct, &coefficients));
    for (name, codec) in [("random-k", RandomK::fraction(0.1)), ("unbiased", RandomK::fraction(0.3).unbiased())] {
        let sent = put(name, device.encode_random(&codec, x, cases::seed()));
        put(&format!("{name}, decoded"), device.decode_random(&codec, &sent, n, cases::seed()));
        let mut sum = residual.to_vec();
        device.decode_random_add(&codec, &sent, 0.3, &mut sum, cases::seed()).expect("it is added");
        put(&format!("{name}, added"), Ok(sum));
    }
    let mut left = residual.to_vec();
    let codec = RandomK::fraction(0.1);
    put("random-k with feedback", device.encode_random_with_feedback(&codec, x, &mut left, cases::seed()));
    put("its residual", Ok(left));
    let voters = [x, residual].map(|x| device.encode(&Sign::unit(), x, cases::seed()).expect("it encodes"));
    let mut votes = vec![0.0; n];
    device.vote(&voters, &mut votes).expect("they vote");
    put("votes", Ok(votes));
    let layout = Layout::from_shapes([&[10, 30][..], &[n as u64 - 300]]).expect("tensors");
    let plan = device.model_plan(&Qsgd::bits(8), &layout, Dtype::F32).and_then(|plan| plan.with_feedback());
    let (plan, mut left) = (plan.expect("a plan"), residual.to_vec());
    let model = device.encode_model(&plan, x, &mut left, cases::seed()).expect("it encodes");
    put("residual of a model", Ok(left));
    for (tensor, payload) in model.iter().enumerate() {
        to.insert(format!("tensor {tensor}"), payload.as_bytes().to_vec());
    }
}

#[test]
fn selections_and_transforms_do_too() {
    for n in LENGTHS {
        for scale in SCALES {
            let (x, residual) = (input(n, scale, 3), input(n, scale, 4));
            same_everywhere(&format!("{n} elements of {scale:e}"), |to| {
                selections(&x, &residual, to);
                transforms(&x, &residual, to);
            });
        }
    }
}

#[test]
fn factors_do_too() {
    for (rows, columns) in [(40, 25), (700, 900)] {
        let elements = (rows * columns) as usize;
        for scale in [1e-3, 1e-18, 1e-36] {
            let gradients = [5, 6].map(|seed| input(elements + 7, scale, seed));
            same_everywhere(&format!("{rows} x {columns} of {scale:e}"), |to| {
                let codec = PowerSgd::rank(3).iterations(2).min_compression(0.0);
                let mut state =
                    codec.state(&[Matrix::new(rows, columns), Matrix::vector(7)], Seed::new(7)).expect("valid");
                for (step, gradient) in gradients.iter().enumerate() {
                    let output = low_rank::step(&Device::cpu(), &mut state, gradient);
                    to.insert(format!("output of step {step}"), bytes(&output));
                }
                to.insert("residual".into(), bytes(&state.residual().expect("there is memory")));
                let saved = state.to_bytes().expect("there is memory");
                let again =
                    codec.restore(&[Matrix::new(rows, columns), Matrix::vector(7)], &saved).expect("it is whole");
                to.insert("state".into(), again.to_bytes().expect("there is memory"));
            });
        }
    }
}

/// Recipes beside those of [`Recipe::methods`]: every memory, transform and way of exchange.
const RECIPES: [&str; 20] = [
    "none",
    "qsgd:bits=4,bucket=64,contractive+ef",
    "qsgd:bits=4,bucket=64+elias",
    "float:int8,scaled+delta",
    "float:e4m3,scaled+twophase",
    "uniform:bits=8,bucket=64+twophase+ef",
    "topk:0.1+qsgd:bits=4,bucket=32+ef",
    "topk:0.1+ef+gtopk",
    "topk:0.1,estimate=gaussian+ef",
    "topk:0.1,estimate=sidco+momentum=0.9",
    "topk:0.1+ef21",
    "natural:bits=8+diana",
    "dgc:ratio=0.1,nesterov,clip=0.0001",
    "dct+topk:0.1+ef",
    "qsgd:bits=4,bucket=32+ef:beta=0.5,gamma=0.7",
    "eden:bits=2,bucket=1024",
    "rotate:common+drive:bucket=1024",
    "randomk:0.3,unbiased",
    "powersgd:rank=2+qsgd:bits=8",
    "powersgd:rank=2+momentum=0.9",
];

/// Steps of two ranks.
fn train(recipe: &str, shapes: &[Vec<u64>], gradients: &[Vec<f32>], to: &mut Results) {
    let group = Threads::group(2).expect("two ranks");
    let steps = |rank: usize, mut group: Threads| {
        let mut compressor = Compressor::new(recipe, shapes, 7).unwrap_or_else(|error| panic!("{recipe}: {error}"));
        let mut found = Vec::new();
        for step in 0..2 {
            let mut gradient = gradients[(rank + step) % gradients.len()].clone();
            let done = compressor.exchange(&Device::cpu(), &mut group, &mut gradient);
            done.unwrap_or_else(|error| panic!("{recipe}: {error}"));
            found.push(bytes(&gradient));
        }
        found.push(bytes(&compressor.residual().expect("there is memory")));
        found.push(compressor.state().expect("there is memory"));
        found
    };
    // A thread has the environment of the one that makes it, and so have those of the rank's own pool.
    let of_rank = |rank: usize, group: Threads| {
        let word = register::get();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).start_handler(move |_| register::set(word)).build();
        pool.expect("threads").install(|| steps(rank, group))
    };
    let ranks: Vec<Vec<Vec<u8>>> = std::thread::scope(|scope| {
        let of_rank = &of_rank;
        let ranks = group.into_iter().enumerate().map(|(rank, group)| scope.spawn(move || of_rank(rank, group)));
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().expect("a rank")).collect()
    });
    for (rank, found) in ranks.into_iter().enumerate() {
        for (what, found) in ["mean 1", "mean 2", "residual", "state"].into_iter().zip(found) {
            to.insert(format!("{recipe}, rank {rank}: {what}"), found);
        }
    }
}

#[test]
fn compressors_of_every_recipe_do_too() {
    let recipes = || Recipe::methods().iter().map(|method| method.recipe).chain(RECIPES);
    for (shapes, scales) in [(vec![vec![24, 40], vec![40]], &SCALES[..]), (vec![vec![300, 400]], &SCALES[1..2])] {
        let elements = shapes.iter().map(|shape: &Vec<u64>| shape.iter().product::<u64>() as usize).sum();
        for scale in scales {
            let gradients = [7, 8, 9].map(|seed| input(elements, *scale, seed));
            for recipe in recipes() {
                same_everywhere(&format!("{recipe}, {elements} elements of {scale:e}"), |to| {
                    train(recipe, &shapes, &gradients, to);
                });
            }
        }
    }
}

/// The check is one that can fail.
#[test]
fn the_environments_are_other_ones() {
    for (name, word) in register::OTHERS {
        let before = register::get();
        register::set(word);
        let (half, third) = std::hint::black_box((
            std::hint::black_box(f32::MIN_POSITIVE) * std::hint::black_box(0.5),
            [1.0, -1.0].map(|one| std::hint::black_box(one) / std::hint::black_box(3f32)),
        ));
        register::set(before);
        let nearest = [1.0 / 3.0, -1.0 / 3.0].map(f32::to_bits);
        let is_same = half.to_bits() == (f32::MIN_POSITIVE * 0.5).to_bits() && third.map(f32::to_bits) == nearest;
        assert!(!is_same, "{name} computes as the standard environment does");
    }
}
