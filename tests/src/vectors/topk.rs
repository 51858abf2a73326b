//! The golden vectors of sparse payloads, and the check of a device against them.

use gradwire::{Device, Dtype, Gradient, Seed, SparsePayload, TopK};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use super::words::{bytes, read, write};
use crate::cases::{Random, normal};
use crate::conformance::{Outcome, differ};
use crate::oracle::sparse::{largest, payload};
use crate::oracle::wire::{Type, bits};

/// The committed vectors.
pub const TOPK: &str = include_str!("../../vectors/topk.json");

const COMMENT: &[&str] = &[
    "Golden vectors of Gradwire's sparse payloads, wire format version 1: docs/wire.md, under Sparse payloads, is the page that they belong to. They never change; new ones may be added.",
    "name: what the vector is there for. n: elements. k: how many are kept. dtype: type of the gradient. values: type in which values are sent: f32, f16 (IEEE binary16) or bf16.",
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
    /// `f32`, `f16` or `bf16`.
    pub values: String,
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

/// What a vector is made of.
struct Spec {
    name: &'static str,
    k: usize,
    dtype: Type,
    sent: Type,
    x: Vec<f32>,
    residual: Option<Vec<f32>>,
}

fn specs() -> Vec<Spec> {
    let plain = |name, k, x| Spec { name, k, dtype: Type::F32, sent: Type::F32, x, residual: None };
    let odd = |n: usize| {
        let specials = [0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0xff80_0001, 0x8000_0000, 1, 0x8000_0002, 0x3f80_0000];
        (0..n).map(|i| f32::from_bits(specials[i * 5 % 8])).collect::<Vec<f32>>()
    };
    let mut random = Random(91);
    let few = (0..300).map(|_| (random.bits() % 3) as f32 - 1.0).collect();
    let half = |name, dtype, sent, residual| Spec { dtype, sent, residual, ..plain(name, 20, normal(200, 92)) };
    vec![
        plain("no element", 0, vec![]),
        plain("one element, all of it", 1, vec![-2.5]),
        plain("one element, none of it", 0, vec![-2.5]),
        plain("all of several: no index is written", 33, normal(33, 93)),
        plain("one of many: a list", 1, normal(1000, 94)),
        plain("one in a hundred: Elias and Fano's code", 10, normal(1000, 95)),
        plain("a third, where Elias and Fano's low part is one bit", 100, normal(300, 96)),
        plain("more than half: a bitmap", 200, normal(300, 97)),
        plain("all but one", 299, normal(300, 98)),
        plain("ties go to the lower index", 7, vec![0.5; 64]),
        plain("few distinct values", 50, few),
        plain("NaN, infinities, subnormals and both zeros, one NaN kept", 1, odd(32)),
        plain("NaN, infinities, subnormals and both zeros, half kept", 16, odd(32)),
        plain("zeros of both signs are one magnitude", 3, vec![-0.0, 0.0, -0.0, 0.0, 1.0]),
        half("f16", Type::F16, Type::F16, None),
        half("bf16", Type::Bf16, Type::Bf16, None),
        half("f32 sent as f16", Type::F32, Type::F16, None),
        half("f16 sent as bf16", Type::F16, Type::Bf16, None),
        half("feedback", Type::F32, Type::F32, Some(normal(200, 99))),
        half("feedback, f32 sent as bf16: what rounding takes is kept", Type::F32, Type::Bf16, Some(normal(200, 99))),
        Spec {
            sent: Type::F16,
            residual: Some(vec![0.0; 4]),
            ..plain("f16 sent for what is beyond it", 3, vec![1.0, 70000.0, -1e30, 3.0])
        },
        half("feedback, f16 gradient, values in f32", Type::F16, Type::F32, Some(normal(200, 99))),
    ]
}

fn name(of: Type) -> String {
    match of {
        Type::F32 => "f32",
        Type::F16 => "f16",
        Type::Bf16 => "bf16",
    }
    .to_owned()
}

fn half_bits(v: f32, of: Type) -> u16 {
    if of == Type::F16 { f16::from_f32(v).to_bits() } else { bf16::from_f32(v).to_bits() }
}

/// As it is sent: what is finite stays so.
fn nearest(v: f32, of: Type) -> u16 {
    let largest = if of == Type::F16 { 0x7bff } else { 0x7f7f };
    let half = half_bits(v, of);
    if v.is_finite() && half & 0x7fff > largest { half & 0x8000 | largest } else { half }
}

fn widened(half: u16, of: Type) -> f32 {
    if of == Type::F16 { f16::from_bits(half).to_f32() } else { bf16::from_bits(half).to_f32() }
}

fn floats(x: &[f32]) -> String {
    write(&x.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), 8)
}

fn vector(spec: &Spec) -> Vector {
    let raw: Vec<u16> = spec.x.iter().map(|v| half_bits(*v, spec.dtype)).collect();
    let (gradient, x): (String, Vec<f32>) = match spec.dtype {
        Type::F32 => (floats(&spec.x), spec.x.clone()),
        of => (
            write(&raw.iter().map(|h| (*h).into()).collect::<Vec<u32>>(), 4),
            raw.iter().map(|h| widened(*h, of)).collect(),
        ),
    };
    let sum: Vec<f32> = match &spec.residual {
        None => x,
        Some(residual) => x.iter().zip(residual).map(|(g, e)| g + e).collect(),
    };
    let indices = largest(&sum, spec.k);
    let (mut values, mut decoded, mut after) = (Vec::new(), vec![0.0; sum.len()], sum.clone());
    for i in indices.iter().map(|i| *i as usize) {
        let sent = match spec.sent {
            Type::F32 => {
                values.extend(sum[i].to_bits().to_le_bytes());
                sum[i]
            }
            of => {
                let half = if spec.dtype == of && spec.residual.is_none() { raw[i] } else { nearest(sum[i], of) };
                values.extend(half.to_le_bytes());
                widened(half, of)
            }
        };
        decoded[i] = f32::from_bits(bits(sent));
        after[i] = if sent.to_bits() == sum[i].to_bits() { 0.0 } else { sum[i] - sent };
    }
    let payload = payload(sum.len(), spec.dtype, spec.sent, &indices, &values);
    Vector {
        name: spec.name.to_owned(),
        n: sum.len(),
        k: spec.k,
        dtype: name(spec.dtype),
        values: name(spec.sent),
        gradient,
        residual_before: spec.residual.as_deref().map(floats),
        indices: write(&indices, 8),
        payload: payload.iter().map(|b| format!("{b:02x}")).collect(),
        residual_after: spec.residual.is_some().then(|| floats(&after)),
        decoded: floats(&decoded),
    }
}

/// The file, as the oracle computes it.
pub(super) fn file() -> File {
    let comment = COMMENT.iter().map(|line| (*line).to_owned()).collect();
    File { comment, vectors: specs().iter().map(vector).collect() }
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
    let codec = TopK::count(v.k as u64).values(dtype(&v.values)?);
    let fail = |e: gradwire::Error| e.to_string();
    let expected = bytes(&v.payload)?;
    let got = match (&v.residual_before, &v.residual_after) {
        (None, None) => device.encode_sparse(&codec, gradient, Seed::new(0)).map_err(fail)?,
        (Some(before), Some(after)) => {
            let mut residual = floats(before)?;
            let got =
                device.encode_sparse_with_feedback(&codec, gradient, &mut residual, Seed::new(0)).map_err(fail)?;
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
