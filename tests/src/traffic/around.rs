//! What is done before a codec, after it, or without one: rotations, packed codes, votes, and random elements.

use gradwire::{Dct, Device, Entropy, Error, Qsgd, RandomK, Rotation, Sign, Ternary};

use super::{Counted, N, Run, SUMMED};
use crate::cases::{self, Quantizer};

/// The part that a selection of random elements keeps.
const PART: f64 = 0.1;

/// The operations.
pub(super) fn all(x: &[f32]) -> Result<Vec<Counted<'_>>, Error> {
    let mut all = vec![
        rotate("rotation / 1024", Rotation::block(1024), x),
        rotate("rotation / 8192", Rotation::block(8192), x),
        Counted {
            codec: "cosines / 64 x 64",
            op: "transform f32",
            floor: Box::new(|_| Some(8.0)),
            run: Box::new(|device| device.dct(Dct::default(), x).map(drop)),
        },
    ];
    all.extend(random(x)?);
    all.push(vote(x)?);
    let (four, sixteen) = (Qsgd::bits(4).bucket(512), Qsgd::bits(16).bucket(8192));
    for (label, codec, entropy) in [
        ("QSGD 4 bit / 512, Elias gamma", Quantizer::Qsgd(four), Entropy::Elias),
        ("QSGD 16 bit / 8192, Elias delta", Quantizer::Qsgd(sixteen), Entropy::Delta),
        ("ternary / 512, base 3", Quantizer::Ternary(Ternary::new()), Entropy::Base3),
        ("QSGD 2 bit / whole, L2, places", Quantizer::Qsgd(Qsgd::bits(2).whole_tensor().l2()), Entropy::Sparse),
    ] {
        all.extend(packed(label, codec, entropy, x)?);
    }
    Ok(all)
}

fn rotate<'a>(codec: &'static str, rotation: Rotation, x: &'a [f32]) -> Counted<'a> {
    Counted {
        codec,
        op: "rotate f32",
        floor: Box::new(|kernel| (kernel == "rotate_blocks").then_some(8.0)),
        run: Box::new(move |device| device.rotate(rotation, x, cases::seed()).map(drop)),
    }
}

/// Random elements. Each lies in a sector of its own, of which it is an eighth.
fn random(x: &[f32]) -> Result<[Counted<'_>; 2], Error> {
    let codec = RandomK::fraction(PART);
    let values: Vec<f32> = x[..codec.entries(N as u64)? as usize].to_vec();
    Ok([
        Counted {
            codec: "random-k 10 %",
            op: "encode f32",
            floor: Box::new(|kernel| (kernel == "random_gather").then_some(8.0 * PART)),
            run: Box::new(move |device| device.encode_random(&codec, x, cases::seed()).map(drop)),
        },
        Counted {
            codec: "random-k 10 %",
            op: "decode-add",
            floor: Box::new(|kernel| (kernel == "random_scatter").then_some(12.0 * PART)),
            run: Box::new(move |device| {
                let mut sums = x.to_vec();
                device.decode_random_add(&codec, &values, 0.5, &mut sums, cases::seed())
            }),
        },
    ])
}

/// The majority of signs, which reads them and writes f32.
fn vote(x: &[f32]) -> Result<Counted<'_>, Error> {
    let payload = Device::cpu().encode(&Sign::unit(), x, cases::seed())?;
    let payloads = vec![payload; SUMMED];
    Ok(Counted {
        codec: "SignSGD / 8192",
        op: "vote of 8",
        floor: Box::new(|kernel| (kernel == "sign_vote").then_some(SUMMED as f64 / 8.0 + 4.0)),
        run: Box::new(move |device| device.vote(&payloads, &mut vec![0.0; x.len()])),
    })
}

/// Packing a payload's codes, and unpacking them.
fn packed<'a>(label: &'static str, codec: Quantizer, entropy: Entropy, x: &[f32]) -> Result<[Counted<'a>; 2], Error> {
    let cpu = Device::cpu();
    let fixed = cpu.encode(&codec, x, cases::seed())?;
    let packed = cpu.pack(&fixed, entropy)?;
    let [codes, both] = [fixed.header().code_bytes(), fixed.header().code_bytes() + packed.header().code_bytes()];
    let floor = move |kernel: &str| {
        let bytes = match kernel.rsplit('_').next()? {
            "measure" => codes,
            // Of places a word per unit, and its words.
            "sums" | "offsets" if entropy == Entropy::Sparse => 8 * N.div_ceil(16_384) as u64,
            // A byte per unit, of 1280 codes in base 3.
            "sums" => N.div_ceil(if entropy == Entropy::Base3 { 1280 } else { 256 }) as u64,
            // The sum of each block, read and written.
            "offsets" => 8 * N.div_ceil(65_536) as u64,
            _ => both,
        };
        Some(bytes as f64 / N as f64)
    };
    let (pack, unpack): (Run<'a>, Run<'a>) = (
        Box::new(move |device| device.pack(&fixed, entropy).map(drop)),
        Box::new(move |device| device.unpack(&packed).map(drop)),
    );
    Ok([
        Counted { codec: label, op: "pack", floor: Box::new(floor), run: pack },
        Counted { codec: label, op: "unpack", floor: Box::new(floor), run: unpack },
    ])
}
