//! What the example is asked for.

use std::path::PathBuf;
use std::time::Duration;

use gradwire::{BackendKind, Recipe};

use super::error::TrainError;

/// Where the digits are in the repository.
pub(crate) const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/data/digits.csv.gz");
/// Codecs of a run that names none.
const CODECS: [&str; 7] = [
    "none",
    "qsgd:bits=4,bucket=64+ef",
    "uniform:bits=2,bucket=32,contractive+ef",
    "onebit",
    "topk:0.01+ef",
    "topk:0.01+momentum=0.5",
    "powersgd:rank=2",
];

/// Trains a small network on images of digits, on ranks that exchange compressed gradients.
#[derive(Debug, clap::Parser)]
pub(crate) struct Args {
    /// What moves the bytes between ranks.
    #[arg(long, value_enum, default_value_t = Engine::Threads)]
    pub(crate) engine: Engine,
    /// With nccl: what starts the ranks, threads of this process or mpirun. NCCL's id travels over it.
    #[arg(long, value_enum, default_value_t = Over::Threads)]
    pub(crate) over: Over,
    /// Ranks that share each batch, where they are threads; with MPI, they are the processes that mpirun starts.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) ranks: u32,
    /// A recipe such as topk:0.01+ef, or several with spaces between them; may be given more than once.
    #[arg(long, num_args = 1.., default_values = CODECS)]
    codec: Vec<String>,
    /// All of GRACE's methods that recipes name, in one chart beside none, in place of codecs. All train at one --rate,
    /// and a method that sends signs alone, signsgd and signum, wants a rate some 100 times smaller than the others.
    #[arg(long, conflicts_with_all = ["codec", "plan"])]
    all: bool,
    /// A plan that cargo xtask plan --write has written, in place of codecs: which tensors share a message, and by
    /// which recipe. The profile's layers are called 0.weight, 0.bias and so on.
    #[arg(long, conflicts_with = "codec")]
    pub(crate) plan: Option<PathBuf>,
    /// A message goes as soon as backpropagation has its tensors, while it goes on with the others.
    #[arg(long, requires = "plan")]
    pub(crate) overlap: bool,
    /// What is trained: two convolutions of 16 and 32 channels and a full layer, or full layers of 128, 64 and 10
    /// values.
    #[arg(long, value_enum, default_value_t = Layers::Convolutions)]
    pub(crate) layers: Layers,
    /// Steps of each training; goes before --epochs.
    #[arg(long)]
    steps: Option<usize>,
    /// How often each image is learned from.
    #[arg(long, default_value_t = 30)]
    epochs: usize,
    /// Images of a step, over all ranks.
    #[arg(long, default_value_t = 64)]
    pub(crate) batch: usize,
    /// The learning rate.
    #[arg(long, default_value_t = 0.1)]
    pub(crate) rate: f32,
    /// For the split of the images, the first parameters, the order of the images and the draws of codecs.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Seconds that a rank waits for another one before it gives up.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    deadline: u32,
    /// What compresses.
    #[arg(long, value_enum, default_value_t = On::Cpu)]
    pub(crate) device: On,
    /// Where the chart goes: an SVG, or a PNG if its name ends so.
    #[arg(long, default_value = "target/train.svg")]
    pub(crate) plot: PathBuf,
    /// Where the last line of each training goes, as CSV for other programs.
    #[arg(long)]
    pub(crate) csv: Option<PathBuf>,
    /// Where the parameters and the state of all ranks go after the last step. Wants one codec, or a plan.
    #[arg(long)]
    pub(crate) save: Option<PathBuf>,
    /// Saves after every so many steps, too. The file is replaced as a whole: a run that ends early leaves the last one.
    #[arg(long, requires = "save", conflicts_with = "overlap", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) save_every: Option<u32>,
    /// A file that --save has written, to go on from, with the same codec, network and seed. The ranks may be more or
    /// fewer: no residual is lost. --steps and --epochs count from the first step of all.
    #[arg(long)]
    pub(crate) resume: Option<PathBuf>,
    /// The gzipped csv of digits; without it, that of the repository.
    #[arg(long, default_value = DIGITS, hide_default_value = true)]
    pub(crate) digits: PathBuf,
}

/// An engine, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Engine {
    Threads,
    Mpi,
    /// Every rank has a GPU of its own. With --device cuda, gradients are exchanged in its memory.
    Nccl,
}

/// What starts NCCL's ranks, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Over {
    Threads,
    Mpi,
}

/// What a network consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Layers {
    Full,
    Convolutions,
}

/// A kind of backend, by its name.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum On {
    Cpu,
    Wgpu,
    Cuda,
}

impl On {
    pub(crate) fn kind(self) -> BackendKind {
        match self {
            Self::Cpu => BackendKind::Cpu,
            Self::Wgpu => BackendKind::Wgpu,
            Self::Cuda => BackendKind::Cuda,
        }
    }
}

impl Args {
    /// How long a rank waits for another one.
    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_secs(self.deadline.into())
    }

    /// The codecs, each once, in the order in which they were named; where there is a plan, its name alone.
    pub(crate) fn codecs(&self) -> Vec<String> {
        if let Some(plan) = &self.plan {
            return vec![format!("plan {}", plan.display())];
        }
        if self.all {
            let named = Recipe::methods().iter().map(|method| method.name);
            return named.map(|name| if name == "none" { name.to_owned() } else { format!("grace:{name}") }).collect();
        }
        let mut codecs: Vec<String> = Vec::new();
        for codec in &self.codec {
            if !codecs.contains(codec) {
                codecs.push(codec.clone());
            }
        }
        codecs
    }

    /// Steps of a training on so many images, with so many ranks.
    pub(crate) fn steps(&self, images: usize, ranks: u32) -> Result<usize, TrainError> {
        let refuse = |what, got: String, allowed: String| Err(TrainError::Argument { what, got, allowed });
        if !(self.rate.is_finite() && self.rate > 0.0) {
            return refuse("--rate", self.rate.to_string(), "a learning rate is above 0 and finite".to_owned());
        }
        if self.batch < ranks as usize || self.batch > images {
            let allowed = format!("a batch has {ranks} images, one per rank, to {images}, which is all there are");
            return refuse("--batch", self.batch.to_string(), allowed);
        }
        let steps = self.steps.unwrap_or_else(|| self.epochs.saturating_mul(images / self.batch));
        let codecs = self.codecs().len();
        if codecs > 1 && (self.save.is_some() || self.resume.is_some()) {
            let allowed = "--save and --resume are of one training: name one codec".to_owned();
            return refuse("--codec", format!("{codecs} codecs"), allowed);
        }
        if steps == 0 || steps > 1_000_000 {
            let what = if self.steps.is_some() { "--steps" } else { "--epochs" };
            return refuse(what, steps.to_string() + " steps", "a training has 1 to 1000000 steps".to_owned());
        }
        Ok(steps)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn args(given: &[&str]) -> Args {
        Args::try_parse_from([&["train"], given].concat()).unwrap()
    }

    #[test]
    fn a_codec_is_named_once() {
        let given = args(&["--codec", "qsgd:bits=4,bucket=64+ef", "none", "--codec", "none", "uniform:bits=2,l2"]);
        assert_eq!(given.codecs(), ["qsgd:bits=4,bucket=64+ef", "none", "uniform:bits=2,l2"]);
        assert!(args(&[]).codecs().contains(&"none".to_owned()));
    }

    #[test]
    fn all_of_grace_s_methods_stand_beside_none() {
        let codecs = args(&["--all"]).codecs();
        assert_eq!(codecs[0], "none");
        for name in ["onebit", "signsgd", "efsignsgd", "topk", "powersgd"] {
            assert!(codecs.contains(&format!("grace:{name}")), "{codecs:?}");
        }
        for codec in &codecs {
            codec.parse::<Recipe>().unwrap();
        }
        assert!(Args::try_parse_from(["train", "--all", "--codec", "none"]).is_err());
        assert!(Args::try_parse_from(["train", "--all", "--plan", "plan.json"]).is_err());
    }

    #[test]
    fn arguments_that_make_no_sense_give_a_sentence() {
        for (given, found) in [
            (["--rate", "0"], "--rate is 0"),
            (["--rate", "inf"], "--rate is inf"),
            (["--batch", "3"], "4 images, one per rank"),
            (["--batch", "101"], "to 100"),
            (["--epochs", "0"], "--epochs is 0 steps"),
            (["--steps", "0"], "--steps is 0 steps"),
            (["--steps", "1000001"], "1 to 1000000 steps"),
            (["--save", "file"], "name one codec"),
            (["--resume", "file"], "name one codec"),
        ] {
            let error = args(&given).steps(100, 4).unwrap_err().to_string();
            assert!(error.contains(found), "{error}");
        }
        assert_eq!(args(&["--epochs", "3", "--batch", "40"]).steps(100, 4).unwrap(), 6);
        assert_eq!(args(&["--epochs", "3", "--steps", "7"]).steps(100, 4).unwrap(), 7);
        assert!(Args::try_parse_from(["train", "--ranks", "0"]).is_err());
    }
}
