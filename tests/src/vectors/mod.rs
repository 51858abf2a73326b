//! Golden vectors: the bytes of format version 1, committed in `tests/vectors`, and the check of a device against them.
//!
//! The oracle computes them (`make.rs`), so that neither the product nor a change to it has a say in what they are.

mod check;
pub mod elias;
mod make;
pub mod powersgd;
pub(crate) mod spec;
pub mod topk;
mod topk_list;
mod words;

use serde::{Deserialize, Serialize};

pub use self::check::{check, check_all};
pub use self::make::files;
pub(crate) use self::spec::Spec;
use self::words::number;
use crate::formula::CODECS;

/// The committed vectors of the draws.
pub const PHILOX: &str = include_str!("../../vectors/philox.json");

/// A file of vectors of a codec. The order of the fields is that of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// How to read what follows.
    pub comment: Vec<String>,
    /// The vectors.
    pub vectors: Vec<Vector>,
}

/// One vector; the file's comment says what each field is. Numbers whose bits matter are text, in hexadecimal.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vector {
    /// What it is there for; no two vectors of a file share one.
    pub name: String,
    /// The codec's name, as its file has it.
    pub codec: String,
    /// Bits of a code.
    pub bits: u32,
    /// Levels, L.
    pub levels: u32,
    /// Elements of a bucket; null for the whole tensor.
    pub bucket: Option<usize>,
    /// QSGD's norm: `max` or `l2`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm: Option<String>,
    /// The uniform codec's rounding: `stochastic` or `nearest`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounding: Option<String>,
    /// Whether the scalars carry beta.
    pub contractive: bool,
    /// The factor of the scalars.
    pub beta: String,
    /// The address of the draws.
    pub seed: SeedWords,
    /// Elements.
    pub n: usize,
    /// `f32`, `f16` or `bf16`.
    pub dtype: String,
    /// What is encoded.
    pub gradient: String,
    /// Error feedback, where the vector has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub residual_before: Option<String>,
    /// The whole payload.
    pub payload: String,
    /// Error feedback, where the vector has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub residual_after: Option<String>,
    /// What the payload decodes to.
    pub decoded: String,
    /// Decode-and-accumulate, where the vector has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_add: Option<Add>,
}

/// The address of the draws.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedWords {
    /// 64 bits.
    pub run: String,
    /// 64 bits.
    pub step: String,
    /// 32 bits.
    pub tensor: String,
    /// 32 bits; none for worker 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
}

impl SeedWords {
    /// Of a run, a step, a tensor and a worker.
    fn new((run, step, tensor): (u64, u64, u32), worker: u32) -> Self {
        Self {
            run: format!("{run:016x}"),
            step: format!("{step:016x}"),
            tensor: format!("{tensor:08x}"),
            worker: (worker != 0).then(|| format!("{worker:08x}")),
        }
    }

    /// As the product takes it.
    ///
    /// # Errors
    /// A text that says what is not hexadecimal.
    pub fn seed(&self) -> Result<gradwire::Seed, String> {
        let [run, step] = [number(&self.run, 16)?, number(&self.step, 16)?];
        let worker = self.worker.as_deref().map_or(Ok(0), |worker| number(worker, 8))?;
        Ok(gradwire::Seed::new(run).step(step).tensor(number(&self.tensor, 8)? as u32).worker(worker as u32))
    }
}

/// `result = start + weight * decoded`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Add {
    /// One number.
    pub weight: String,
    /// `n` numbers.
    pub start: String,
    /// `n` numbers.
    pub result: String,
}

/// The committed vectors of a codec.
///
/// # Errors
/// A text that says where a file is not as it should be.
pub fn committed(codec: &str) -> Result<Vec<Vector>, String> {
    let Some(tests) = CODECS.iter().find(|tests| tests.codec.file() == codec) else {
        let there = CODECS.iter().map(|tests| tests.codec.file()).collect::<Vec<_>>().join(", ");
        return Err(format!("golden vectors of `{codec}` were asked for; there are those of {there}"));
    };
    let file: File = serde_json::from_str(tests.committed)
        .map_err(|e| format!("tests/vectors/{codec}.json: {e}; `cargo xtask vectors` writes it anew"))?;
    Ok(file.vectors)
}

/// Whether a committed file is what the oracle computes.
///
/// # Errors
/// A text that says where the two first differ.
pub fn same(name: &str, committed: &str, computed: &str) -> Result<(), String> {
    if committed == computed {
        return Ok(());
    }
    let line = committed.lines().zip(computed.lines()).take_while(|(a, b)| a == b).count() + 1;
    Err(format!(
        "tests/vectors/{name}, line {line}: not what the oracle computes. Version 1 never changes: if the oracle did, mend \
         it; if only vectors were added, `cargo xtask vectors` writes the file"
    ))
}
