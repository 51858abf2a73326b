//! The golden vectors of sparse payloads, and the check of a device against them.

use gradwire::{Device, Dtype, Gradient, Seed, Segment, SparsePayload, TopK};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use super::SeedWords;
use super::topk_list::{Input, Sent, Spec, specs};
use super::words::{bytes, number, read, write};
use crate::cases::Case;
use crate::conformance::{Outcome, differ};
use crate::oracle;
use crate::oracle::sparse::{above, largest, narrowed, of_each, part, payload, widened};
use crate::oracle::wire::{self, Type, bits};

/// The committed vectors.
pub const TOPK: &str = include_str!("../../vectors/topk.json");

const COMMENT: &[&str] = &[
    "Golden vectors of Gradwire's sparse payloads, wire format version 1: docs/wire.md, under Sparse payloads, is the page that they belong to. They never change; new ones may be added.",
    "name: what the vector is there for. n: elements. k: how many are kept. dtype: type of the gradient. values: type in which values are sent: f32, f16 (IEEE binary16) or bf16.",
    "keep, where present, is what is asked for, in place of k entries: a part (the bits of a binary64 number), a threshold (of a binary32 number), blocks (elements and k of each), or segments (elements and k of each).",
    "quantizer, where values is payload: codec, bits (of a code), levels, norm, rounding, bucket (null for all values in one), contractive, and the seed, with fields as in qsgd.json and uniform.json.",
    "Numbers are lists of words with a space between. A word is the bits of one number as a hexadecimal number, most significant digit first: 1.0 is 3f800000. `word*count` is that word count times. Words have 8 digits, but those of an f16 or bf16 gradient, which have 4.",
    "gradient: what is encoded. indices: the entries that are kept, as words. payload: the exact bytes in the order in which they are sent, two digits a byte. decoded: what the payload decodes to.",
    "residual_before, residual_after: present for error feedback, where gradient + residual_before is encoded and residual_after is left.",
    "A vector is passed if encoding gives payload and residual_after, and decoding the payload gives decoded, all of them bit for bit.",
];

/// The file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// How to read what follows.
    pub comment: Vec<String>,
    /// The vectors.
    pub vectors: Vec<Vector>,
}

/// One vector; the file's comment says what each field is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vector {
    /// What it is there for; no two vectors share one.
    pub name: String,
    /// Elements.
    pub n: usize,
    /// How many are kept.
    pub k: usize,
    /// `f32`, `f16` or `bf16`.
    pub dtype: String,
    /// `f32`, `f16`, `bf16` or `payload`.
    pub values: String,
    /// What is asked for, if it is not `k` entries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<Keep>,
    /// Where values are a payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantizer: Option<Quantizer>,
    /// What is encoded.
    pub gradient: String,
    /// Error feedback, where the vector has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub residual_before: Option<String>,
    /// The kept entries.
    pub indices: String,
    /// The whole payload.
    pub payload: String,
    /// Error feedback, where the vector has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub residual_after: Option<String>,
    /// What the payload decodes to.
    pub decoded: String,
}

/// What is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Keep {
    /// So many entries: the field `k` says it.
    #[serde(skip)]
    Count(usize),
    /// A part of all, as the bits of a binary64 number.
    Part(String),
    /// All of at least this magnitude, as the bits of a binary32 number.
    Threshold(String),
    /// Of each block of so many elements so many.
    Blocks(usize, usize),
    /// Of each segment of so many elements so many.
    Segments(Vec<(usize, usize)>),
}

/// How values are quantized.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantizer {
    /// `qsgd` or `uniform`.
    pub codec: String,
    /// Bits of a code.
    pub bits: u32,
    /// Levels.
    pub levels: u32,
    /// Elements of a bucket; null for all values.
    pub bucket: Option<usize>,
    /// QSGD's norm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm: Option<String>,
    /// The uniform codec's rounding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounding: Option<String>,
    /// Whether the scalars carry beta.
    pub contractive: bool,
    /// The address of the draws.
    pub seed: SeedWords,
}

fn name(of: Type) -> String {
    match of {
        Type::F32 => "f32",
        Type::F16 => "f16",
        Type::Bf16 => "bf16",
    }
    .to_owned()
}

fn floats(x: &[f32]) -> String {
    write(&x.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), 8)
}

/// The bytes of the values, and what each decodes to.
fn values(spec: &Spec, indices: &[u32], sum: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let kept: Vec<f32> = indices.iter().map(|i| sum[*i as usize]).collect();
    match (&spec.sent, &spec.input) {
        (Sent::As(Type::F32), _) => (kept.iter().flat_map(|v| v.to_bits().to_le_bytes()).collect(), kept),
        (Sent::As(of), Input::Half(own, raw)) if own == of && spec.residual.is_none() => {
            let sent: Vec<u16> = indices.iter().map(|i| raw[*i as usize]).collect();
            (sent.iter().flat_map(|h| h.to_le_bytes()).collect(), sent.iter().map(|h| widened(*h, *of)).collect())
        }
        (Sent::As(of), _) => {
            let sent: Vec<u16> = kept.iter().map(|v| narrowed(*v, *of)).collect();
            (sent.iter().flat_map(|h| h.to_le_bytes()).collect(), sent.iter().map(|h| widened(*h, *of)).collect())
        }
        (Sent::Quantized(case, (run, step, tensor), worker), _) => {
            let s = case.oracle(kept.len(), oracle::run_of_worker(*run, *worker), *step, *tensor);
            let encoded = oracle::encode(&s, &kept);
            let payload = wire::payload(&s, Type::F32, case.contractive, &encoded);
            (payload, oracle::decode(&s, &encoded))
        }
    }
}

fn chosen(keep: &Keep, sum: &[f32], size: Option<usize>) -> Result<Vec<u32>, String> {
    Ok(match keep {
        Keep::Count(k) => largest(sum, *k),
        Keep::Part(bits) => largest(sum, part(f64::from_bits(number(bits, 16)?), sum.len())),
        Keep::Threshold(bits) => above(sum, f32::from_bits(number(bits, 8)? as u32), size),
        Keep::Blocks(elements, k) => of_each(sum, sum.chunks(*elements).map(|block| (block.len(), *k))),
        Keep::Segments(segments) => of_each(sum, segments.iter().copied()),
    })
}

fn vector(spec: &Spec) -> Result<Vector, String> {
    let (gradient, dtype, x): (String, Type, Vec<f32>) = match &spec.input {
        Input::F32(x) => (floats(x), Type::F32, x.clone()),
        Input::Half(of, raw) => {
            let words: Vec<u32> = raw.iter().map(|h| (*h).into()).collect();
            (write(&words, 4), *of, raw.iter().map(|h| widened(*h, *of)).collect())
        }
    };
    let sum: Vec<f32> = match &spec.residual {
        None => x,
        Some(residual) => x.iter().zip(residual).map(|(g, e)| f32::from_bits(bits(g + e))).collect(),
    };
    let (tag, size, quantizer) = match &spec.sent {
        Sent::As(Type::F32) => (0, Some(4), None),
        Sent::As(of) => (if *of == Type::F16 { 1 } else { 2 }, Some(2), None),
        Sent::Quantized(case, seed, worker) => (3, None, Some(Quantizer::new(case, SeedWords::new(*seed, *worker)))),
    };
    let indices = chosen(&spec.keep, &sum, size)?;
    let (values, sent) = values(spec, &indices, &sum);
    let (mut decoded, mut after) = (vec![0.0; sum.len()], sum.clone());
    for (i, sent) in indices.iter().map(|i| *i as usize).zip(sent) {
        decoded[i] = f32::from_bits(bits(sent));
        after[i] = left(sum[i], sent);
    }
    if let Some(residual) = spec.residual.as_ref().filter(|_| !sum.iter().all(|v| v.is_finite())) {
        after.clone_from(residual);
    }
    let payload = payload(sum.len(), dtype, tag, &indices, &values);
    Ok(Vector {
        name: spec.name.to_owned(),
        n: sum.len(),
        k: indices.len(),
        dtype: name(dtype),
        values: ["f32", "f16", "bf16", "payload"][tag as usize].to_owned(),
        keep: Some(spec.keep.clone()).filter(|keep| !matches!(keep, Keep::Count(_))),
        quantizer,
        gradient,
        residual_before: spec.residual.as_deref().map(floats),
        indices: write(&indices, 8),
        payload: payload.iter().map(|b| format!("{b:02x}")).collect(),
        residual_after: spec.residual.is_some().then(|| floats(&after)),
        decoded: floats(&decoded),
    })
}

/// What is left of a value of which a part was sent.
fn left(value: f32, sent: f32) -> f32 {
    if bits(value) == bits(sent) {
        0.0
    } else if sent.is_finite() {
        value - sent
    } else {
        value
    }
}

impl Quantizer {
    fn new(case: &Case, seed: SeedWords) -> Self {
        let (codec, norm, rounding) = case.words();
        let (norm, rounding) = (norm.map(str::to_owned), rounding.map(str::to_owned));
        let Case { bits, levels, bucket, contractive, .. } = *case;
        Self { codec: codec.to_owned(), bits, levels, bucket, norm, rounding, contractive, seed }
    }

    /// The setting.
    fn case(&self) -> Result<Case, String> {
        let kind = Case::kind_of(&self.codec, self.norm.as_deref(), self.rounding.as_deref())?;
        let Self { bits, levels, bucket, contractive, .. } = *self;
        Ok(Case { kind, bits, levels, bucket, contractive })
    }
}

/// The file, as the oracle computes it.
pub(super) fn file() -> File {
    let comment = COMMENT.iter().map(|line| (*line).to_owned()).collect();
    let vectors = specs().iter().map(|spec| vector(spec).expect("what the list asks for can be read")).collect();
    File { comment, vectors }
}

/// The committed vectors.
///
/// # Errors
/// A text that says where the file is not as it should be.
pub fn committed() -> Result<Vec<Vector>, String> {
    let file: Result<File, _> = serde_json::from_str(TOPK);
    file.map(|f| f.vectors).map_err(|e| format!("tests/vectors/topk.json: {e}; `cargo xtask vectors` writes it anew"))
}

/// Encode, feedback and decode of sparse payloads give these vectors' bytes.
pub fn check(device: &Device, vectors: &[Vector]) -> Outcome {
    let mut compared = 0;
    for vector in vectors {
        let label = format!("golden vector of top-k, \"{}\"", vector.name);
        compared += check_one(device, vector, &label)
            .map_err(|e| if e.starts_with(&label) { e } else { format!("{label}: {e}") })?;
    }
    Ok(compared)
}

/// The selection that a vector asks for.
fn codec(v: &Vector) -> Result<TopK, String> {
    Ok(match &v.keep {
        None | Some(Keep::Count(_)) => TopK::count(v.k as u64),
        Some(Keep::Part(part)) => TopK::fraction(f64::from_bits(number(part, 16)?)),
        Some(Keep::Threshold(threshold)) => TopK::above(f32::from_bits(number(threshold, 8)? as u32)),
        Some(Keep::Blocks(elements, k)) => TopK::blocks(*elements as u64, *k as u64),
        Some(Keep::Segments(segments)) => {
            let segment = |(elements, k): &(usize, usize)| Segment { elements: *elements as u64, k: *k as u64 };
            TopK::segments(&segments.iter().map(segment).collect::<Vec<_>>())
        }
    })
}

fn check_one(device: &Device, v: &Vector, label: &str) -> Outcome {
    let dtype = |name: &str| match name {
        "f32" => Ok(Dtype::F32),
        "f16" => Ok(Dtype::F16),
        "bf16" => Ok(Dtype::Bf16),
        other => Err(format!("`{other}` is no type")),
    };
    let floats = |text: &str| read(text, 8, v.n).map(|w| w.into_iter().map(f32::from_bits).collect::<Vec<f32>>());
    let halves = || read(&v.gradient, 4, v.n);
    let (mut f32s, mut f16s, mut bf16s) = (Vec::new(), Vec::new(), Vec::new());
    let gradient = match dtype(&v.dtype)? {
        Dtype::F32 => {
            f32s.extend(floats(&v.gradient)?);
            Gradient::F32(&f32s)
        }
        Dtype::F16 => {
            f16s.extend(halves()?.into_iter().map(|h| f16::from_bits(h as u16)));
            Gradient::F16(&f16s)
        }
        Dtype::Bf16 => {
            bf16s.extend(halves()?.into_iter().map(|h| bf16::from_bits(h as u16)));
            Gradient::Bf16(&bf16s)
        }
    };
    let codec = codec(v)?;
    let codec = match &v.quantizer {
        None => codec.values(dtype(&v.values)?),
        Some(quantizer) => codec.then(quantizer.case()?.codec()),
    };
    let seed = v.quantizer.as_ref().map_or_else(|| Ok(Seed::new(0)), |quantizer| quantizer.seed.seed())?;
    let fail = |e: gradwire::Error| e.to_string();
    let expected = bytes(&v.payload)?;
    let got = match (&v.residual_before, &v.residual_after) {
        (None, None) => device.encode_sparse(&codec, gradient, seed).map_err(fail)?,
        (Some(before), Some(after)) => {
            let mut residual = floats(before)?;
            let got = device.encode_sparse_with_feedback(&codec, gradient, &mut residual, seed).map_err(fail)?;
            differ("residual", label, bytemuck::cast_slice(&residual), bytemuck::cast_slice(&floats(after)?))?;
            got
        }
        _ => return Err("a residual before or after, and not both".to_owned()),
    };
    differ("payload", label, got.as_bytes(), &expected)?;
    let payload = SparsePayload::from_bytes(&expected).map_err(|e| e.to_string())?;
    differ(
        "indices",
        label,
        bytemuck::cast_slice(payload.indices()),
        bytemuck::cast_slice(&read(&v.indices, 8, v.k)?),
    )?;
    let decoded = device.decode_sparse(&payload).map_err(fail)?;
    differ("decoded", label, bytemuck::cast_slice(&decoded), bytemuck::cast_slice(&floats(&v.decoded)?))?;
    Ok(3)
}
