//! The files, as the oracle computes them.

use serde::Serialize;

use super::spec::{Input, Spec};
use super::words::write;
use super::{Add, File, SeedWords, Vector};
use crate::cases::SEED;
use crate::formula::{CODECS, Tests};
use crate::oracle::wire::{self, Type, bits};
use crate::oracle::{self, Kind, Setting};

const COMMON: &[&str] = &[
    "Golden vectors of Gradwire's wire format, version 1: docs/wire.md is the page that they belong to. They never change; new ones may be added.",
    "name: what the vector is there for. codec, bits (of a code), levels (L), norm, rounding: the setting. bucket: elements of a bucket, null for the whole tensor.",
    "contractive: whether bit 1 of the flags is set and the scalars are multiplied by beta, whose binary32 bits `beta` gives (3f800000 is 1).",
    "seed: 64-bit run and step, 32-bit tensor, each a hexadecimal number, most significant digit first. Philox's key is (run mod 2^32, run div 2^32), its counter (call, tensor, step mod 2^32, step div 2^32).",
    "A seed with a worker, 32 bits, has the key of (run + worker * d1342543de82ef95) modulo 2^64 in place of that of run; without one it is worker 0's.",
    "n: elements. dtype: type of the gradient: f32, f16 (IEEE binary16) or bf16. An f16 or bf16 element is widened to binary32, which is exact, before anything else.",
    "Numbers are lists of words with a space between. A word is the bits of one number as a hexadecimal number, most significant digit first, not bytes in memory: 1.0 is 3f800000. `word*count` is that word count times. Words have 8 digits (binary32), but those of an f16 or bf16 gradient, which have 4.",
    "gradient: what is encoded. payload: the exact bytes in the order in which they are sent, two digits a byte, header and checksum included. decoded: what the payload decodes to.",
    "residual_before, residual_after: present for error feedback, where gradient + residual_before is encoded and residual_after is left.",
    "decode_add, where present: result = start + weight * decoded, the product rounded, then the sum; a NaN result is 7fc00000.",
    "A vector is passed if encoding gives payload and residual_after, and decoding the payload gives decoded and decode_add's result, all of them bit for bit.",
];

const PHILOX: &[&str] = &[
    "The draws of Gradwire's wire format, version 1: docs/wire.md, under Draws, is the page that they belong to.",
    "All but element, bucket, word_index and levels are hexadecimal numbers, most significant digit first; the others are decimal.",
    "Philox4x32 with 7 rounds. One round takes the counter (c0, c1, c2, c3) and the key (k0, k1) to (hi(cd9e8d57 c2) xor c1 xor k0, lo(cd9e8d57 c2), hi(d2511f53 c0) xor c3 xor k1, lo(d2511f53 c0)), where hi and lo are the halves of a 64-bit product; after each round 9e3779b9 is added to k0 and bb67ae85 to k1, modulo 2^32.",
    "answers: key, counter and output of the generator alone, as published with Random123.",
    "draws: where the draw of one element comes from. run, step, tensor: the seed. element: its index in the tensor. bucket: elements of a bucket, null for the whole tensor. key, counter and output: of the generator. word_index: which word of the output, 0 to 3. d: the draw, 16 bits of that word for a bucket, all of it for the whole tensor. dither: of the fixed point of `levels`, whose F is 31 - (number of bits of levels), and 17 at least.",
    "columns: entries of seeded columns of PowerSGD's factors. column: its number in the factor. row: of the factor. entry: binary32 bits. tensor and step are of the draw, the matrix's number and the finished steps added already.",
];

/// The files by their names, with their text.
pub fn files() -> Vec<(String, String)> {
    let of_codec = |tests: &&Tests| (format!("{}.json", tests.codec.file()), text(&file((tests.vectors)())));
    let mut files: Vec<(String, String)> = CODECS.iter().map(of_codec).collect();
    files.push(("philox.json".to_owned(), text(&philox())));
    files.push(("elias.json".to_owned(), text(&super::elias::file())));
    files.push(("topk.json".to_owned(), text(&super::topk::file())));
    files.push(("powersgd.json".to_owned(), text(&super::powersgd::file())));
    files
}

fn text(file: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(file).expect("plain data always serialises");
    text.push('\n');
    text
}

fn comment(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

fn file(specs: Vec<Spec>) -> File {
    let vectors = specs.iter().enumerate().map(|(i, spec)| vector(spec, i == 0)).collect();
    File { comment: comment(COMMON), vectors }
}

fn floats(x: &[f32]) -> String {
    write(&x.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), 8)
}

fn results(x: &[f32]) -> String {
    write(&x.iter().map(|v| bits(*v)).collect::<Vec<_>>(), 8)
}

fn halves(x: impl Iterator<Item = u16>) -> String {
    write(&x.map(u32::from).collect::<Vec<_>>(), 4)
}

fn vector(spec: &Spec, first: bool) -> Vector {
    let case = &spec.case;
    let (x, of, dtype, gradient) = match &spec.input {
        Input::F32(x) => (x.clone(), Type::F32, "f32", floats(x)),
        Input::F16(x) => (oracle::widen_f16(x), Type::F16, "f16", halves(x.iter().map(|h| h.to_bits()))),
        Input::Bf16(x) => (oracle::widen_bf16(x), Type::Bf16, "bf16", halves(x.iter().map(|h| h.to_bits()))),
    };
    // Each vector has draws of its own, which stay as they are when others are added; the first has the seed that is
    // all zero.
    let (run, step, tensor) = if first { (0, 0, 0) } else { (SEED.0, SEED.1, wire::crc32(spec.name.bytes())) };
    let s = case.oracle(x.len(), oracle::run_of_worker(run, spec.worker), step, tensor);
    let (encoded, after) = match &spec.residual {
        None => (oracle::encode(&s, &x), None),
        Some(before) => {
            let (encoded, after) = wire::feedback(&s, &x, before);
            (encoded, Some(floats(&after)))
        }
    };
    let payload = wire::payload(&s, of, case.contractive, &encoded);
    let (codec, norm, rounding) = case.words();
    Vector {
        name: spec.name.clone(),
        codec: codec.to_owned(),
        bits: case.bits,
        levels: case.levels,
        bucket: case.bucket,
        norm: norm.map(str::to_owned),
        rounding: rounding.map(str::to_owned),
        contractive: case.contractive,
        beta: floats(&[s.beta]),
        seed: SeedWords::new((run, step, tensor), spec.worker),
        n: x.len(),
        dtype: dtype.to_owned(),
        gradient,
        residual_before: spec.residual.as_deref().map(floats),
        payload: payload.iter().map(|b| format!("{b:02x}")).collect(),
        residual_after: after,
        decoded: results(&oracle::decode(&s, &encoded)),
        decode_add: spec.add.as_ref().map(|(weight, start)| Add {
            weight: floats(&[*weight]),
            start: floats(start),
            result: results(&wire::decode_add(&s, &encoded, *weight, start)),
        }),
    }
}

#[derive(Serialize)]
struct Philox {
    comment: Vec<String>,
    answers: Vec<Answer>,
    draws: Vec<Draw>,
    columns: Vec<Column>,
}

#[derive(Serialize)]
struct Answer {
    key: String,
    counter: String,
    output: String,
}

#[derive(Serialize)]
struct Draw {
    #[serde(flatten)]
    seed: SeedWords,
    element: usize,
    bucket: Option<usize>,
    #[serde(flatten)]
    answer: Answer,
    word_index: usize,
    d: String,
    levels: u32,
    dither: String,
}

#[derive(Serialize)]
struct Column {
    #[serde(flatten)]
    seed: SeedWords,
    column: u32,
    row: u32,
    #[serde(flatten)]
    answer: Answer,
    entry: String,
}

fn answer(key: (u32, u32), counter: [u32; 4]) -> Answer {
    // Equal words stay words here, so that a reader of this file alone needs no other notation.
    let spaced = |words: &[u32]| words.iter().map(|w| format!("{w:08x}")).collect::<Vec<_>>().join(" ");
    let output = oracle::philox(counter, key);
    Answer { key: spaced(&[key.0, key.1]), counter: spaced(&counter), output: spaced(&output) }
}

fn philox() -> Philox {
    let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
    let answers = vec![answer((0, 0), [0; 4]), answer((!0, !0), [!0; 4]), answer((0xa409_3822, 0x299f_31d0), pi)];
    let mut draws = Vec::new();
    for (bucket, levels) in [(Some(512), 7), (Some(8192), 32767), (None, 255)] {
        for element in [0, 31, 32, 96, 128, 255, 256, 65_537] {
            let kind = if levels == 255 { Kind::Uniform } else { Kind::QsgdMax };
            let s = Setting { kind, bits: 16, levels, bucket, beta: 1.0, seed: SEED };
            let draw = oracle::draw(&s, element);
            let digits = if bucket.is_some() { 4 } else { 8 };
            draws.push(Draw {
                seed: SeedWords::new(SEED, 0),
                element,
                bucket,
                answer: answer(draw.key, draw.counter),
                word_index: draw.word,
                d: format!("{:0digits$x}", draw.d),
                levels,
                dither: format!("{:08x}", oracle::dither(&s, element, oracle::fraction(levels))),
            });
        }
    }
    let mut columns = Vec::new();
    for column in [0, 1, 7, 31] {
        for row in [0, 1, 2, 4095] {
            let (key, counter, entry) = oracle::seeded(SEED, column, row);
            let (seed, answer) = (SeedWords::new(SEED, 0), answer(key, counter));
            columns.push(Column { seed, column, row, answer, entry: floats(&[entry]) });
        }
    }
    Philox { comment: comment(PHILOX), answers, draws, columns }
}
