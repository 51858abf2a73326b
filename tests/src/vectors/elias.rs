//! The golden vectors of packed payloads, and the check of a device against them.

use gradwire::{Device, Payload};
use serde::{Deserialize, Serialize};

use super::spec::bell;
use super::words::{bytes, read, write};
use crate::cases::{Case, Random, SEED};
use crate::conformance::{Outcome, differ};
use crate::oracle::packed::{pack, unpack};
use crate::oracle::wire::{self, Type, bits};
use crate::oracle::{self, Encoded, Kind};

/// The committed vectors.
pub const ELIAS: &str = include_str!("../../vectors/elias.json");

const COMMENT: &[&str] = &[
    "Golden vectors of Gradwire's packed payloads, wire format version 1: docs/wire.md, under Packed codes, is the page that they belong to. They never change; new ones may be added.",
    "name: what the vector is there for. n: elements. fixed: a payload of QSGD, of ternary codes or of integers with codes of fixed width. packed: the same payload with its codes packed. Both are the exact bytes in the order in which they are sent, two digits per byte, header and checksum included.",
    "unpacked: what becomes of packed with codes of fixed width, where that is not fixed: a level of zero loses its sign.",
    "decoded: what packed decodes to, as words with a space between. A word is the bits of one binary32 number as 8 hexadecimal digits, most significant digit first: 1.0 is 3f800000. `word*count` is that word count times.",
    "A vector is passed if packing fixed gives packed, unpacking packed gives unpacked, and decoding packed gives decoded, all of them bit for bit.",
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
    /// The payload with codes of fixed width.
    pub fixed: String,
    /// The payload with packed codes.
    pub packed: String,
    /// What unpacking gives, if it is not `fixed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unpacked: Option<String>,
    /// What the packed payload decodes to.
    pub decoded: String,
}

impl Vector {
    /// The packed payload's bytes.
    ///
    /// # Errors
    /// A text that says what is not hexadecimal.
    pub fn packed_bytes(&self) -> Result<Vec<u8>, String> {
        bytes(&self.packed).map_err(|e| format!("packed: {e}"))
    }

    /// The bits of what the packed payload decodes to.
    ///
    /// # Errors
    /// A text that says what is not hexadecimal, or of another length.
    pub fn decoded_words(&self) -> Result<Vec<u32>, String> {
        read(&self.decoded, 8, self.n).map_err(|e| format!("decoded: {e}"))
    }
}

/// The committed vectors.
///
/// # Errors
/// A text that says where the file is not as it should be.
pub fn committed() -> Result<Vec<Vector>, String> {
    let file: File = serde_json::from_str(ELIAS)
        .map_err(|e| format!("tests/vectors/elias.json: {e}; `cargo xtask vectors` writes it anew"))?;
    Ok(file.vectors)
}

/// Packing, unpacking and decoding give these vectors' bytes.
///
/// # Errors
/// A text that says which vector, and where what came out first differs.
pub fn check(device: &Device, vectors: &[Vector]) -> Outcome {
    for vector in vectors {
        let label = format!("golden vector of packed codes, \"{}\"", vector.name);
        check_one(device, vector, &label)
            .map_err(|e| if e.starts_with(&label) { e } else { format!("{label}: {e}") })?;
    }
    Ok(3 * vectors.len() as u64)
}

fn check_one(device: &Device, vector: &Vector, label: &str) -> Result<(), String> {
    let payload = |field: &str, text: &str| {
        let bytes = bytes(text).map_err(|e| format!("{field}: {e}"))?;
        Payload::from_vec(bytes).map_err(|e| format!("{field}: {e}"))
    };
    let (fixed, packed) = (payload("fixed", &vector.fixed)?, payload("packed", &vector.packed)?);
    let unpacked = vector.unpacked.as_deref().map_or(Ok(fixed.clone()), |text| payload("unpacked", text))?;
    let got = device.pack(&fixed, packed.header().entropy()).map_err(|e| e.to_string())?;
    differ("packed", label, got.as_bytes(), packed.as_bytes())?;
    let got = device.unpack(&packed).map_err(|e| e.to_string())?;
    differ("unpacked", label, got.as_bytes(), unpacked.as_bytes())?;
    let got = device.decode(&packed).map_err(|e| e.to_string())?;
    let expected = vector.decoded_words()?;
    differ("decoded", label, bytemuck::cast_slice(&got), bytemuck::cast_slice(&expected))
}

pub(super) fn file() -> File {
    let comment = COMMENT.iter().map(|line| (*line).to_owned()).collect();
    File { comment, vectors: vectors() }
}

fn vectors() -> Vec<Vector> {
    let mut all = Vec::new();
    let mut add = |name: String, case: Case, x: &[f32], change: &mut dyn FnMut(&mut Encoded)| {
        let setting = case.oracle(x.len(), SEED.0, SEED.1, wire::crc32(name.bytes()));
        let mut encoded = oracle::encode(&setting, x);
        change(&mut encoded);
        let fixed = wire::payload(&setting, Type::F32, case.contractive, &encoded);
        // A level of zero decodes to +0.
        let least = (1 << (case.bits - 1)) - 1;
        encoded.codes.iter_mut().filter(|code| **code & least == 0).for_each(|code| *code = 0);
        let decoded: Vec<u32> = oracle::decode(&setting, &encoded).iter().map(|value| bits(*value)).collect();
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        for (entropy, behind) in [(1, ""), (2, ", base 3"), (3, ", delta"), (4, ", places")] {
            // Codes in base 3 are of 2 bits, and delta codes and places of few bits tell no more than those of others.
            if entropy == 2 && case.bits != 2 || entropy > 2 && ![2, 5, 8, 16].contains(&case.bits) {
                continue;
            }
            let packed = pack(&fixed, entropy);
            let back = unpack(&packed);
            let unpacked = (back != fixed).then(|| hex(&back));
            all.push(Vector {
                name: format!("{name}{behind}"),
                n: x.len(),
                fixed: hex(&fixed),
                packed: hex(&packed),
                unpacked,
                decoded: write(&decoded, 8),
            });
        }
    };
    let keep = &mut |_: &mut Encoded| {};
    for bits in [2, 3, 4, 5, 6, 7, 8, 16] {
        let l2 = Case::new(Kind::QsgdL2, bits, Some(256));
        add(format!("{bits}-bit codes, L2, a unit and a part of one"), l2, &bell(300, 21), keep);
        let max = Case { contractive: true, ..Case::new(Kind::QsgdMax, bits, None) };
        add(format!("{bits}-bit codes, max, whole tensor, contractive"), max, &bell(40, 22), keep);
        let mut random = Random(bits.into());
        add(format!("{bits}-bit codes, each any that there is"), l2, &bell(200, 23), &mut |encoded| {
            encoded.codes.iter_mut().for_each(|code| *code = random.bits() as u32 & ((1 << bits) - 1));
        });
    }
    let ternary = Case::new(Kind::Ternary, 2, None);
    add("ternary codes, a unit and a part of one".into(), ternary, &bell(300, 24), keep);
    let runs: Vec<f32> = (0..3000).map(|i| if i % 997 < 500 { 0.0 } else { [1.0, -1.0, 0.0][i % 3] }).collect();
    add("ternary codes, three units and runs of zeros".into(), ternary, &runs, keep);
    for (bits, levels) in [(8, 127), (16, 32_767)] {
        let integers = Case { kind: Kind::FloatBounded, bits, levels, bucket: Some(256), contractive: false };
        let x: Vec<f32> = bell(300, 25).into_iter().map(|v| v * 0.03).collect();
        add(format!("integers of {bits} bits with a bound on the error, a unit and a part of one"), integers, &x, keep);
    }
    let five = Case { levels: 5, ..Case::new(Kind::QsgdMax, 4, Some(64)) };
    add("no elements".into(), five, &[], keep);
    add("one element".into(), five, &[-0.25], keep);
    add("zeros of both signs".into(), five, &[0.0, -0.0, 0.0, -0.0, -0.0], keep);
    add("the longest codes of all, and four entries of the table".into(), five, &vec![-1.0; 1000], keep);
    add("the longest codes of all widths".into(), Case::new(Kind::QsgdMax, 16, Some(256)), &[-1.0; 256], keep);
    all
}
