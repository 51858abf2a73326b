//! Equality of bytes: against the oracle, and against the CPU.

use gradwire::{Device, Error, Gradient, NonFinite, Payload, Qsgd, Seed};
use half::{bf16, f16};

use crate::cases::{self, Case, FILLS, LENGTHS, Quantizer};
use crate::oracle;

/// What a check compared, or how it failed.
pub type Outcome = Result<u64, String>;

/// Where two results first differ, in words.
pub(crate) fn differ(what: &str, case: &str, got: &[u8], expected: &[u8]) -> Result<(), String> {
    if got == expected {
        return Ok(());
    }
    if got.len() != expected.len() {
        return Err(format!("{case}: {what} has {} bytes, expected {}", got.len(), expected.len()));
    }
    let at = got.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
    let window = at..(at + 4).min(got.len());
    Err(format!(
        "{case}: {what} differs first at byte {at} of {}: {:02x?}, expected {:02x?}",
        got.len(),
        &got[window.clone()],
        &expected[window]
    ))
}

fn failed(case: &str) -> impl Fn(Error) -> String + '_ {
    move |e| format!("{case}: {e}")
}

/// The device's payload and decoded values are the oracle's.
pub fn against_oracle(device: &Device, case: &Case, x: &[f32], what: &str) -> Outcome {
    let label = format!("{}, {what}, n = {}", case.label(), x.len());
    let setting = case.oracle(x.len(), cases::SEED.0, cases::SEED.1, cases::SEED.2);
    let expected = oracle::encode(&setting, x);
    let payload = device.encode(&case.codec(), x, cases::seed()).map_err(failed(&label))?;
    let canonical = |v: &f32| if v.is_nan() { 0x7fc0_0000u32 } else { v.to_bits() };
    let mut body: Vec<u8> = expected.scalars.iter().flat_map(|s| canonical(s).to_le_bytes()).collect();
    body.extend(oracle::pack(&expected.codes, case.bits));
    differ("payload body", &label, &payload.as_bytes()[gradwire::wire::HEADER_BYTES..], &body)?;
    let decoded = device.decode(&payload).map_err(failed(&label))?;
    let expected: Vec<u32> = oracle::decode(&setting, &expected).iter().map(canonical).collect();
    differ("decoded", &label, bytemuck::cast_slice(&decoded), bytemuck::cast_slice(&expected))?;
    Ok(1)
}

/// A bucket with a NaN keeps its residual, to the bit, and the others do not.
pub fn keeps_residual(device: &Device, case: &Case) -> Outcome {
    let (n, label) = (5000, case.label());
    let (mut x, before) = (cases::normal(n, 15), cases::normal(n, 16));
    x[5] = f32::NAN;
    let mut residual = before.clone();
    match device.encode_with_feedback(&case.codec(), &x, &mut residual, cases::seed()) {
        // Refused before a device is asked, and nothing has changed.
        Err(Error::FeedbackDiverges { .. }) if !case.contractive && case.omega(n) >= 1.0 => {
            differ("residual", &label, bytemuck::cast_slice(&residual), bytemuck::cast_slice(&before))?;
            return Ok(1);
        }
        outcome => outcome.map_err(failed(&label))?,
    };
    let end = case.bucket.map_or(n, |bucket| bucket.min(n));
    let bytes = bytemuck::cast_slice::<f32, u8>;
    differ("residual of the bucket with a NaN", &label, bytes(&residual[..end]), bytes(&before[..end]))?;
    match (end..n).find(|at| residual[*at] == before[*at]) {
        Some(at) => Err(format!("{label}: element {at} keeps its residual, and its bucket has no NaN")),
        None => Ok(1),
    }
}

/// Encode of every type, with and without feedback, decode, decode-add and sum: the device's bytes are the CPU's.
pub fn against_cpu(device: &Device, case: &Case, x: &[f32], what: &str) -> Outcome {
    (0..3).try_fold(0, |compared, dtype| Ok(compared + against_cpu_in(device, case, x, what, dtype)?))
}

/// The same of one type: f32, f16 and bf16 are 0, 1 and 2.
pub fn against_cpu_in(device: &Device, case: &Case, x: &[f32], what: &str, dtype: usize) -> Outcome {
    let cpu = Device::cpu();
    let f16s: Vec<f16> = x.iter().map(|v| f16::from_f32(*v)).collect();
    let bf16s: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
    let gradient = [Gradient::F32(x), Gradient::F16(&f16s), Gradient::Bf16(&bf16s)][dtype];
    let label = format!("{}, {what}, n = {}, {}", case.label(), x.len(), gradient.dtype().name());
    let expected = cpu.encode(&case.codec(), gradient, cases::seed()).map_err(failed(&label))?;
    let got = device.encode(&case.codec(), gradient, cases::seed()).map_err(failed(&label))?;
    differ("payload", &label, got.as_bytes(), expected.as_bytes())?;
    let compared = decode_all(device, &cpu, &expected, &label)? + 1;
    Ok(compared + feedback(device, &cpu, &case.codec(), gradient, &label)?)
}

/// One way to decode onto an output.
type Decode<'a> = &'a dyn Fn(&Device, &mut [f32]) -> Result<(), Error>;

/// Every way to decode a payload gives the CPU's bits.
fn decode_all(device: &Device, cpu: &Device, payload: &Payload, label: &str) -> Outcome {
    let start = cases::normal(payload.len(), 9);
    let both = |run: Decode<'_>| -> Result<[Vec<f32>; 2], String> {
        let (mut a, mut b) = (start.clone(), start.clone());
        run(device, &mut a).map_err(failed(label))?;
        run(cpu, &mut b).map_err(failed(label))?;
        Ok([a, b])
    };
    let check =
        |what: &str, [a, b]: [Vec<f32>; 2]| differ(what, label, bytemuck::cast_slice(&a), bytemuck::cast_slice(&b));
    check("decoded", both(&|d, out| d.decode_into(payload, out))?)?;
    check("decode-add", both(&|d, out| d.decode_add(payload, -0.3, out))?)?;
    let three = [payload.clone(), payload.clone(), payload.clone()];
    check("sum of three", both(&|d, out| d.decode_sum(&three, 1.0 / 3.0, out))?)?;
    Ok(3)
}

/// Two steps of feedback: payloads and residuals are the CPU's, and the identity of feedback holds to the bit.
fn feedback(device: &Device, cpu: &Device, codec: &Quantizer, gradient: Gradient<'_>, label: &str) -> Outcome {
    let mut residuals = [vec![0.0f32; gradient.len()], vec![0.0f32; gradient.len()]];
    for step in 0..2 {
        let seed = Seed::new(5).step(step);
        let mut payloads = Vec::new();
        for (d, residual) in [device, cpu].into_iter().zip(&mut residuals) {
            match d.encode_with_feedback(codec, gradient, residual, seed) {
                Ok(payload) => payloads.push(payload),
                // Refused alike everywhere, before a device is asked.
                Err(Error::FeedbackDiverges { .. }) => return Ok(0),
                Err(e) => return Err(format!("{label}, feedback: {e}")),
            }
        }
        differ("feedback payload", label, payloads[0].as_bytes(), payloads[1].as_bytes())?;
        let [a, b] = &residuals;
        differ("residual", label, bytemuck::cast_slice(a), bytemuck::cast_slice(b))?;
    }
    Ok(4)
}

/// The policy that refuses what is not finite: the error names the first such element, and the residual is as it was;
/// what is finite passes, with the CPU's bytes.
pub fn refuses_not_finite(device: &Device) -> Outcome {
    let mut compared = 0;
    for (n, bad) in [(1000usize, 0usize), (1000, 999), (20_000, 8500)] {
        let label = format!("QSGD 8 bit under NonFinite::Error, n = {n}");
        let codec = Qsgd::bits(8).non_finite(NonFinite::Error);
        let finite = cases::normal(n, 6);
        let mut residual = cases::normal(n, 7);
        let mut gradient = finite.clone();
        gradient[bad] = f32::NAN;
        gradient[n - 1] = f32::INFINITY;
        let before = residual.clone();
        match device.encode_with_feedback(&codec, &gradient, &mut residual, cases::seed()) {
            Err(Error::NotFinite { index }) if index == bad as u64 => {}
            other => return Err(format!("{label}: element {bad} is NaN, and the encode gave {other:?}")),
        }
        differ("residual after a refusal", &label, bytemuck::cast_slice(&residual), bytemuck::cast_slice(&before))?;
        let mut expected_residual = before;
        let expected = Device::cpu()
            .encode_with_feedback(&codec, &finite, &mut expected_residual, cases::seed())
            .map_err(failed(&label))?;
        let got = device.encode_with_feedback(&codec, &finite, &mut residual, cases::seed()).map_err(failed(&label))?;
        differ("payload", &label, got.as_bytes(), expected.as_bytes())?;
        differ("residual", &label, bytemuck::cast_slice(&residual), bytemuck::cast_slice(&expected_residual))?;
        compared += 4;
    }
    Ok(compared)
}

/// Every setting at a length of several buckets and a tail, on every edge case.
pub fn edges(device: &Device, case: &Case) -> Outcome {
    let mut compared = 0;
    for (name, fill) in FILLS {
        compared += against_cpu(device, case, &fill(1500), name)?;
    }
    Ok(compared)
}

/// Three of the edge cases for the setting of that number, each in another type: sixteen settings that follow one
/// another meet all of them in every type.
pub fn edges_in_turn(device: &Device, case: &Case, number: usize) -> Outcome {
    let mut compared = 0;
    for dtype in 0..3 {
        let (name, fill) = FILLS[(number + 5 * dtype) % FILLS.len()];
        compared += against_cpu_in(device, case, &fill(1500), name, dtype)?;
    }
    Ok(compared)
}

/// A setting at every so many-th boundary length, in one type each, which takes turns with the setting's number. What
/// is near the end of a CPU's task is more than a device's block, as shorter lengths are, so few settings have it.
pub fn lengths_in_turn(device: &Device, case: &Case, number: usize, every: usize) -> Outcome {
    let mut compared = 0;
    for (at, (n, reason)) in LENGTHS.into_iter().enumerate() {
        let is_long = n > 10_000;
        if (at + number).is_multiple_of(every) && (!is_long || number.is_multiple_of(5)) {
            compared += against_cpu_in(device, case, &cases::normal(n, 8), reason, (at + number / every) % 3)?;
        }
    }
    Ok(compared)
}

/// A setting at every boundary length.
pub fn lengths(device: &Device, case: &Case) -> Outcome {
    let mut compared = 0;
    for (n, reason) in LENGTHS {
        compared += against_cpu(device, case, &cases::normal(n, 8), reason)?;
    }
    Ok(compared)
}
