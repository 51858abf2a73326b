//! One training: ranks as threads or as processes, each with its own parameters, its own part of every batch and its
//! own compressor.

use std::ops::Range;
use std::time::Duration;

use gradwire_collectives::Threads;
use gradwire_planner::Message;

use super::args::Layers;
use super::checkpoint::Files;
use super::digits::{CLASSES, Images, PIXELS, SIDE};
use super::error::TrainError;
use super::gpu::{By, Group};
use super::network::Network;
use super::planned::{Exchanges, Messages};
use super::random::Random;
use super::traffic::{Bytes, Traffic};

/// Values of each layer of the full network.
const WIDTHS: [usize; 4] = [PIXELS, 128, 64, CLASSES];
/// The network is tested about so often.
const TESTS: usize = 60;

/// What all trainings share.
pub(crate) struct Setup {
    pub(crate) ranks: u32,
    pub(crate) steps: usize,
    /// How long a rank waits for another one.
    pub(crate) deadline: Duration,
    /// Images of a step, over all ranks.
    pub(crate) batch: usize,
    pub(crate) rate: f32,
    pub(crate) seed: u64,
    pub(crate) layers: Layers,
    pub(crate) learn: Images,
    pub(crate) test: Images,
    /// What is exchanged with what, instead of a codec.
    pub(crate) plan: Option<Vec<Message>>,
    /// Whether a message goes while the rest of the gradient is computed.
    pub(crate) overlap: bool,
    /// What the training goes on from, and what it leaves.
    pub(crate) files: Files,
}

impl Setup {
    fn network(&self) -> Network {
        match self.layers {
            Layers::Full => Network::new(&WIDTHS, self.seed),
            Layers::Convolutions => Network::convolutional(SIDE, CLASSES, self.seed),
        }
    }
}

/// How good the network is after some steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) step: usize,
    /// Bytes that a rank has handed over until then: the mean over all ranks.
    pub(crate) bytes: f64,
    /// Bytes that a rank has sent to others, and to others on other machines: the means.
    pub(crate) sent: f64,
    pub(crate) left: f64,
    /// Of the images for testing.
    pub(crate) accuracy: f64,
    pub(crate) loss: f64,
}

/// What came of one training.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) codec: String,
    /// In the order of steps; the first is before the first step.
    pub(crate) points: Vec<Point>,
    /// Bytes of one gradient in f32.
    pub(crate) whole: f64,
    pub(crate) ranks: u32,
    /// Whether the engine counts what it sends, and whether there are several machines.
    pub(crate) counted: bool,
    pub(crate) far: bool,
    /// Of the parameters' bits, which are the same on every rank: FNV-1a.
    pub(crate) hash: u64,
    /// What becomes of a gradient where a GPU exchanges it.
    pub(crate) told: Vec<String>,
}

/// What one rank ends with.
struct Ended {
    parameters: Vec<f32>,
    /// Steps that were made before.
    from: usize,
    /// The bytes of this rank after each step, from those on.
    bytes: Vec<Bytes>,
    counted: bool,
    far: bool,
    /// Of rank 0: step, accuracy, loss.
    tests: Vec<(usize, f64, f64)>,
    /// Of the rank itself: see [`History::told`].
    told: Vec<String>,
}

impl Ended {
    /// Parameters and bytes that were sent, for the other ranks.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = (self.from as u64).to_le_bytes().to_vec();
        self.bytes.iter().for_each(|step| bytes.extend(step.to_bytes()));
        self.parameters.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        bytes
    }

    /// What [`Ended::to_bytes`] wrote after so many steps of all.
    fn from_bytes(bytes: &[u8], steps: usize) -> Self {
        let from = bytes.first_chunk::<8>().map_or(0, |from| u64::from_le_bytes(*from) as usize);
        let (numbers, parameters) = bytes.split_at((8 + 24 * steps.saturating_sub(from)).min(bytes.len()));
        let (steps, _) = numbers.get(8..).unwrap_or_default().as_chunks::<24>();
        let (parameters, _) = parameters.as_chunks::<4>();
        Self {
            from,
            parameters: parameters.iter().map(|value| f32::from_le_bytes(*value)).collect(),
            bytes: steps.iter().map(Bytes::from_bytes).collect(),
            counted: false,
            far: false,
            tests: Vec::new(),
            told: Vec::new(),
        }
    }
}

/// Whether a codec is one, asked before anything is trained.
pub(crate) fn check(codec: &str, setup: &Setup) -> Result<(), TrainError> {
    messages(codec, &setup.network(), setup).map(drop)
}

fn messages(codec: &str, network: &Network, setup: &Setup) -> Result<Messages, TrainError> {
    match &setup.plan {
        Some(messages) => Messages::planned(messages, network, setup.seed),
        None => Messages::whole(codec, network, setup.seed),
    }
}

/// Trains a network with one codec on ranks that are threads. `open` gives each the group that it exchanges over, and
/// what compresses. `progress` hears of the steps of rank 0.
pub(crate) fn train<'d, G: Group>(
    setup: &Setup,
    codec: &str,
    progress: &(dyn Fn(usize) + Sync),
    open: impl Fn(Threads) -> Result<(G, By<'d>), TrainError> + Sync,
) -> Result<History, TrainError> {
    let group = Threads::with_deadline(setup.ranks, setup.deadline).map_err(gradwire::Error::from)?;
    let run = |group: Threads| {
        let (group, by) = open(group)?;
        let (ended, group) = Rank { setup, codec, by: &by, progress }.run(group)?;
        group.end().map_err(gradwire::Error::from)?;
        Ok(ended)
    };
    let run = &run;
    let ended: Vec<Result<Ended, TrainError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = group.into_iter().map(|group| scope.spawn(move || run(group))).collect();
        let ended = threads.into_iter().enumerate();
        ended.map(|(rank, thread)| thread.join().unwrap_or(Err(TrainError::Panicked { rank }))).collect()
    });
    history(codec, &first_cause(ended)?)
}

/// Trains as one rank of a group whose other ranks do the same, and gives the group back. The points of the history are
/// rank 0's alone.
pub(crate) fn train_rank<G: Group>(
    setup: &Setup,
    codec: &str,
    by: &By<'_>,
    progress: &(dyn Fn(usize) + Sync),
    group: G,
) -> Result<(History, G), TrainError> {
    let (ended, mut group) = Rank { setup, codec, by, progress }.run(group)?;
    let mut all = Vec::new();
    group.all_gather(&ended.to_bytes(), &mut all).map_err(gradwire::Error::from)?;
    let mut ranks: Vec<Ended> = all.iter().map(|bytes| Ended::from_bytes(bytes, setup.steps)).collect();
    if group.rank() == 0 {
        ranks[0] = ended;
    }
    Ok((history(codec, &ranks)?, group))
}

/// What came of the training of all ranks, if they agree.
fn history(codec: &str, ranks: &[Ended]) -> Result<History, TrainError> {
    same_parameters(ranks)?;
    let mean = |step: usize, of: fn(&Bytes) -> u64| {
        let bytes = ranks.iter().filter_map(|rank| rank.bytes.get(step.checked_sub(rank.from + 1)?));
        bytes.map(|bytes| of(bytes) as f64).sum::<f64>() / ranks.len() as f64
    };
    let point = |&(step, accuracy, loss)| {
        let (bytes, sent, left) = (mean(step, |b| b.handed), mean(step, |b| b.sent), mean(step, |b| b.left));
        Point { step, bytes, sent, left, accuracy, loss }
    };
    let points = ranks.iter().flat_map(|rank| &rank.tests).map(point).collect();
    let parameters: &[f32] = ranks.first().map_or(&[], |rank| &rank.parameters);
    let whole = size_of_val(parameters) as f64;
    let told = ranks.first().map_or(Vec::new(), |rank| rank.told.clone());
    let (counted, far) = ranks.first().map_or((false, false), |rank| (rank.counted, rank.far));
    let (codec, hash, ranks) = (codec.to_owned(), hash(parameters), ranks.len() as u32);
    Ok(History { codec, points, whole, ranks, counted, far, hash, told })
}

/// FNV-1a of the bits.
fn hash(values: &[f32]) -> u64 {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The results of all ranks, or the error that made the others fail.
fn first_cause(ended: Vec<Result<Ended, TrainError>>) -> Result<Vec<Ended>, TrainError> {
    let (mut ranks, mut errors) = (Vec::new(), Vec::new());
    for end in ended {
        match end {
            Ok(rank) => ranks.push(rank),
            Err(error) => errors.push(error),
        }
    }
    errors.sort_by_key(TrainError::is_of_another_rank);
    errors.into_iter().next().map_or(Ok(ranks), Err)
}

/// Data-parallel training is right where every rank ends with the same bits.
fn same_parameters(ranks: &[Ended]) -> Result<(), TrainError> {
    for (rank, other) in ranks.iter().enumerate().skip(1) {
        let mut pairs = ranks[0].parameters.iter().zip(&other.parameters);
        if let Some(at) = pairs.position(|(a, b)| a.to_bits() != b.to_bits()) {
            return Err(TrainError::Apart { rank, at });
        }
    }
    Ok(())
}

struct Rank<'s> {
    setup: &'s Setup,
    codec: &'s str,
    by: &'s By<'s>,
    progress: &'s (dyn Fn(usize) + Sync),
}

impl Rank<'_> {
    fn run<G: Group>(&self, mut group: G) -> Result<(Ended, G), TrainError> {
        let (rank, ranks) = (group.rank(), group.ranks());
        let Setup { steps, batch, rate, seed, .. } = *self.setup;
        self.expect_one_setup(&mut group)?;
        // The same seed, so the same parameters, on every rank.
        let mut network = self.setup.network();
        let mut messages = messages(self.codec, &network, self.setup)?;
        let mut from = 0;
        if let Some(saved) = self.setup.files.load(&mut group, network.parameters().len(), steps)? {
            messages.restore(&saved.states, rank, ranks)?;
            network.take_up(&saved.parameters);
            from = saved.steps;
        }
        let mut traffic = Traffic::new(&mut group).map_err(gradwire::Error::from)?;
        let mut exchanges = Exchanges::new(messages, self.by, group, self.setup.overlap)?;
        let mut gradient = vec![0.0; network.parameters().len()];
        let (bytes, told) = (Vec::with_capacity(steps - from), exchanges.told());
        let (counted, far) = (traffic.is_counted() && ranks > 1, traffic.has_far());
        let mut ended = Ended { from, parameters: Vec::new(), bytes, counted, far, tests: Vec::new(), told };
        let mut order = Order::new(seed, self.setup.learn.len(), batch);
        let every = steps.div_ceil(TESTS).max(1);
        for _ in 0..from {
            order.next_batch();
        }
        self.test(rank, from, &network, &mut ended)?;
        for step in from + 1..=steps {
            let images = self.setup.learn.select(part(order.next_batch(), rank, ranks));
            // The mean over ranks of these is the mean over the batch, even where parts differ by an image.
            let scale = ranks as f32 / batch as f32;
            let ready = |layer: Range<usize>, gradient: &[f32]| exchanges.ready(layer.start, gradient);
            network.gradient(&images.pixels, &images.labels, scale, &mut gradient, ready)?;
            let handed = exchanges.finish(&mut gradient)?;
            network.step(&gradient, rate);
            ended.bytes.push(traffic.step(handed));
            if step < steps && self.setup.files.is_due(step) {
                if let Some((group, states)) = exchanges.lend()? {
                    self.setup.files.write(group, (step, network.parameters()), &states)?;
                }
                traffic.leave_out();
            }
            // The first steps tell the most, and a logarithmic axis shows them.
            if step % every == 0 || step == steps || (step < every && step.is_power_of_two()) {
                self.test(rank, step, &network, &mut ended)?;
            }
            if rank == 0 {
                (self.progress)(step);
            }
        }
        let states = if self.setup.files.save.is_some() { exchanges.states()? } else { Vec::new() };
        let mut group = exchanges.close()?;
        self.setup.files.write(&mut group, (steps, network.parameters()), &states)?;
        ended.parameters = network.parameters().to_vec();
        Ok((ended, group))
    }

    /// Refuses a rank with other options, of which its parameters would tell only at the end.
    fn expect_one_setup(&self, group: &mut impl Group) -> Result<(), TrainError> {
        let Setup { steps, batch, rate, seed, overlap, .. } = self.setup;
        let overlap = if *overlap { " --overlap" } else { "" };
        let ours = format!("{}, --steps {steps} --batch {batch} --rate {rate} --seed {seed}{overlap}", self.codec);
        let mut all = Vec::new();
        group.all_gather(ours.as_bytes(), &mut all).map_err(gradwire::Error::from)?;
        match (0..).zip(&all).find(|(_, theirs)| **theirs != ours.as_bytes()) {
            Some((rank, theirs)) => {
                Err(TrainError::Options { rank, theirs: String::from_utf8_lossy(theirs).into_owned(), ours })
            }
            None => Ok(()),
        }
    }

    /// Rank 0 tests, as all ranks have the same parameters.
    fn test(&self, rank: u32, step: usize, network: &Network, ended: &mut Ended) -> Result<(), TrainError> {
        if rank == 0 {
            let (accuracy, loss) = network.evaluate(&self.setup.test.pixels, &self.setup.test.labels);
            if !loss.is_finite() {
                return Err(TrainError::Diverged { step, codec: self.codec.to_owned() });
            }
            ended.tests.push((step, accuracy, loss));
        }
        Ok(())
    }
}

/// The images of each step: all of them in a random order, then all in another one.
struct Order {
    random: Random,
    order: Vec<usize>,
    at: usize,
    batch: usize,
}

impl Order {
    fn new(seed: u64, images: usize, batch: usize) -> Self {
        let mut random = Random::new(!seed);
        Self { order: random.order(images), random, at: 0, batch }
    }

    /// A batch that would be cut short at the end of an order begins the next one.
    fn next_batch(&mut self) -> &[usize] {
        if self.at + self.batch > self.order.len() {
            (self.order, self.at) = (self.random.order(self.order.len()), 0);
        }
        self.at += self.batch;
        &self.order[self.at - self.batch..self.at]
    }
}

/// A rank's part of a batch: parts differ by an image at most.
fn part(batch: &[usize], rank: u32, ranks: u32) -> &[usize] {
    let bound = |rank: u32| batch.len() * rank as usize / ranks as usize;
    &batch[bound(rank)..bound(rank + 1)]
}

#[cfg(test)]
mod tests {
    use gradwire::{CollectiveError, Device, Recipe};

    use super::*;

    /// Trains on threads and the CPU.
    fn on_threads(setup: &Setup, codec: &str) -> Result<History, TrainError> {
        let device = Device::cpu();
        train(setup, codec, &|_| (), |group| Ok((group, By::Device(&device))))
    }

    fn setup(ranks: u32, steps: usize) -> Setup {
        let images = Images::load(std::path::Path::new(crate::DIGITS)).unwrap();
        let (learn, test) = images.split(1);
        Setup {
            ranks,
            steps,
            deadline: Duration::from_secs(60),
            batch: 50,
            rate: 0.2,
            seed: 1,
            layers: Layers::Full,
            learn,
            test,
            plan: None,
            overlap: false,
            files: Files::default(),
        }
    }

    /// With as many ranks a training that was left ends with the bits of one that was not; with others it goes on too.
    #[test]
    fn a_training_goes_on_where_it_was_left() {
        let file = std::env::temp_dir().join(format!("gradwire_train_{}", std::process::id()));
        let resumed = |setup| Setup { files: Files { resume: Some(file.clone()), ..Files::default() }, ..setup };
        for codec in ["topk:0.01+ef", "powersgd:rank=2", "qsgd:bits=4,bucket=64+ef+twophase"] {
            let whole = on_threads(&setup(3, 20), codec).unwrap();
            let left = Setup { files: Files { save: Some(file.clone()), ..Files::default() }, ..setup(3, 8) };
            on_threads(&left, codec).unwrap();
            let again = on_threads(&resumed(setup(3, 20)), codec).unwrap();
            assert_eq!((again.hash, again.points[0].step, again.points[0].bytes), (whole.hash, 8, 0.0), "{codec}");
            let fewer = on_threads(&resumed(setup(2, 20)), codec).unwrap();
            let (first, last) = (fewer.points[0], fewer.points[fewer.points.len() - 1]);
            assert!(last.step == 20 && last.loss < first.loss && first.loss == again.points[0].loss, "{codec}");
        }
        let refused = |setup, codec| on_threads(&resumed(setup), codec).map(|_| ()).unwrap_err().to_string();
        assert!(
            refused(setup(3, 8), "topk:0.01+ef").contains("it was written after step 8, and the training has 8 steps")
        );
        let other = Setup { layers: Layers::Convolutions, ..setup(3, 20) };
        assert!(refused(other, "topk:0.01+ef").contains("parameters, and the network"));
        assert!(refused(setup(3, 20), "onebit").contains("make the compressor that the state was saved from"));
        std::fs::write(&file, "no checkpoint").unwrap();
        assert!(refused(setup(3, 20), "onebit").contains("not what --save writes"));
        std::fs::remove_file(&file).unwrap();
        assert!(matches!(on_threads(&resumed(setup(3, 20)), "onebit"), Err(TrainError::Resume { .. })));
    }

    /// A run that ends early has left what it saved last, and saving changes neither what is learned nor what is told of
    /// the bytes.
    #[test]
    fn a_training_is_saved_while_it_goes_on() {
        let name = |what| std::env::temp_dir().join(format!("gradwire_train_{what}_{}", std::process::id()));
        let (file, early) = (name("every"), name("early"));
        let codec = "topk:0.01+ef";
        let whole = on_threads(&setup(3, 20), codec).unwrap();
        let files = Files { save: Some(file.clone()), every: Some(8), ..Files::default() };
        let device = Device::cpu();
        let copy = |step| {
            if step == 12 {
                std::fs::copy(&file, &early).unwrap();
            }
        };
        let open = |group| Ok((group, By::Device(&device)));
        let saved = train(&Setup { files, ..setup(3, 20) }, codec, &copy, open).unwrap();
        assert_eq!(format!("{saved:?}"), format!("{whole:?}"));
        let files = Files { resume: Some(early.clone()), ..Files::default() };
        let again = on_threads(&Setup { files, ..setup(3, 20) }, codec).unwrap();
        assert_eq!((again.hash, again.points[0].step), (whole.hash, 8));
        [file, early].iter().for_each(|file| std::fs::remove_file(file).unwrap());
    }

    #[test]
    fn a_few_steps_learn_most_digits_on_any_count_of_ranks() {
        for ranks in [1, 2, 3] {
            let history = on_threads(&setup(ranks, 100), "none").unwrap();
            let (first, last) = (history.points[0], history.points[history.points.len() - 1]);
            assert_eq!((first.step, first.bytes, last.step), (0, 0.0, 100));
            assert!(first.accuracy < 0.4 && last.accuracy > 0.85 && last.loss < first.loss, "{last:?}");
            assert_eq!(history.whole, 4.0 * 17226.0);
        }
    }

    /// Small tensors go uncompressed, so that convolutions are compressed where they are worth it.
    #[test]
    fn convolutions_learn_most_digits() {
        for codec in ["none", "topk:0.05+ef", "powersgd:rank=2"] {
            let setup = Setup { layers: Layers::Convolutions, ..setup(2, 60) };
            let history = on_threads(&setup, codec).unwrap();
            let last = history.points[history.points.len() - 1];
            assert!(last.accuracy > 0.85, "{codec}: {last:?}");
            assert_eq!(history.whole, 4.0 * 9930.0);
        }
    }

    /// What a training of the example's length and rate ends with, by seed.
    fn end(layers: Layers, codec: &str, seed: u64) -> Point {
        let images = Images::load(std::path::Path::new(crate::DIGITS)).unwrap();
        let (learn, test) = images.split(seed);
        let setup = Setup {
            deadline: Duration::from_secs(60),
            ranks: 4,
            steps: 660,
            batch: 64,
            rate: 0.1,
            seed,
            layers,
            learn,
            test,
            plan: None,
            overlap: false,
            files: Files::default(),
        };
        *on_threads(&setup, codec).unwrap().points.last().unwrap()
    }

    /// As GRACE reports (Xu et al., ICDCS 2021), at one learning rate for all. Of the sign methods no more holds: a
    /// step is as long as the rate whatever the gradient, and with a rate of their own they are not behind here.
    #[test]
    fn methods_with_feedback_end_near_none_and_signs_without_it_behind() {
        let none = end(Layers::Convolutions, "none", 1);
        // 359 images for testing: three standard errors of the difference of two accuracies, taken as independent.
        let apart = 3.0 * (2.0 * none.accuracy * (1.0 - none.accuracy) / 359.0).sqrt();
        let mut near = 0;
        for method in Recipe::methods() {
            let recipe: Recipe = method.recipe.parse().unwrap();
            let signs = ["signsgd", "signum"].contains(&method.name);
            if !recipe.memory().feedback && !signs {
                continue;
            }
            let Point { accuracy, .. } = end(Layers::Convolutions, &format!("grace:{}", method.name), 1);
            assert_eq!(
                accuracy < none.accuracy - apart,
                signs,
                "{}: {accuracy}, {} with none",
                method.name,
                none.accuracy
            );
            near += usize::from(!signs);
        }
        assert!(near >= 8, "{near} methods have feedback");
    }

    /// The same bytes, and a residual that is kept or dropped: for each codec the loss is less where it is kept.
    #[test]
    fn feedback_lessens_the_loss_of_a_biased_codec() {
        for [with, without] in [
            ["topk:0.01+ef", "topk:0.01"],
            ["grace:onebit", "grace:onebit+noef"],
            ["grace:efsignsgd", "grace:efsignsgd+noef"],
            ["grace:powersgd", "grace:powersgd+noef"],
        ] {
            for seed in 1..=3 {
                let [kept, dropped] = [with, without].map(|codec| end(Layers::Full, codec, seed));
                assert_eq!(kept.bytes, dropped.bytes, "{with}");
                assert!(kept.loss < dropped.loss, "{with}, seed {seed}: {} with, {} without", kept.loss, dropped.loss);
            }
        }
    }

    #[test]
    fn ranks_that_gather_what_they_end_with_give_the_same_history() {
        let setup = setup(3, 20);
        let codec = "qsgd:bits=4,bucket=64+ef";
        let whole = on_threads(&setup, codec).unwrap();
        let device = Device::cpu();
        let histories: Vec<History> = std::thread::scope(|scope| {
            let run = |group| train_rank(&setup, codec, &By::Device(&device), &|_| (), group).unwrap().0;
            let group = Threads::group(3).unwrap();
            let threads: Vec<_> = group.into_iter().map(|group: Threads| scope.spawn(move || run(group))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(format!("{:?}", histories[0]), format!("{whole:?}"));
        assert!(histories[1..].iter().all(|history| history.points.is_empty()));
    }

    /// A message that goes while others are computed changes no bit of what is learned, nor a byte of what is sent.
    #[test]
    fn what_overlaps_learns_the_same() {
        let message = |layer: usize, recipe: &str| {
            let sizes = [[8192, 128], [8192, 64], [640, 10]][layer];
            let [weight, bias] = sizes;
            format!(
                r#"{{"tensors": [{{"name": "{layer}.weight", "elements": {weight}}},
                    {{"name": "{layer}.bias", "elements": {bias}}}], "recipe": "{recipe}"}}"#
            )
        };
        let all = [message(2, "none"), message(1, "topk:0.05+ef"), message(0, "qsgd:bits=4,bucket=64+ef")];
        let plan = Message::from_plan(&format!(r#"{{"messages": [{}]}}"#, all.join(","))).unwrap();
        let histories = [false, true].map(|overlap| {
            let setup = Setup { plan: Some(plan.clone()), overlap, ..setup(3, 40) };
            on_threads(&setup, "plan").unwrap()
        });
        let [in_turn, beside] = histories.map(|history| format!("{history:?}"));
        assert_eq!(in_turn, beside);
    }

    /// An all-reduce of threads sends 2 (ranks - 1) / ranks of a gradient, a gathered payload goes to every other rank,
    /// and nothing leaves the machine.
    #[test]
    fn what_is_sent_is_counted() {
        for ranks in [1, 2, 3, 4] {
            // The second step: in the first, ranks also compare what they were made with.
            let second = |codec| {
                let history = on_threads(&setup(ranks, 2), codec).unwrap();
                assert_eq!((history.counted, history.far), (ranks > 1, false));
                let [.., first, second] = history.points[..] else { panic!("{history:?}") };
                assert_eq!(second.left, 0.0);
                (second.bytes - first.bytes, second.sent - first.sent, history.whole)
            };
            let others = f64::from(ranks - 1);
            let summed = 2.0 * others / f64::from(ranks);
            let (_, sent, whole) = second("none");
            assert!((sent - summed * whole).abs() < 1e-6, "{ranks} ranks: {sent} of {whole}");
            // Every matrix is larger than a small tensor but the last, and the biases are small: they are summed.
            let small = 4.0 * (128.0 + 64.0 + 10.0 + 640.0);
            let (handed, sent, _) = second("topk:0.01");
            let expected = others * (handed - small) + summed * small;
            assert!((sent - expected).abs() < 1e-6, "{ranks} ranks: {sent}, expected {expected} of {handed}");
        }
    }

    #[test]
    fn parts_make_up_the_batch() {
        let batch: Vec<usize> = (100..117).collect();
        for ranks in [1, 2, 4, 17, 20] {
            let parts: Vec<usize> = (0..ranks).flat_map(|rank| part(&batch, rank, ranks)).copied().collect();
            assert_eq!(parts, batch);
        }
    }

    #[test]
    fn an_order_has_each_image_once() {
        let mut order = Order::new(1, 10, 5);
        let mut seen: Vec<usize> = (0..2).flat_map(|_| order.next_batch().to_vec()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn a_rate_that_is_too_large_is_told_of() {
        let setup = Setup { rate: 1e30, ..setup(2, 20) };
        assert!(matches!(on_threads(&setup, "none"), Err(TrainError::Diverged { .. })));
    }

    #[test]
    fn ranks_that_differ_are_told_of() {
        let rank = |value| Ended {
            from: 0,
            parameters: vec![1.0, value],
            bytes: Vec::new(),
            counted: false,
            far: false,
            tests: Vec::new(),
            told: Vec::new(),
        };
        assert!(same_parameters(&[rank(2.0), rank(2.0)]).is_ok());
        let apart = same_parameters(&[rank(0.0), rank(0.0), rank(-0.0)]);
        assert!(matches!(apart, Err(TrainError::Apart { rank: 2, at: 1 })));
    }

    #[test]
    fn the_error_of_a_rank_goes_before_what_the_others_say() {
        let left = CollectiveError::Left { rank: 1, asked: String::new() };
        let ended = vec![Err(gradwire::Error::from(left).into()), Err(TrainError::Panicked { rank: 1 })];
        assert!(matches!(first_cause(ended), Err(TrainError::Panicked { rank: 1 })));
    }
}
