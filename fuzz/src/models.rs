//! Small models under recipes of every kind, and steps of two honest ranks with them.

use std::array;
use std::sync::{LazyLock, OnceLock, mpsc};
use std::thread;

use gradwire::{CollectiveError, Compressor, Device, Policy, Tensor};
use gradwire_tests::cases;

use crate::pair::Pair;

/// A recipe, and those of the tensors that have another.
pub type Model = (&'static str, &'static [(&'static str, &'static str)]);

/// What a compressor is made of; a byte chooses.
pub const MODELS: [Model; 32] = [
    ("qsgd:bits=4,bucket=64+ef", &[]),
    ("qsgd:bits=4,bucket=64,l2,contractive+elias+ef", &[]),
    ("uniform:bits=4,bucket=32+momentum=0.9+finite+peers:norm=100", &[]),
    ("ternary:bucket=64+base3", &[]),
    ("float:e4m3,scaled+ef:beta=0.5,gamma=2", &[]),
    ("onebit+ef21", &[]),
    ("qsgd:bits=4,bucket=64+delta+diana", &[]),
    ("signum+vote", &[]),
    ("rotate:block=64,own+qsgd:bits=4,bucket=64+elias", &[]),
    ("eden:bits=3,bucket=256", &[]),
    ("dct:block=16+qsgd:bits=4,bucket=64+ef", &[]),
    ("topk:0.1+ef", &[]),
    ("topk:0.05+qsgd:bits=4,bucket=32+ef+finite", &[]),
    ("topk:k=2,block=64+onebit:bucket=whole", &[]),
    ("topk:above=0.02+bf16+ef", &[]),
    ("dgc:ratio=0.05,warmup=4,nesterov,clip=3", &[]),
    ("powersgd:rank=2", &[]),
    ("powersgd:rank=2+qsgd:bits=8,bucket=64+elias", &[]),
    ("powersgd:rank=1,onesided+float:e4m3,scaled+momentum=0.5+nesterov", &[]),
    ("powersgd:rank=2+sign:bucket=whole+noef+finite", &[]),
    ("topk:0.1+ef+gtopk", &[]),
    ("topk:0.1+qsgd:bits=4,bucket=32+elias+ef+gtopk", &[]),
    ("qsgd:bits=4,bucket=64+ef+twophase", &[]),
    ("qsgd:bits=4,bucket=64+elias+noef+momentum=0.5+twophase+finite", &[]),
    ("dct:block=16+qsgd:bits=4,bucket=64+ef+twophase", &[]),
    ("randomk:0.1", &[]),
    ("randomk:0.6,unbiased+finite", &[]),
    ("none+momentum=0.5+nesterov+peers:norm=60", &[]),
    ("powersgd:rank=2+qsgd:bits=8,bucket=64", &[("vector", "topk:0.1+ef+gtopk")]),
    ("qsgd:bits=4,bucket=64+ef+twophase", &[("matrix", "powersgd:rank=1+natural:bits=8")]),
    ("topk:0.1+ef", &[("matrix", "qsgd:bits=8,bucket=64+diana"), ("small", "none+finite")]),
    ("randomk:0.1", &[("matrix", "topk:0.1+ef21"), ("small", "onebit+ef+twophase")]),
];

/// The number of the run.
const RUN: u64 = 11;

static DEVICE: LazyLock<Device> = LazyLock::new(Device::cpu);

/// Where everything runs.
pub fn device() -> &'static Device {
    &DEVICE
}

/// A matrix, a vector of several buckets, and a vector that goes uncompressed.
pub fn tensors() -> [Tensor; 3] {
    [Tensor::new("matrix", [12, 20]), Tensor::new("vector", [150]), Tensor::new("small", [7])]
}

/// A compressor of a model before its first step.
pub fn compressor(model: usize) -> Compressor {
    let (recipe, rules) = MODELS[model];
    let policy = Policy::new(recipe).map(|policy| policy.small(16));
    let policy = rules.iter().try_fold(policy.expect(recipe), |policy, (name, recipe)| policy.named(name, *recipe));
    Compressor::with_policy(&policy.expect(recipe), &tensors(), RUN).expect(recipe)
}

/// The bits of numbers.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// What a compressor keeps: its state, both residuals, the bytes of its last step.
pub fn held(compressor: &Compressor) -> (Vec<u8>, [Vec<u32>; 2], u64) {
    let residuals = [compressor.residual(), compressor.owner_residual()].map(|all| bits(&all.expect("no step runs")));
    (compressor.state().expect("no step runs"), residuals, compressor.last_bytes())
}

/// A step of a rank beside an honest one.
#[derive(Clone, Debug)]
pub struct Honest {
    /// The compressor before it.
    pub before: Compressor,
    /// This rank's gradient.
    pub gradient: Vec<f32>,
    /// What the other rank hands over, call by call.
    pub script: Vec<Vec<u8>>,
    /// The bits of the mean.
    pub mean: Vec<u32>,
    /// The state after it.
    pub behind: Vec<u8>,
}

/// Steps that were made before the honest one: none, or so many that every rank knows the others.
const BEGUN: u64 = 2;

/// The honest step of a rank of a model, the first one or a later one.
pub fn honest(model: usize, begun: bool, rank: usize) -> &'static Honest {
    static ALL: LazyLock<[OnceLock<[[Honest; 2]; 2]>; MODELS.len()]> =
        LazyLock::new(|| array::from_fn(|_| OnceLock::new()));
    let of_model = || [0, BEGUN].map(|begun| together(model, begun));
    &ALL[model].get_or_init(of_model)[usize::from(begun)][rank]
}

/// The same step of both ranks.
fn together(model: usize, begun: u64) -> [Honest; 2] {
    let ((to_second, of_first), (to_first, of_second)) = (mpsc::channel(), mpsc::channel());
    thread::scope(|scope| {
        let first = scope.spawn(|| alone(model, begun, 0, to_second, of_second));
        let second = scope.spawn(|| alone(model, begun, 1, to_first, of_first));
        [first, second].map(|rank| rank.join().expect("an honest step succeeds"))
    })
}

fn alone(model: usize, begun: u64, rank: u32, to: mpsc::Sender<Vec<u8>>, from: mpsc::Receiver<Vec<u8>>) -> Honest {
    let mut compressor = compressor(model);
    let mut script = Vec::new();
    let left = || CollectiveError::Left { rank: 1 - rank, asked: "an honest step".into() };
    let mut step = |compressor: &mut Compressor, number: u64| {
        script.clear();
        let gradient = cases::normal(compressor.elements(), 1000 * u64::from(rank) + number + 1);
        let mut mean = gradient.clone();
        let swap = |mine: &[u8]| {
            to.send(mine.to_vec()).map_err(|_| left())?;
            let theirs = from.recv().map_err(|_| left())?;
            script.push(theirs.clone());
            Ok(theirs.into())
        };
        compressor.exchange(device(), &mut Pair { rank, swap }, &mut mean).expect(MODELS[model].0);
        (gradient, bits(&mean), script.clone())
    };
    (0..begun).for_each(|number| drop(step(&mut compressor, number)));
    let before = compressor.clone();
    let (gradient, mean, script) = step(&mut compressor, begun);
    Honest { before, gradient, script, mean, behind: compressor.state().expect("no step runs") }
}
