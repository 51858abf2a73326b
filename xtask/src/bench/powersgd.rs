//! `cargo xtask bench --powersgd`: a step of PowerSGD on the CPU, beside the same mathematics in numpy and torch, in one run.

use std::hint::black_box;
use std::time::Instant;

use gradwire::{Device, Error, Matrix, PowerSgd, Seed};
use gradwire_tests::cases;
use rayon::prelude::*;
use serde::Deserialize;

use super::table::significant;
use super::timing;

/// Rows, columns, rank.
pub(super) const CASES: [(u64, u64, u32); 6] =
    [(4096, 4096, 1), (4096, 4096, 4), (4096, 4096, 8), (4096, 4096, 32), (1024, 1024, 4), (11008, 4096, 4)];
/// Times that each thing is timed; the median is shown.
const REPEATS: usize = 9;

/// A row of the peers' script.
#[derive(Deserialize)]
struct PeerRow {
    peer: String,
    variant: String,
    case: String,
    seconds: f64,
    /// Of the operations one after another, as a hook is usually written.
    plain_seconds: f64,
}

/// Seconds of the three calls of a step, and of the step.
struct Timed {
    case: String,
    parts: [f64; 3],
    step: f64,
    sent: usize,
    bytes: usize,
}

/// Measures and prints.
pub(super) fn run(peers: bool) -> Result<(), String> {
    let device = Device::cpu();
    println!("{device}: a step of PowerSGD with error feedback, f32, one worker");
    let mut timed = Vec::new();
    for (n, m, rank) in CASES {
        timed.push(time(&device, n, m, rank).map_err(|e| e.to_string())?);
    }
    let copy = copy_rate();
    let mut theirs = Vec::new();
    if peers {
        for framework in ["numpy", "torch"] {
            theirs.extend(time_peer(framework, &timed)?);
        }
    }
    print(&timed, &theirs, copy);
    Ok(())
}

/// What the memory gives, in bytes read and written each second: a copy by all threads, the target's lines fetched or not as the
/// processor has it.
fn copy_rate() -> f64 {
    let from = vec![1.0f32; 1 << 24];
    let mut to = vec![0.0f32; 1 << 24];
    let mut times: Vec<f64> = (0..=REPEATS)
        .map(|_| {
            let start = Instant::now();
            let pairs = to.par_chunks_mut(1 << 16).zip(from.par_chunks(1 << 16));
            pairs.for_each(|(to, from)| to.copy_from_slice(from));
            black_box(&to);
            start.elapsed().as_secs_f64()
        })
        .collect();
    let seconds = timing::median(&mut times[1..]);
    let rate = 8.0 * from.len() as f64 / seconds;
    println!("copy: {} GB/s, read and written", significant(1e-9 * rate));
    rate
}

fn time(device: &Device, n: u64, m: u64, rank: u32) -> Result<Timed, Error> {
    let codec = PowerSgd::rank(rank);
    let mut state = codec.state(&[Matrix::new(n, m)], Seed::new(1))?;
    let gradient = cases::normal((n * m) as usize, 1);
    let mut output = vec![0.0; gradient.len()];
    let mut p = vec![0.0; state.factor_len()];
    let mut q = vec![0.0; m as usize * rank as usize];
    let mut samples = [const { Vec::new() }; 4];
    // The first steps touch fresh memory.
    for warm in (0..REPEATS + 2).map(|i| i >= 2) {
        let clock = Instant::now();
        device.begin_low_rank(&mut state, &gradient, &mut p)?;
        let begun = clock.elapsed().as_secs_f64();
        device.advance_low_rank(&mut state, &p, &mut q)?;
        let advanced = clock.elapsed().as_secs_f64();
        device.finish_low_rank(&mut state, &q, &mut output)?;
        let done = clock.elapsed().as_secs_f64();
        if warm {
            samples.iter_mut().zip([begun, advanced - begun, done - advanced, done]).for_each(|(s, v)| s.push(v));
        }
    }
    let [begin, advance, finish, step] = samples.map(|mut s| timing::median(&mut s));
    Ok(Timed {
        case: format!("{n}x{m}x{rank}"),
        parts: [begin, advance, finish],
        step,
        sent: state.step_bytes(),
        bytes: 4 * gradient.len(),
    })
}

fn time_peer(framework: &str, timed: &[Timed]) -> Result<Vec<PeerRow>, String> {
    let cases: Vec<&str> = timed.iter().map(|t| t.case.as_str()).collect();
    let json = crate::place::results().join(format!("powersgd_{framework}.json"));
    super::report::make_folder(&json)?;
    let status = std::process::Command::new("python3")
        .arg(crate::place::root().join("benches/peers/powersgd.py"))
        .args(["--framework", framework, "--cases", &cases.join(","), "--json"])
        .arg(&json)
        .status()
        .map_err(|e| format!("python3 could not be started: {e}; install Python 3, or leave out --peers"))?;
    if !status.success() {
        return Err(format!(
            "{framework} was not timed ({status}); its words are above. Leave out --peers to go without"
        ));
    }
    let text = std::fs::read_to_string(&json).map_err(|e| format!("{}: {e}", json.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", json.display()))
}

/// Bytes that a step moves at the least, for each element: the gradient and the sums read, the sums written, read again for the
/// second product, and the output written.
const LEAST_BYTES: f64 = 20.0;

fn print(timed: &[Timed], theirs: &[PeerRow], copy: f64) {
    println!(
        "\n{:>15} {:>9} {:>9} {:>9} {:>9} {:>9} {:>15} {:>8}  theirs (theirs / ours; at most, at the least that can be)",
        "n x m x rank", "P ms", "Q ms", "output ms", "step ms", "least ms", "gradient GB/s", "smaller"
    );
    for t in timed {
        let [begin, advance, finish] = t.parts.map(|s| significant(s * 1e3));
        let floor = LEAST_BYTES / 4.0 * t.bytes as f64 / copy;
        let rows = theirs.iter().filter(|row| row.case == t.case);
        let peers: Vec<String> = rows
            .map(|row| {
                let PeerRow { peer, variant, seconds, plain_seconds, .. } = row;
                let [plain, fastest] = [plain_seconds, seconds].map(|s| significant(s * 1e3));
                let [over, least] = [plain_seconds, seconds].map(|s| format!("{:.1}; {:.1}", s / t.step, s / floor));
                format!("\n{:>15} {peer}: plain {plain} ms ({over}), fastest {fastest} ms ({least}; {variant})", "")
            })
            .collect();
        println!(
            "{:>15} {begin:>9} {advance:>9} {finish:>9} {:>9} {:>9} {:>15} {:>8}  {}",
            t.case,
            significant(t.step * 1e3),
            significant(floor * 1e3),
            significant(1e-9 * t.bytes as f64 / t.step),
            significant(t.bytes as f64 / t.sent as f64),
            peers.concat()
        );
    }
}
