//! `docs/wire.md` is enough: a decoder and an encoder in Python, written from that page alone, agree with this library.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gradwire::{CodecId, Device, Dtype, Payload, Seed, TopK};
use gradwire_tests::cases::{self, Case};
use gradwire_tests::oracle::{self, Kind};
use gradwire_tests::vectors;
use serde_json::{Value, json};

fn script(args: &[&str]) -> Option<Output> {
    python("decode_payload.py", args)
}

fn python(script: &str, args: &[&str]) -> Option<Output> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(script);
    // One script imports the other, and is not to leave a compiled one in the sources.
    let output = Command::new("python3").arg("-B").arg(path).args(args).output();
    if let Err(error) = &output {
        eprintln!("not tested: python3 could not be started ({error})");
    }
    output.ok()
}

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wire");
    std::fs::create_dir_all(&folder).expect("the target folder can be written");
    folder.join(name)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the target folder's name is UTF-8")
}

/// A payload, what it is called, and the bytes of what it decodes to.
struct Sent {
    name: String,
    payload: Vec<u8>,
    decoded: Vec<u8>,
}

/// Has Python decode them all, in one process: starting it takes longer than the decoding.
fn expect_decoded(test: &str, all: &[Sent]) {
    let mut files = Vec::new();
    for (i, Sent { payload, .. }) in all.iter().enumerate() {
        let (sent, out) = (scratch(&format!("{test}_{i}.bin")), scratch(&format!("{test}_{i}.out")));
        std::fs::write(&sent, payload).expect("written");
        files.extend([sent, out]);
    }
    let args: Vec<&str> = files.iter().map(|path| text(path)).collect();
    let Some(output) = script(&args) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for (Sent { name, decoded, .. }, files) in all.iter().zip(files.chunks(2)) {
        assert!(std::fs::read(&files[1]).expect("written") == *decoded, "{name}: decoded");
    }
    files.iter().for_each(|file| std::fs::remove_file(file).expect("removed"));
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_bits().to_le_bytes()).collect()
}

#[test]
fn python_decodes_the_same_bits() {
    let kinds = cases::settings();
    let mut inputs: Vec<(usize, &str, Vec<f32>)> = Vec::new();
    for (name, fill) in cases::FILLS {
        inputs.push((700, name, fill(700)));
    }
    let mut all = Vec::new();
    for (i, case) in kinds.iter().enumerate() {
        // Every setting meets two inputs, every input some setting.
        for (n, name, x) in [&inputs[0], &inputs[i % inputs.len()]] {
            let payload = Device::cpu().encode(&case.codec(), x, cases::seed()).expect("valid");
            let decoded = bytes_of(&Device::cpu().decode(&payload).expect("valid"));
            all.push(Sent {
                name: format!("{}, {name}, n = {n}", case.label()),
                payload: payload.into_bytes(),
                decoded,
            });
        }
    }
    expect_decoded("same", &all);
}

#[test]
fn python_decodes_packed_codes_to_the_same_bits() {
    let both = |bits: u32| {
        let codec = gradwire::Qsgd::bits(bits).bucket(64);
        [(bits, codec.elias()), (bits, codec.delta()), (bits, codec.sparse())]
    };
    let mut all = Vec::new();
    for (bits, codec) in [2, 3, 4, 5, 6, 7, 8, 16].into_iter().flat_map(both) {
        let mut payload =
            Device::cpu().encode(&codec, &cases::normal(700, bits.into()), cases::seed()).expect("valid").into_bytes();
        // As an encoder writes them, and then words that none writes.
        for spoil in [None, Some(0u8), Some(0x11), Some(0xff)] {
            if let Some(byte) = spoil {
                let words_at = 32 + 4 * 700usize.div_ceil(64) + 4;
                payload[words_at..].fill(byte);
                oracle::elias::seal(&mut payload);
            }
            let decoded = Device::cpu().decode(&Payload::from_bytes(&payload).expect("valid")).expect("decodes");
            let name = format!("{bits} bits, {spoil:x?}");
            all.push(Sent { name, payload: payload.clone(), decoded: bytes_of(&decoded) });
        }
    }
    expect_decoded("packed", &all);
}

#[test]
fn python_packs_and_reads_the_golden_packed_payloads() {
    let Some((committed, results)) = encoded("elias.json") else { return };
    let vectors = committed["vectors"].as_array().expect("vectors");
    assert!(vectors.len() > 24 && vectors.len() == results.len());
    for (vector, result) in vectors.iter().zip(&results) {
        assert_eq!(result["packed"], vector["packed"], "{}", vector["name"]);
    }
    let all: Vec<Sent> = vectors::elias::committed()
        .expect("read")
        .iter()
        .map(|vector| Sent {
            name: vector.name.clone(),
            payload: vector.packed_bytes().expect("hexadecimal"),
            decoded: vector.decoded_words().expect("hexadecimal").iter().flat_map(|word| word.to_le_bytes()).collect(),
        })
        .collect();
    expect_decoded("elias", &all);
}

#[test]
fn python_refuses_a_damaged_payload() {
    let payload = Device::cpu().encode(&Case::new(Kind::QsgdMax, 4, Some(64)).codec(), &[1.0f32; 300], cases::seed());
    let mut bytes = payload.expect("valid").into_bytes();
    bytes[40] ^= 4;
    let (sent, out) = (scratch("damaged.bin"), scratch("damaged.out"));
    std::fs::write(&sent, &bytes).expect("written");
    let Some(output) = script(&[text(&sent), text(&out)]) else { return };
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn python_decodes_the_golden_vectors() {
    let vectors =
        CodecId::ALL.iter().map(|codec| vectors::committed(codec.file()).expect("read")).collect::<Vec<_>>().concat();
    let all: Vec<Sent> = vectors
        .iter()
        .map(|vector| Sent {
            name: format!("{}, {}", vector.codec, vector.name),
            payload: vector.payload_bytes().expect("hexadecimal"),
            decoded: bytes_of(&vector.decoded_floats().expect("hexadecimal")),
        })
        .collect();
    expect_decoded("golden", &all);
}

/// What the encoder in Python makes of a committed file of vectors; none if there is no Python.
fn encoded(file: &str) -> Option<(Value, Vec<Value>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors").join(file);
    let out = scratch(&format!("encoded_{file}"));
    let output = python("encode_payload.py", &[text(&path), text(&out)])?;
    assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
    let read = |path: &Path| std::fs::read_to_string(path).expect("read");
    let results: Vec<Value> = serde_json::from_str(&read(&out)).expect("a list");
    Some((serde_json::from_str(&read(&path)).expect("JSON"), results))
}

/// What it makes of other vectors.
fn made(vectors: &[Value]) -> Option<Vec<Value>> {
    let (file, out) = (scratch("made.json"), scratch("made.out"));
    std::fs::write(&file, json!({ "vectors": vectors }).to_string()).expect("written");
    let output = python("encode_payload.py", &[text(&file), text(&out)])?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_str(&std::fs::read_to_string(&out).expect("read")).expect("a list"))
}

#[test]
fn python_encodes_the_golden_vectors() {
    let codecs = CodecId::ALL.iter().map(|codec| codec.file());
    for file in codecs.chain(["topk"]).map(|name| format!("{name}.json")) {
        let Some((committed, results)) = encoded(&file) else { return };
        let vectors = committed["vectors"].as_array().expect("vectors");
        assert_eq!(vectors.len(), results.len(), "{file}");
        for (vector, result) in vectors.iter().zip(&results) {
            assert!(result["payload"].is_string(), "{file}: {result}");
            assert_eq!(
                vector.get("residual_after").is_some(),
                result.get("residual_after").is_some(),
                "{file}: {result}"
            );
            for (field, value) in result.as_object().expect("fields") {
                assert_eq!(value, &vector[field], "{file}, {}: {field}", vector["name"]);
            }
        }
    }
}

#[test]
fn python_draws_the_golden_draws_and_columns() {
    let Some((committed, results)) = encoded("philox.json") else { return };
    let columns = committed["columns"].as_array().expect("columns");
    let draws = committed["draws"].as_array().expect("draws");
    let (entries, dithers) = results.split_at(columns.len());
    assert_eq!(draws.len(), dithers.len());
    for (column, result) in columns.iter().zip(entries) {
        assert_eq!(column["entry"], result["entry"], "{column}");
    }
    for (draw, result) in draws.iter().zip(dithers) {
        // The page's least F is ahead of the vectors where the oracle has not got it.
        let levels = draw["levels"].as_u64().expect("levels") as u32;
        if oracle::fraction(levels) >= 17 {
            assert_eq!(draw["dither"], result["dither"], "{draw}");
        }
    }
}

#[test]
fn python_encodes_the_same_bytes() {
    // The page's least F is ahead of 16-bit codes where the oracle has not got it.
    let kinds = cases::settings().into_iter().filter(|case| oracle::fraction(case.levels) >= 17);
    let (mut vectors, mut expected) = (Vec::new(), Vec::new());
    for case in kinds {
        for (name, fill) in cases::FILLS {
            let x = fill(300);
            let label = format!("{}, {name}", case.label());
            let payload = Device::cpu().encode(&case.codec(), &x, cases::seed().worker(9)).expect("valid");
            expected.push(payload.as_bytes().iter().map(|b| format!("{b:02x}")).collect::<String>());
            let (codec, norm, rounding) = case.words();
            let (run, step, tensor) = cases::SEED;
            vectors.push(json!({
                "name": label, "codec": codec, "norm": norm, "rounding": rounding, "bits": case.bits,
                "levels": case.levels, "bucket": case.bucket, "contractive": case.contractive, "dtype": "f32",
                "seed": {
                    "run": format!("{run:x}"), "step": format!("{step:x}"), "tensor": format!("{tensor:x}"), "worker": "9"
                },
                "gradient": x.iter().map(|v| format!("{:08x}", v.to_bits())).collect::<Vec<_>>().join(" "),
            }));
        }
    }
    let Some(results) = made(&vectors) else { return };
    assert_eq!(results.len(), expected.len());
    for (result, expected) in results.iter().zip(expected) {
        assert!(result["payload"] == expected, "{}: the payload is another one", result["name"]);
    }
}

#[test]
fn python_merges_to_the_same_bytes() {
    let (device, n) = (Device::cpu(), 200);
    let words = |words: &mut dyn Iterator<Item = u32>| words.map(|w| format!("{w:08x}")).collect::<Vec<_>>().join(" ");
    let [x, mut y, before] = [1, 2, 3].map(|seed| cases::normal(n, seed));
    // What no sum changes, what cancels, and what is not finite.
    (y[7], y[8], y[9]) = (f32::NAN, f32::INFINITY, -x[9]);
    let sent = |x: &[f32]| device.encode_sparse(&TopK::count(60), x, Seed::new(1)).expect("valid");
    let (a, b) = (sent(&x), sent(&y));
    let settings = [
        (TopK::count(40), json!({ "k": 40 })),
        (TopK::count(190), json!({ "k": 190 })),
        (TopK::above(0.012), json!({ "keep": { "threshold": format!("{:08x}", 0.012f32.to_bits()) } })),
        (TopK::blocks(30, 7), json!({ "keep": { "blocks": [30, 7] } })),
        (TopK::blocks(30, 20).values(Dtype::Bf16), json!({ "keep": { "blocks": [30, 20] }, "values": "bf16" })),
        (TopK::fraction(0.07).values(Dtype::F16), json!({ "keep": { "part": "3fb1eb851eb851ec" }, "values": "f16" })),
    ];
    let (mut vectors, mut expected) = (Vec::new(), Vec::new());
    for (codec, mut vector) in settings {
        let mut residual = before.clone();
        let merged = device.merge_sparse(&codec, &a, &b, &mut residual, Seed::new(1)).expect("valid");
        let bytes: String = merged.as_bytes().iter().map(|b| format!("{b:02x}")).collect();
        expected.push((bytes, residual));
        let entries = [&a, &b].map(|payload| {
            let decoded = device.decode_sparse(payload).expect("valid");
            let mut values = payload.indices().iter().map(|i| decoded[*i as usize].to_bits());
            json!([words(&mut payload.indices().iter().copied()), words(&mut values)])
        });
        vector["name"] = json!(format!("{codec:?}"));
        vector["n"] = json!(n);
        vector["merge"] = json!(entries);
        vector["residual_before"] = json!(words(&mut before.iter().map(|v| v.to_bits())));
        if vector["values"].is_null() {
            vector["values"] = json!("f32");
        }
        vectors.push(vector);
    }
    let Some(results) = made(&vectors) else { return };
    assert_eq!(results.len(), expected.len());
    for (result, (payload, residual)) in results.iter().zip(expected) {
        assert!(result["payload"] == payload, "{}: the payload is another one", result["name"]);
        // No four neighbours are equal, so the list is of single words.
        assert_eq!(result["residual_after"], words(&mut residual.iter().map(|v| v.to_bits())), "{}", result["name"]);
    }
}
