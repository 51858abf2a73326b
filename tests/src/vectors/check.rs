//! Does a device give the committed bytes?

use gradwire::{CodecId, Device, Gradient, Payload};
use half::{bf16, f16};

use super::words::{bytes, number, read};
use super::{Vector, committed, elias};
use crate::cases::Case;
use crate::conformance::{Outcome, differ};

/// Encode, feedback, decode and decode-add of a codec give the committed bytes; of QSGD packing, unpacking and decoding
/// of packed codes too.
pub fn check(device: &Device, codec: &str) -> Outcome {
    let packed = if codec == CodecId::Qsgd.file() { elias::check(device, &elias::committed()?)? } else { 0 };
    Ok(check_all(device, &committed(codec)?)? + packed)
}

/// Encode, feedback, decode and decode-add give these vectors' bytes.
pub fn check_all(device: &Device, vectors: &[Vector]) -> Outcome {
    let mut compared = 0;
    for vector in vectors {
        let label = format!("golden vector of {}, \"{}\"", vector.codec, vector.name);
        compared += check_one(device, vector, &label).map_err(|e| {
            // What differs names the vector itself; what cannot be read does not.
            if e.starts_with(&label) { e } else { format!("{label}: {e}") }
        })?;
    }
    Ok(compared)
}

impl Vector {
    /// The setting, as the product and the oracle take it.
    ///
    /// # Errors
    /// A text that says which field has no meaning.
    pub fn case(&self) -> Result<Case, String> {
        let kind = Case::kind_of(&self.codec, self.norm.as_deref(), self.rounding.as_deref())?;
        let (bits, levels, bucket, contractive) = (self.bits, self.levels, self.bucket, self.contractive);
        Ok(Case { kind, bits, levels, bucket, contractive })
    }

    /// The payload's bytes.
    ///
    /// # Errors
    /// A text that says what is not hexadecimal.
    pub fn payload_bytes(&self) -> Result<Vec<u8>, String> {
        bytes(&self.payload).map_err(|e| format!("payload: {e}"))
    }

    /// `n` words of a field.
    fn floats(&self, field: &str, text: &str) -> Result<Vec<f32>, String> {
        let words = read(text, 8, self.n).map_err(|e| format!("{field}: {e}"))?;
        Ok(words.into_iter().map(f32::from_bits).collect())
    }

    /// What the payload decodes to.
    ///
    /// # Errors
    /// A text that says what is not hexadecimal, or of another length.
    pub fn decoded_floats(&self) -> Result<Vec<f32>, String> {
        self.floats("decoded", &self.decoded)
    }
}

fn check_one(device: &Device, v: &Vector, label: &str) -> Outcome {
    let codec = v.case()?.codec();
    let seed = v.seed.seed()?;
    let halves = || read(&v.gradient, 4, v.n).map_err(|e| format!("gradient: {e}"));
    let (mut f32s, mut f16s, mut bf16s) = (Vec::new(), Vec::new(), Vec::new());
    let gradient = match v.dtype.as_str() {
        "f32" => {
            f32s.extend(v.floats("gradient", &v.gradient)?);
            Gradient::F32(&f32s)
        }
        "f16" => {
            f16s.extend(halves()?.into_iter().map(|w| f16::from_bits(w as u16)));
            Gradient::F16(&f16s)
        }
        "bf16" => {
            bf16s.extend(halves()?.into_iter().map(|w| bf16::from_bits(w as u16)));
            Gradient::Bf16(&bf16s)
        }
        other => return Err(format!("dtype `{other}` is none of f32, f16 and bf16")),
    };
    let mut compared = 2;
    let payload = match (&v.residual_before, &v.residual_after) {
        (None, None) => device.encode(&codec, gradient, seed).map_err(|e| e.to_string())?,
        (Some(before), Some(after)) => {
            let mut residual = v.floats("residual_before", before)?;
            let payload =
                device.encode_with_feedback(&codec, gradient, &mut residual, seed).map_err(|e| e.to_string())?;
            let after = v.floats("residual_after", after)?;
            differ("residual", label, bytemuck::cast_slice(&residual), bytemuck::cast_slice(&after))?;
            compared += 1;
            payload
        }
        _ => return Err("it has one of residual_before and residual_after; feedback needs both".to_owned()),
    };
    let expected = v.payload_bytes()?;
    differ("payload", label, payload.as_bytes(), &expected)?;
    // Decoding starts from the committed bytes, as a receiver's does.
    let payload = Payload::from_bytes(&expected).map_err(|e| e.to_string())?;
    let decoded = device.decode(&payload).map_err(|e| e.to_string())?;
    let expected = v.decoded_floats()?;
    differ("decoded", label, bytemuck::cast_slice(&decoded), bytemuck::cast_slice(&expected))?;
    if let Some(add) = &v.decode_add {
        let weight = f32::from_bits(number(&add.weight, 8)? as u32);
        let mut sum = v.floats("start", &add.start)?;
        device.decode_add(&payload, weight, &mut sum).map_err(|e| e.to_string())?;
        let expected = v.floats("result", &add.result)?;
        differ("decode-add", label, bytemuck::cast_slice(&sum), bytemuck::cast_slice(&expected))?;
        compared += 1;
    }
    Ok(compared)
}
