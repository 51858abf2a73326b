//! `cargo xtask bench --top-k`: selections on the CPU, beside the standard library's and numpy's, in one run.

use std::hint::black_box;
use std::time::Instant;

use gradwire::{Device, Error, Seed, TopK};
use gradwire_tests::cases;
use rayon::prelude::*;
use serde::Deserialize;

use super::size::grouped;
use super::source::Source;
use super::table::significant;
use super::timing;

/// The parts of a gradient that are kept.
const PARTS: [f64; 4] = [0.0001, 0.001, 0.01, 0.1];
/// Elements of the gradient, where nothing else is asked for.
const ELEMENTS: usize = 1 << 24;
/// Times that each thing is timed; the median is shown.
const REPEATS: usize = 9;

/// A row of numpy's script.
#[derive(Deserialize)]
struct PeerRow {
    peer: String,
    k: usize,
    seconds: f64,
}

/// Seconds of one kept part.
struct Timed {
    k: usize,
    encode: f64,
    feedback: f64,
    decode_add: f64,
    select_nth: f64,
    bits: f64,
}

fn seconds(mut work: impl FnMut() -> Result<(), Error>) -> Result<f64, String> {
    let mut times = Vec::with_capacity(REPEATS);
    for _ in 0..=REPEATS {
        let start = Instant::now();
        work().map_err(|e| e.to_string())?;
        times.push(start.elapsed().as_secs_f64());
    }
    // The first run touches fresh memory.
    Ok(timing::median(&mut times[1..]))
}

/// Measures and prints.
pub(super) fn run(source: Option<&Source>, size: Option<usize>, peers: bool) -> Result<(), String> {
    let n = size.unwrap_or(ELEMENTS);
    let x = source.map_or_else(|| cases::normal(n, 1), |source| source.repeated(n));
    let device = Device::cpu();
    println!("{device}: top-k of {} f32, {}", grouped(n), source.map_or("normal", |source| &source.label));
    // What no selection can do without: all of the gradient, read by all threads.
    let largest = |part: &[f32]| part.iter().fold(0, |top, v| v.to_bits().wrapping_mul(2).max(top));
    let read = seconds(|| {
        black_box(x.par_chunks(1 << 16).map(largest).max());
        Ok(())
    })?;
    println!("one read: {} ms, {} GB/s", significant(read * 1e3), significant(4e-9 * n as f64 / read));
    let mut timed = Vec::new();
    for part in PARTS {
        timed.push(time(&device, &x, part)?);
    }
    let theirs = if peers { numpy(n, &timed)? } else { Vec::new() };
    print(&timed, read, &theirs);
    Ok(())
}

fn time(device: &Device, x: &[f32], part: f64) -> Result<Timed, String> {
    let (codec, seed) = (TopK::fraction(part), Seed::new(1));
    let mut residual = vec![0.0; x.len()];
    let payload = device.encode_sparse(&codec, x, seed).map_err(|e| e.to_string())?;
    let k = payload.indices().len();
    let mut out = vec![0.0; x.len()];
    Ok(Timed {
        k,
        encode: seconds(|| device.encode_sparse(&codec, x, seed).map(|p| drop(black_box(p))))?,
        feedback: seconds(|| {
            device.encode_sparse_with_feedback(&codec, x, &mut residual, seed).map(|p| drop(black_box(p)))
        })?,
        decode_add: seconds(|| device.decode_sparse_add(&payload, 0.5, &mut out))?,
        select_nth: seconds(|| {
            black_box(select_nth(x, k));
            Ok(())
        })?,
        bits: payload.header().index_bytes() as f64 * 8.0 / k.max(1) as f64,
    })
}

/// What the standard library offers: the k first of (key, index), then in order of the index, with the values.
fn select_nth(x: &[f32], k: usize) -> Vec<(u32, f32)> {
    let falling = |v: &f32| u64::from(!(v.to_bits() & 0x7fff_ffff)) << 32;
    let mut keys: Vec<u64> = x.iter().zip(0u64..).map(|(v, i)| falling(v) | i).collect();
    if k < keys.len() {
        keys.select_nth_unstable(k);
    }
    let mut indices: Vec<u32> = keys[..k].iter().map(|key| *key as u32).collect();
    indices.sort_unstable();
    indices.into_iter().map(|i| (i, x[i as usize])).collect()
}

fn numpy(n: usize, timed: &[Timed]) -> Result<Vec<PeerRow>, String> {
    let counts: Vec<String> = timed.iter().map(|t| t.k.to_string()).collect();
    let json = crate::place::results().join("numpy_topk.json");
    super::report::make_folder(&json)?;
    let script = crate::place::root().join("benches/peers/numpy_topk.py");
    let status = std::process::Command::new("python3")
        .arg(script)
        .args(["--size", &n.to_string(), "--counts", &counts.join(","), "--json"])
        .arg(&json)
        .status()
        .map_err(|e| format!("python3 could not be started: {e}; install Python 3, or leave out --peers"))?;
    if !status.success() {
        return Err(format!("numpy was not timed ({status}); its words are above. Leave out --peers to go without"));
    }
    let text = std::fs::read_to_string(&json).map_err(|e| format!("{}: {e}", json.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", json.display()))
}

fn print(timed: &[Timed], read: f64, theirs: &[PeerRow]) {
    let peer = theirs.first().map_or("", |row| &row.peer);
    println!(
        "\n{:>10} {:>10} {:>8} {:>13} {:>13} {:>14} {:>8} {:>24}",
        "kept", "encode ms", "/ read", "feedback ms", "decode-add ms", "bits an index", "", "theirs ms (theirs / ours)"
    );
    for t in timed {
        println!(
            "{:>10} {:>10} {:>8.2} {:>13} {:>13} {:>14.2} {:>8} select_nth {} ({:.1})",
            grouped(t.k),
            significant(t.encode * 1e3),
            t.encode / read,
            significant(t.feedback * 1e3),
            significant(t.decode_add * 1e3),
            t.bits,
            "",
            significant(t.select_nth * 1e3),
            t.select_nth / t.encode
        );
        if let Some(row) = theirs.iter().find(|row| row.k == t.k) {
            println!(
                "{:>83} {peer} argpartition {} ({:.1})",
                "",
                significant(row.seconds * 1e3),
                row.seconds / t.encode
            );
        }
    }
}
