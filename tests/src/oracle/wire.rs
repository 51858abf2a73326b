//! The oracle's payloads, feedback and decode-add: written from `docs/wire.md`, sharing no code with the product.

use super::{Encoded, Setting, decode, encode, pack};

/// The type of a gradient, as the header tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    Bf16,
}

/// Bits on the wire and in results: every NaN is written as the same one.
pub fn bits(v: f32) -> u32 {
    if v.is_nan() { 0x7fc0_0000 } else { v.to_bits() }
}

/// CRC-32 of IEEE 802.3, one bit at a time.
pub fn crc32(bytes: impl IntoIterator<Item = u8>) -> u32 {
    let mut crc = 0xffff_ffffu32;
    for byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            let carry = crc & 1 == 1;
            crc >>= 1;
            if carry {
                crc ^= 0xEDB8_8320;
            }
        }
    }
    !crc
}

/// The whole payload: header, scalars, codes.
pub fn payload(s: &Setting, of: Type, contractive: bool, e: &Encoded) -> Vec<u8> {
    let formula = s.kind.formula();
    let bucket = match s.bucket {
        None => 255,
        Some(size) => (5..=13u8).find(|log2| size == 1 << log2).expect("a bucket is 2^5 to 2^13 elements"),
    };
    let mut out = b"GWIR".to_vec();
    out.extend([1, formula.page().tag, s.bits as u8, bucket]);
    out.extend((e.codes.len() as u64).to_le_bytes());
    out.extend((s.levels as u16).to_le_bytes());
    let of = match of {
        Type::F32 => 0,
        Type::F16 => 1,
        Type::Bf16 => 2,
    };
    out.extend([of, formula.flag() | u8::from(contractive) << 1]);
    out.extend([0; 8]);
    let mut body = Vec::new();
    for scalar in &e.scalars {
        body.extend(bits(*scalar).to_le_bytes());
    }
    body.extend(pack(&e.codes, s.bits));
    let crc = crc32(out.iter().chain(&body).copied());
    out.extend(crc.to_le_bytes());
    out.extend(body);
    out
}

/// What a receiver adds to `start`: each product rounded, then each sum.
pub fn decode_add(s: &Setting, e: &Encoded, weight: f32, start: &[f32]) -> Vec<f32> {
    decode(s, e)
        .iter()
        .zip(start)
        .map(|(value, start)| {
            let term = weight * value;
            f32::from_bits(bits(start + term))
        })
        .collect()
}

/// Encodes gradient + residual, and gives the residual after it.
pub fn feedback(s: &Setting, gradient: &[f32], residual: &[f32]) -> (Encoded, Vec<f32>) {
    let sum: Vec<f32> = gradient.iter().zip(residual).map(|(g, e)| g + e).collect();
    let encoded = encode(s, &sum);
    let values = decode(s, &encoded);
    let size = s.bucket.unwrap_or(sum.len().max(1));
    let mut after = Vec::new();
    for (i, old) in residual.iter().enumerate() {
        let first = i / size * size;
        let poisoned = sum[first..(first + size).min(sum.len())].iter().any(|v| !v.is_finite());
        after.push(if poisoned { *old } else { sum[i] - values[i] });
    }
    (encoded, after)
}
