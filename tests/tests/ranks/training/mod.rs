//! A model, recipes for it, and ranks that run them.

#[cfg(feature = "cuda")]
pub(crate) mod faulty;
pub(crate) mod forging;

use std::thread;

use gradwire::{Collective, CollectiveError, Compressor, NonFinite, Policy, Recipe, Tensor};
use gradwire_collectives::Threads;
use gradwire_tests::cases;

pub(crate) const RUN: u64 = 11;

/// The tensors of a small model: matrices, and vectors that the default policy leaves alone.
pub(crate) fn tensors() -> Vec<Tensor> {
    let shapes: [(&str, &[u64]); 6] = [
        ("a.weight", &[64, 48]),
        ("a.bias", &[64]),
        ("b.weight", &[48, 40]),
        ("b.bias", &[48]),
        ("c", &[1, 5000]),
        ("d", &[35, 41]),
    ];
    shapes.into_iter().map(|(name, shape)| Tensor::new(name, shape)).collect()
}

pub(crate) const TEXTS: [&str; 67] = [
    "none",
    "qsgd:bits=4,bucket=64+ef",
    "qsgd:bits=8,bucket=whole",
    "qsgd:bits=4,bucket=64,l2,contractive+elias+ef",
    "uniform:bits=4,bucket=32+momentum=0.9",
    "onebit",
    "topk:0.01+ef",
    "topk:k=5+natural:bits=8",
    "topk:k=2,block=64+onebit:bucket=whole",
    "topk:above=0.02+ef",
    "topk:0.02,estimate=gaussian+qsgd:bits=4,bucket=32+ef",
    "topk:0.05,estimate=sidco,warmup=3+momentum=0.5",
    "topk:0.3,persign+onebit:bucket=whole+ef",
    "topk:0.05,persign,warmup=3+momentum=0.5",
    "topk:0.05+qsgd:bits=4,bucket=32+ef",
    "topk:0.05+qsgd:bits=4,bucket=32,l2,contractive+elias+ef",
    "topk:0.02+momentum=0.9",
    "powersgd:rank=2",
    "powersgd:rank=1+momentum=0.5",
    "powersgd:rank=2+qsgd:bits=8,bucket=64+elias",
    "powersgd:rank=1,onesided+float:e4m3,scaled+momentum=0.5+nesterov",
    "powersgd:rank=12,iterations=2+sign:bucket=whole",
    "topk:0.05+ef21",
    "qsgd:bits=4,bucket=64+elias+diana",
    "onebit+ef:beta=0.5,gamma=2",
    "topk:0.02+ef:beta=0.75+momentum=0.5",
    "dgc:ratio=0.01,warmup=3",
    "dgc:ratio=0.02,nesterov,clip=3",
    "dgc:ratio=0.02,unmasked",
    "none+momentum=0.5+nesterov",
    "powersgd:rank=1+momentum=0.5+nesterov",
    // Within the norm on one rank, and not on more.
    "qsgd:bits=4,bucket=64+ef+clip=100+peers:norm=1000",
    "natural:bits=8+ef",
    "tree+ef",
    "quantile:levels=16,bucket=256+ef",
    "topk:0.1+quantile:levels=16,bucket=256+ef",
    "float:bf16",
    "float:e2m1,scaled,nearest+ef",
    "float:int16,bound=0.001+elias",
    "float:int8,bound=0.004+ef",
    "topk:0.05+qsgd:bits=8,bucket=64+delta+ef",
    "sign",
    "sign:unit",
    "drive:bucket=512",
    "rotate:common+drive:bucket=512",
    "eden:bits=3,bucket=256",
    "rotate:block=64,own+qsgd:bits=4,bucket=64+elias",
    "signum",
    "ternary:clip=2.5+elias",
    "qsgd:bits=3,bucket=whole,l2,contractive+sparse+ef",
    "ternary:stretch=1.5,bucket=64+base3",
    "qsgd:bits=4,bucket=64+noef+momentum=0.5",
    "randomk:0.05",
    "randomk:k=40+noef",
    "randomk:0.6,unbiased",
    "randomk:0.1+clip=3",
    "rotate+qsgd:bits=4",
    "rotate:block=256+uniform:bits=4,bucket=256+noef+momentum=0.5",
    "rotate+ternary:bucket=1024+elias",
    "rotate:block=32+uniform:bits=4,bucket=whole",
    "dct:block=8+topk:k=6,block=64,clamped+ef:beta=0.75",
    "dct+topk:0.1+clip=0.5+momentum=0.5+nesterov",
    "dct:block=32+qsgd:bits=4,bucket=64+ef",
    "dct:block=2+onebit+noef+momentum=0.5",
    "dct:block=16+randomk:0.1",
    "dct+topk:0.05+ef21",
    "dct:block=8,tiles+topk:k=6,block=64,clamped+ef:beta=0.75",
];

/// Recipes of gradients in the host's memory alone: other algorithms than a gather.
pub(crate) const HOST_ALONE: [&str; 5] = [
    "topk:0.02+ef+gtopk",
    "qsgd:bits=4,bucket=64+ef+twophase",
    "quantile:levels=64,bucket=512+ef+twophase",
    "qsgd:bits=4,bucket=64+elias+noef+momentum=0.5+twophase:from=3",
    "dct:block=16+qsgd:bits=4,bucket=64+ef+twophase",
];

/// Compressors of gradients in the host's memory.
pub(crate) fn host() -> Vec<Make> {
    all().into_iter().chain(HOST_ALONE.map(by_text)).collect()
}

pub(crate) fn of(text: &str) -> Compressor {
    Compressor::with_policy(&Policy::new(text).expect(text), &tensors(), RUN).expect(text)
}

/// The same recipe, with `finite`.
pub(crate) fn finite(text: &str) -> Option<Compressor> {
    let recipe: Recipe = text.parse().expect("a recipe");
    let policy = Policy::new(recipe.non_finite(NonFinite::Error)).ok()?;
    Some(Compressor::with_policy(&policy, &tensors(), RUN).expect("valid"))
}

/// Two recipes at once, so that parts are packed.
pub(crate) fn mixed() -> Compressor {
    let policy = Policy::new("qsgd:bits=4,bucket=64+ef").and_then(|p| p.named("b.*", "topk:0.1+momentum=0.5"));
    let policy = policy.and_then(|p| p.named("d", "powersgd:rank=2")).expect("valid");
    Compressor::with_policy(&policy, &tensors(), RUN).expect("valid")
}

/// Factors through a quantizer of some tensors, and others' factors through another one: parts are packed.
pub(crate) fn with_factors() -> Compressor {
    let policy = Policy::new("powersgd:rank=2+qsgd:bits=8,bucket=64").and_then(|p| p.named("c", "topk:0.1+ef"));
    let policy = policy.and_then(|p| p.named("d", "powersgd:rank=1+natural:bits=8+noef")).expect("valid");
    Compressor::with_policy(&policy, &tensors(), RUN).expect("valid")
}

/// Entries that the seed draws of some tensors, with and without a residual, and rotated ones: parts are packed.
pub(crate) fn with_random() -> Compressor {
    let policy = Policy::new("randomk:0.1").and_then(|p| p.named("b.*", "rotate+qsgd:bits=4+noef+momentum=0.5"));
    let policy = policy.and_then(|p| p.named("d", "randomk:0.2,unbiased"));
    let policy = policy.and_then(|p| p.named("c.*", "eden:bits=3,bucket=256")).expect("valid");
    Compressor::with_policy(&policy, &tensors(), RUN).expect("valid")
}

/// Coefficients of some tensors, other coefficients of others, and tensors as they are: parts are packed.
pub(crate) fn with_cosines() -> Compressor {
    let policy = Policy::new("dct:block=16+qsgd:bits=4,bucket=64+ef").map(|p| p.small(1000));
    let policy = policy.and_then(|p| p.named("b.weight", "dct+topk:0.1+momentum=0.5"));
    let policy = policy.and_then(|p| p.named("d", "topk:0.1"));
    Compressor::with_policy(&policy.expect("valid"), &tensors(), RUN).expect("valid")
}

/// Coefficients of tiles of some tensors, with what is left of them, and of another: parts are packed.
pub(crate) fn with_tiles() -> Compressor {
    let policy = Policy::new("dct:block=32,tiles+topk:k=9,block=1024,clamped+ef").map(|p| p.small(65));
    let policy = policy.and_then(|p| p.named("b.weight", "dct:block=4,tiles+qsgd:bits=4,bucket=64+momentum=0.5"));
    let policy = policy.and_then(|p| p.named("c", "topk:0.1"));
    Compressor::with_policy(&policy.expect("valid"), &tensors(), RUN).expect("valid")
}

/// All of a model by one recipe of entries that the seed draws, rotated, or of coefficients, so that nothing is packed.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) fn unpacked() -> [Make; 6] {
    let texts = [
        "randomk:0.1",
        "rotate:block=64+qsgd:bits=4",
        "dct+topk:k=32,block=4096,clamped+ef:beta=0.75",
        "dct+onebit",
        "dct:block=32,tiles+topk:k=9,block=1024,clamped+ef:beta=0.75",
        "dct:block=2,tiles+onebit",
    ];
    texts.map(|text| -> Make {
        Box::new(move || {
            let policy = Policy::new(text).expect("valid").small(0);
            Compressor::with_policy(&policy, &tensors(), RUN).expect("valid")
        })
    })
}

/// Three parts with residuals, quantizers after a selection and after each other: what one writes the next must
/// leave.
pub(crate) fn with_residuals() -> Compressor {
    let policy = Policy::new("qsgd:bits=8,bucket=64+ef").and_then(|p| p.named("a.weight", "topk:0.1+ef"));
    let policy = policy.and_then(|p| p.named("b.weight", "qsgd:bits=4,bucket=32,contractive+ef")).expect("valid");
    Compressor::with_policy(&policy, &tensors(), RUN).expect("valid")
}

/// Three parts whose payloads are of what was formed before.
pub(crate) fn with_estimates() -> Compressor {
    let policy =
        Policy::new("qsgd:bits=8,bucket=64+diana:alpha=0.5").and_then(|p| p.named("b.weight", "topk:0.1+ef21"));
    let policy = policy.and_then(|p| p.named("d", "onebit+ef:beta=0.5")).expect("valid");
    Compressor::with_policy(&policy, &tensors(), RUN).expect("valid")
}

/// Makes a compressor. A test makes only those that it runs: all of them take long.
pub(crate) type Make = Box<dyn Fn() -> Compressor + Sync>;

fn by_text(text: &'static str) -> Make {
    Box::new(move || of(text))
}

pub(crate) fn all() -> Vec<Make> {
    let several: [fn() -> Compressor; 7] =
        [mixed, with_residuals, with_estimates, with_random, with_cosines, with_tiles, with_factors];
    TEXTS.map(by_text).into_iter().chain(several.map(|make| Box::new(make) as Make)).collect()
}

/// Compressors of gradients in a device's memory.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) fn resident() -> Vec<Make> {
    all().into_iter().chain(unpacked()).collect()
}

pub(crate) fn gradient(n: usize, rank: u32, step: u64) -> Vec<f32> {
    cases::normal(n, 1000 * u64::from(rank) + step + 1)
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Runs one thread per rank; what each gives.
pub(crate) fn together<T: Send>(groups: Vec<Threads>, work: impl Fn(u32, Threads) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| work(group.rank(), group))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

/// A group whose nth call fails.
pub(crate) struct Failing {
    pub(crate) group: Threads,
    pub(crate) calls: u32,
    pub(crate) fails: u32,
}

impl Failing {
    fn count(&mut self) -> Result<(), CollectiveError> {
        self.calls += 1;
        match self.calls == self.fails {
            true => Err(CollectiveError::Left { rank: 9, asked: "a test".into() }),
            false => Ok(()),
        }
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
        self.count()?;
        self.group.all_gather(mine, all)
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.count()?;
        self.group.all_to_all(to, from)
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.group.all_reduce_sum(values)?;
        self.count()
    }

    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.group.exchange(peer, mine, theirs)
    }

    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.group.broadcast(root, bytes)
    }
}
