//! Any bytes, as a sparse payload.

use gradwire::{Device, Dtype, Payload, PayloadError, Qsgd, SparsePayload, TopK, Uniform, ValueFormat};

use super::reader;
use crate::cases;
use crate::meter::bounded;

/// Bytes that reading may hold for each byte received: a copy of what was received, and indices of 4 bytes. Where every
/// element is an entry, no byte is spent on indices, and 21 bytes hold 1280 values in base 3.
const HELD: u64 = 1 + (4u64 * 1280).div_ceil(21);
/// What it may hold besides.
const OVERHEAD: u64 = 1024;

/// The target `sparse`: bytes with the right checksum, as a sparse payload.
///
/// # Errors
/// Why they were refused.
///
/// # Panics
/// Where a payload that is accepted has indices that do not rise or are out of range, is not what would be written, or
/// decodes to other than its entries; where reading holds more memory than the bytes bear out.
pub fn sparse(devices: &[Device], bytes: &[u8]) -> Result<(), PayloadError> {
    let mut sealed = bytes.to_vec();
    reader::seal(&mut sealed);
    let allowed = HELD * sealed.len() as u64 + OVERHEAD;
    let payload = bounded("SparsePayload::from_bytes", allowed, || SparsePayload::from_bytes(&sealed))?;
    assert_eq!(payload.as_bytes(), sealed);
    let indices = payload.indices();
    assert_eq!(indices.len() as u64, payload.header().count);
    assert!(indices.windows(2).all(|pair| pair[0] < pair[1]), "indices do not rise");
    assert!(indices.last().is_none_or(|last| (*last as usize) < payload.len()), "an index is out of range");
    // A gradient's length is free: an empty payload of 2^31 elements is 32 bytes.
    if payload.len() > 1 << 16 {
        return Ok(());
    }
    let values = values(&payload);
    let mut dense = vec![0u32; payload.len()];
    for (index, value) in indices.iter().zip(&values) {
        dense[*index as usize] = if value.is_nan() { 0x7fc0_0000 } else { value.to_bits() };
    }
    for device in devices {
        let decoded = device.decode_sparse(&payload).expect("it was accepted");
        assert!(decoded.iter().map(|v| v.to_bits()).eq(dense.iter().copied()), "{device}: decoded");
        let mut sum = vec![1.0f32; payload.len()];
        device.decode_sparse_add(&payload, 0.5, &mut sum).expect("it was accepted");
        let untouched = sum.iter().zip(0u32..).filter(|(_, i)| indices.binary_search(i).is_err());
        assert!(untouched.map(|(v, _)| *v).all(|v| v == 1.0), "{device}: decode-add left its entries");
    }
    Ok(())
}

/// The values as `docs/wire.md` has them: after the indices, in their type or as a payload.
fn values(payload: &SparsePayload) -> Vec<f32> {
    let header = payload.header();
    let part = &payload.as_bytes()[32 + header.index_bytes() as usize..];
    let halves = part.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    match header.values {
        ValueFormat::Plain(Dtype::F32) => {
            part.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        }
        ValueFormat::Plain(Dtype::F16) => halves.map(|h| half::f16::from_bits(h).to_f32()).collect(),
        ValueFormat::Plain(Dtype::Bf16) => halves.map(|h| half::bf16::from_bits(h).to_f32()).collect(),
        ValueFormat::Payload => {
            let inner = Payload::from_bytes(part).expect("it was checked");
            Device::cpu().decode(&inner).expect("it was accepted")
        }
    }
}

/// A payload of every format of indices and of values.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let device = Device::cpu();
    let mut seeds = Vec::new();
    for n in [1usize, 33, 300, 900] {
        let x = cases::normal(n, n as u64);
        for part in [0.0, 0.004, 0.05, 0.4, 0.9, 1.0] {
            let codec = TopK::fraction(part);
            for codec in [
                codec.clone(),
                codec.clone().values(Dtype::F16),
                codec.clone().values(Dtype::Bf16),
                codec.clone().then(Qsgd::bits(4).bucket(32)),
                codec.then(Uniform::bits(1).whole_tensor()),
            ] {
                seeds.extend(device.encode_sparse(&codec, &x, cases::seed()).map(SparsePayload::into_bytes));
            }
        }
    }
    seeds
}
