//! What is left of a gradient for the bytes that are sent: PowerSGD at each rank, beside top-k and QSGD.

use gradwire::{Device, Error, IndexFormat, Matrix, PowerSgd, Seed, TopK};
use gradwire_tests::cases::Case;
use gradwire_tests::low_rank::alone;
use gradwire_tests::oracle::Kind;
use indicatif::ProgressBar;

use super::quality::{self, Sums};
use super::schema::Traded;
use super::source::Source;
use super::table::{error, ratio};
use crate::jobs::list::{Entry, Setting};

/// The largest rank.
const RANKS: u32 = 32;
/// QSGD's bits.
const BITS: std::ops::RangeInclusive<u32> = 2..=8;
/// Steps with the same gradient, after which the factors are warm.
const STEPS: u32 = 10;
/// Ranks that the table and the chart name.
pub(super) const NAMED: [u64; 6] = [1, 2, 4, 8, 16, 32];

/// The series, in the order of their colours.
pub(super) const SERIES: [&str; 4] = ["PowerSGD, 10th step", "PowerSGD, first step", "top-k", "QSGD max"];

/// Measures all series on each captured step. None if no tensor of the source is a matrix that would be compressed.
pub(super) fn measure(source: &Source, bar: &ProgressBar) -> Result<Vec<Traded>, String> {
    let mut rows = Vec::new();
    let steps = source.steps();
    bar.set_length(steps.len() as u64 * (RANKS as usize + BITS.count()) as u64);
    for step in steps {
        let values = step.repeated(step.elements());
        let tensors = step.shapes();
        let row = |series: usize, setting, bytes: u64, sums: Sums| Traded {
            gradient: step.label.clone(),
            codec: SERIES[series].to_owned(),
            setting,
            bytes,
            ratio: 4.0 * values.len() as f64 / bytes as f64,
            energy: sums.cosine().powi(2),
            relative_error: sums.relative_error(),
        };
        for rank in 1..=RANKS {
            bar.set_message(format!("{}, PowerSGD of rank {rank}", step.label));
            bar.inc(1);
            let of = powersgd(&values, &tensors, rank).map_err(|e| format!("PowerSGD of rank {rank}: {e}"))?;
            let Some((bytes, [first, warm])) = of else { continue };
            rows.push(row(0, rank.into(), bytes, warm));
            rows.push(row(1, rank.into(), bytes, first));
            let k = affordable(values.len() as u64, bytes);
            let (bytes, kept) = top_k(&values, k).map_err(|e| format!("top-{k}: {e}"))?;
            rows.push(row(2, k, bytes, kept));
        }
        for bits in BITS {
            bar.set_message(format!("{}, QSGD of {bits} bits", step.label));
            bar.inc(1);
            let case = Case::new(Kind::QsgdMax, bits, Some(if bits == 2 { 128 } else { 512 }));
            let entry = Entry { setting: Setting::Buckets(case), reported: false };
            let of = quality::of_tensors(&Device::cpu(), &entry, &step)?;
            rows.push(row(3, bits.into(), of.payload, of.sums));
        }
    }
    // Beside nothing there is nothing to compare.
    if rows.iter().all(|row| row.codec == SERIES[3]) {
        rows.clear();
    }
    Ok(rows)
}

/// Bytes sent, and what the first and the last step give. None if nothing is compressed.
fn powersgd(values: &[f32], tensors: &[Matrix], rank: u32) -> Result<Option<(u64, [Sums; 2])>, Error> {
    let mut state = PowerSgd::rank(rank).without_feedback().state(tensors, Seed::new(1))?;
    if (0..tensors.len()).all(|tensor| state.is_compressed(tensor) == Some(false)) {
        return Ok(None);
    }
    let mut output = vec![0.0; values.len()];
    let mut step =
        || Device::cpu().low_rank_step(&mut state, values, &mut output, alone).map(|()| Sums::of(values, &output));
    let first = step()?;
    let last = (1..STEPS).try_fold(first, |_, _| step())?;
    Ok(Some((state.step_bytes() as u64, [first, last])))
}

/// The most entries whose payload has no more than these bytes.
fn affordable(n: u64, bytes: u64) -> u64 {
    let size = |k: u64| 32 + IndexFormat::choose(n, k).bytes(n, k) + 4 * k;
    let (mut fits, mut beyond) = (0, n + 1);
    while beyond - fits > 1 {
        let k = fits.midpoint(beyond);
        *(if size(k) <= bytes { &mut fits } else { &mut beyond }) = k;
    }
    fits
}

fn top_k(values: &[f32], k: u64) -> Result<(u64, Sums), Error> {
    let device = Device::cpu();
    let payload = device.encode_sparse(&TopK::count(k), values, Seed::new(1))?;
    let decoded = device.decode_sparse(&payload)?;
    Ok((payload.as_bytes().len() as u64, Sums::of(values, &decoded)))
}

/// A table of the named ranks, beside top-k at the same bytes and QSGD's nearest setting that is not larger.
pub(super) fn table(rows: &[Traded]) -> String {
    let mut text = format!("{:32}   energy captured, relative error\n", "");
    text += &format!(
        "{:>8} {:>4} {:>9} {:>8}   {:<21}  {:<21}  {:<21}  {}\n",
        "gradient", "rank", "bytes", "ratio", SERIES[0], SERIES[1], SERIES[2], "QSGD max, of no more bytes"
    );
    let both = |row: Option<&Traded>| {
        row.map_or_else(|| "-".to_owned(), |r| format!("{:5.1} %, {}", 100.0 * r.energy, error(r.relative_error)))
    };
    for (at, row) in rows.iter().enumerate().filter(|(_, r)| r.codec == SERIES[0] && NAMED.contains(&r.setting)) {
        let mut levels = rows.iter().filter(|r| r.gradient == row.gradient && r.codec == SERIES[3]);
        let qsgd = levels.rfind(|r| r.bytes <= row.bytes);
        let named = qsgd.map_or_else(|| "-".to_owned(), |r| format!("{}, {} bits", both(Some(r)), r.setting));
        text += &format!(
            "{:>8} {:>4} {:>9} {:>7}×   {:<21}  {:<21}  {:<21}  {named}\n",
            row.gradient,
            row.setting,
            row.bytes,
            ratio(row.ratio),
            both(Some(row)),
            both(rows.get(at + 1)),
            both(rows.get(at + 2)),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_gradients_have_every_series_at_the_same_bytes() {
        let source = super::super::source::load(None, None, gradwire::Dtype::F32).unwrap();
        let rows = measure(&source, &ProgressBar::hidden()).unwrap();
        assert_eq!(rows.len(), 3 * (3 * 32 + 7));
        for step in source.steps() {
            let of = |series: usize| -> Vec<&Traded> {
                rows.iter().filter(|r| r.gradient == step.label && r.codec == SERIES[series]).collect()
            };
            let [warm, first, sparse, levels] = [0, 1, 2, 3].map(of);
            for ((warm, first), sparse) in warm.iter().zip(&first).zip(&sparse) {
                assert!(sparse.bytes <= warm.bytes && sparse.bytes + 16 > warm.bytes, "{sparse:?} beside {warm:?}");
                assert!(warm.energy > first.energy - 1e-6, "{warm:?} after {first:?}");
                // A projection loses what it does not have.
                assert!((warm.energy + warm.relative_error.powi(2) - 1.0).abs() < 1e-4, "{warm:?}");
            }
            assert!(
                warm.windows(2).all(|pair| pair[0].energy < pair[1].energy + 1e-6 && pair[0].bytes < pair[1].bytes)
            );
            assert!(levels.windows(2).all(|pair| pair[0].relative_error > pair[1].relative_error));
        }
        let text = table(&rows);
        assert_eq!(text.lines().count(), 2 + 3 * NAMED.len(), "{text}");
        assert!(
            measure(
                &super::super::source::load(None, Some(1000), gradwire::Dtype::F32).unwrap(),
                &ProgressBar::hidden()
            )
            .unwrap()
            .is_empty()
        );
    }

    #[test]
    fn a_payload_that_is_afforded_fits() {
        for (n, bytes) in [(1000u64, 31), (1000, 32), (1000, 36), (1000, 40), (1000, 2000), (1000, 1 << 20)] {
            let k = affordable(n, bytes);
            let size = |k: u64| 32 + IndexFormat::choose(n, k).bytes(n, k) + 4 * k;
            assert!(k == 0 || size(k) <= bytes);
            assert!(k == n || size(k + 1) > bytes, "{n}, {bytes}: {k}");
        }
    }
}
