//! What must hold of any bytes that a network hands over: the bodies of the fuzz targets, which tests run as well.
//!
//! Bytes are refused with a typed error or decode to what `docs/wire.md` says; nothing panics; and what a call holds of
//! memory is bounded by what was received, in every binary that has [`crate::meter::Meter`] as its allocator.

pub mod forge;
mod low_rank;
pub mod mutate;
pub mod places;
pub mod reader;
pub mod seeds;
mod sparse;

use gradwire::backend::cpu::{Cpu, Simd};
use gradwire::session::Role;
use gradwire::{DecodeMode, DecodePlan, Device, Entropy, Error, Header, Payload, PayloadError};

pub use self::low_rank::low_rank;
use self::reader::Refusal;
pub use self::sparse::sparse;
use crate::meter::bounded;

/// Bytes that a decode on the CPU may hold beside the values it decodes, whatever the payload says: its list of passes.
pub const OVERHEAD: u64 = 2048;
/// Bytes that it may hold besides for each payload of a sum: a view of it, and where scalars and codes are.
pub const PER_PAYLOAD: u64 = 80;

/// A fuzz target's body.
pub type Target = fn(&[Device], &[u8]) -> Result<(), Error>;

/// The fuzz targets, each with its body.
pub const TARGETS: [(&str, Target); 4] = [
    ("wire", |devices, bytes| Ok(wire(devices, bytes)?)),
    ("decode", |devices, bytes| Ok(decode(devices, bytes)?)),
    ("sparse", |devices, bytes| Ok(sparse(devices, bytes)?)),
    ("low_rank", low_rank),
];

/// The CPU at every vector width of this machine.
pub fn devices() -> Vec<Device> {
    Simd::ALL.into_iter().filter_map(|simd| Cpu::with_simd(simd).ok()).map(Device::from_cpu).collect()
}

/// The target `wire`: bytes as they come, and with the right checksum, which no fuzzer guesses. Up to 8192 bytes, so
/// that what is decoded stays on the calling thread, where the meter is.
///
/// # Errors
/// Why the bytes with the right checksum were refused.
///
/// # Panics
/// Where something of this module's first sentence does not hold.
pub fn wire(devices: &[Device], bytes: &[u8]) -> Result<(), PayloadError> {
    let mut sealed = bytes.to_vec();
    reader::seal(&mut sealed);
    assert!(sealed == bytes || receive(bytes).is_err(), "accepted with two checksums");
    let accepted = receive(&sealed)?;
    devices.iter().for_each(|device| decodes(device, &accepted, 0.5));
    Ok(())
}

/// The target `decode`: bytes choose a codec, a header's fields and a body.
///
/// # Errors
/// Why the payload was refused.
///
/// # Panics
/// As [`wire`].
pub fn decode(devices: &[Device], choices: &[u8]) -> Result<(), PayloadError> {
    let forged = forge::payload(choices);
    let (first, other) = (receive(&forged.bytes)?, receive(&forged.other)?);
    for device in devices {
        decodes(device, &first, forged.weight);
        sums(device, &[&first, &other, &first], forged.weight);
    }
    Ok(())
}

/// A payload that the product accepts.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// What it made of the bytes.
    pub payload: Payload,
    /// What the page says that it decodes to.
    pub values: Vec<f32>,
}

/// Reads bytes in every way there is, and holds each to what the page says.
///
/// Memory: a refusal takes none at all; `from_bytes` takes the payload's length, `from_vec` and `Header::read` none.
///
/// # Errors
/// Why the bytes were refused.
///
/// # Panics
/// As [`wire`].
pub fn receive(bytes: &[u8]) -> Result<Accepted, PayloadError> {
    let expected = reader::refusal(bytes);
    let allowed = if expected.is_none() { bytes.len() as u64 } else { 0 };
    let read = bounded("Payload::from_bytes", allowed, || Payload::from_bytes(bytes));
    let owned = bytes.to_vec();
    let moved = bounded("Payload::from_vec", 0, || Payload::from_vec(owned));
    assert_eq!(read, moved, "from_bytes and from_vec disagree");
    let header = bounded("Header::read", 0, || Header::read(bytes));
    match &read {
        Ok(payload) => {
            assert_eq!(expected, None, "accepted, and docs/wire.md refuses it");
            assert_eq!(header, Ok(*payload.header()), "two headers of one payload");
            agrees(payload, bytes);
        }
        Err(error) => {
            assert_eq!(Some(Refusal::of(error)), expected, "docs/wire.md says otherwise");
            assert!(!error.to_string().is_empty(), "an error without a text: {error:?}");
            let damaged = matches!(
                error,
                PayloadError::Checksum { .. } | PayloadError::Table { .. } | PayloadError::Field { field: "table", .. }
            );
            assert_eq!(header.err(), (!damaged).then_some(*error), "the header alone says otherwise");
        }
    }
    read.map(|payload| Accepted { payload, values: reader::decode(bytes) })
}

/// A payload is the bytes it was made from.
fn agrees(payload: &Payload, bytes: &[u8]) {
    let header = payload.header();
    assert_eq!(payload.as_bytes(), bytes, "the payload's bytes are not those it was read from");
    assert_eq!(header.write(&bytes[32..]), bytes[..32], "the header does not write the bytes it was read from");
    assert_eq!(header.payload_bytes(), bytes.len() as u64);
    assert_eq!((payload.len() as u64, payload.is_empty()), (header.elements(), header.elements() == 0));
    // One bit per element is the least that a payload spends, in base 3 21 bytes per 1280 elements, and as places 4 per
    // 16384, so that received bytes bound what decoding them takes.
    let least = match header.entropy() {
        Entropy::Base3 => 21 * header.elements().div_ceil(1280),
        Entropy::Sparse => 4 * header.elements().div_ceil(16_384),
        _ => header.elements().div_ceil(8),
    };
    assert!(least <= bytes.len() as u64, "{} elements in {} bytes", header.elements(), bytes.len());
}

fn same(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}: another length");
    let differs = found.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits());
    assert_eq!(
        differs,
        None,
        "{what}: this element is {:?}, not {:?}",
        differs.map(|i| found[i]),
        differs.map(|i| expected[i])
    );
}

/// `out + weight * value`, as the section "Sums of payloads" has it.
fn add(out: &mut [f32], weight: f32, values: &[f32]) {
    for (out, value) in out.iter_mut().zip(values) {
        let sum = *out + weight * value;
        *out = if sum.is_nan() { f32::from_bits(0x7fc0_0000) } else { sum };
    }
}

/// Decodes an accepted payload in every way there is.
///
/// Memory, on the CPU: 4 bytes per element where the output is the call's to make, what `unpacking` takes, and
/// [`OVERHEAD`].
///
/// # Panics
/// As [`wire`].
pub fn decodes(device: &Device, accepted: &Accepted, weight: f32) {
    let Accepted { payload, values: expected } = accepted;
    let n = payload.len();
    let refused = "an accepted payload decodes";
    let own = OVERHEAD + unpacking(payload);
    let decoded = bounded("decode", 4 * n as u64 + own, || device.decode(payload)).expect(refused);
    same("decode", &decoded, expected);
    // One more element than there are, so that a write after the end shows.
    let mut out = vec![7.0; n + 1];
    bounded("decode_into", own, || device.decode_into(payload, &mut out[..n])).expect(refused);
    same("decode_into", &out[..n], expected);
    let mut sum = out[..n].to_vec();
    add(&mut sum, weight, expected);
    bounded("decode_add", own, || device.decode_add(payload, weight, &mut out[..n])).expect(refused);
    same("decode_add", &out[..n], &sum);
    let error = bounded("a refused decode_add", OVERHEAD, || device.decode_add(payload, weight, &mut out));
    let found = n as u64 + 1;
    assert!(matches!(error, Err(Error::Length { found: f, .. }) if f == found), "{error:?}");
    assert_eq!(out[n], 7.0, "written behind the end");
    sums(device, &[accepted], weight);
    session(device, payload, expected);
}

/// The sum of payloads of one kind, which need not have one body.
///
/// Memory, on the CPU: [`OVERHEAD`], and [`PER_PAYLOAD`] and what `unpacking` takes for each.
///
/// # Panics
/// As [`wire`].
pub fn sums(device: &Device, accepted: &[&Accepted], weight: f32) {
    let payloads: Vec<Payload> = accepted.iter().map(|a| a.payload.clone()).collect();
    let Some(first) = payloads.first() else { return };
    let mut out = vec![7.0; first.len()];
    let allowed = OVERHEAD + PER_PAYLOAD * payloads.len() as u64 + payloads.iter().map(unpacking).sum::<u64>();
    let result = bounded("decode_sum", allowed, || device.decode_sum(&payloads, weight, &mut out));
    let kind = |p: &Payload| {
        let h = *p.header();
        (h.codec(), h.bits(), h.levels(), h.bucket(), h.elements())
    };
    if let Some(odd) = payloads.iter().position(|p| kind(p) != kind(first)) {
        assert!(matches!(result, Err(Error::Mixed { index, .. }) if index == odd), "{result:?}");
        assert!(out.iter().all(|v| *v == 7.0), "a refused sum wrote");
        return;
    }
    result.expect("payloads of one kind are summed");
    let mut expected = vec![0.0; first.len()];
    accepted.iter().for_each(|a| add(&mut expected, weight, &a.values));
    same("decode_sum", &out, &expected);
}

/// What a payload whose codes are packed takes to be unpacked: one with codes of fixed width, where each unit begins,
/// and what holds them.
fn unpacking(payload: &Payload) -> u64 {
    let fixed = *DecodePlan::new(*payload.header(), 1).header();
    if fixed == *payload.header() { 0 } else { fixed.payload_bytes() + 8 * (1 + fixed.elements().div_ceil(256)) + 512 }
}

/// The same through buffers that stay on the device, whose sizes come from the header alone.
fn session(device: &Device, payload: &Payload, expected: &[f32]) {
    let payload = &device.unpack(payload).expect("an accepted payload is unpacked");
    let plan = DecodePlan::new(*payload.header(), 1);
    let passes = plan.passes(DecodeMode::Write, &device.limits()).expect("the CPU has no limits");
    let sizes = plan.sizes();
    let (scalars, codes) = payload.as_bytes()[32..].split_at(plan.header().scalar_bytes() as usize);
    let mut out = vec![7.0f32; expected.len()];
    // Scalars and codes are padded to 256 bytes each.
    let allowed = payload.as_bytes().len() as u64 + 512 + 4 * payload.len() as u64 + OVERHEAD;
    bounded("a session", allowed, || {
        let mut session = device.session(sizes)?;
        session.write(Role::Scalars, 0, scalars)?;
        session.write(Role::Codes, 0, codes)?;
        session.run(&passes)?;
        session.read(Role::Output, 0, bytemuck::cast_slice_mut(&mut out))
    })
    .expect("an accepted payload decodes");
    same("a session", &out, expected);
}
