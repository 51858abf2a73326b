//! Steps whose layers are exchanged while backpropagation goes on: each layer by itself, all at once, and merged as the
//! planner says.

use std::thread;
use std::time::{Duration, Instant};

use gradwire::{Compressor, Device, Policy, Tensor};
use gradwire_collectives::{Background, Link, Threads};
use gradwire_planner::{Fit, Groups, Layer, Line, Merging, Profile};

use super::{Args, RATES, each};

/// A link between cities rather than racks, so that a message's start-up counts.
const LATENCY: Duration = Duration::from_millis(1);
const FORWARD: Duration = Duration::from_millis(20);
/// What backpropagation takes for a layer: a wait, which takes no core from the exchanges.
const BACKWARD: Duration = Duration::from_millis(1);
/// Elements of the layers, the last one first: large ones, each with a small one after it, as of a convolution and its
/// scales.
const LAYERS: [u64; 16] = [
    1 << 17,
    1 << 9,
    1 << 17,
    1 << 9,
    1 << 16,
    1 << 9,
    1 << 16,
    1 << 9,
    1 << 15,
    1 << 8,
    1 << 15,
    1 << 8,
    1 << 14,
    1 << 8,
    1 << 13,
    1 << 8,
];

/// Predicts and measures steps over each link, and prints a table.
pub(super) fn run(args: &Args) -> Result<(), String> {
    let layer = |(number, elements): (usize, &u64)| Layer::new(&number.to_string(), *elements, BACKWARD.as_secs_f64());
    let layers = LAYERS.iter().enumerate().map(layer).collect();
    let profile = Profile::new(FORWARD.as_secs_f64(), layers).map_err(|error| error.to_string())?;
    println!(
        "\n{} ranks that are threads, {} layers with {:.1} MB in all, {} ms of compute, links of {} ms",
        args.ranks,
        LAYERS.len(),
        4.0 * LAYERS.iter().sum::<u64>() as f64 / 1e6,
        (FORWARD + BACKWARD * LAYERS.len() as u32).as_millis(),
        LATENCY.as_millis()
    );
    println!("| Gb/s | exchanged | messages | predicted, ms | measured, ms | off |\n|---|---|---|---|---|---|");
    for rate in RATES {
        let link = Link::new((rate * 1e9 / 8.0) as u64, LATENCY).map_err(|error| error.to_string())?;
        let text = |error: gradwire_planner::PlanError| error.to_string();
        let collective = collective(args, link)?;
        let merging = Merging::new(&profile, collective, 4.0).map_err(text)?;
        for (name, groups) in [
            ("layer by layer", merging.wait_free()),
            ("at once", merging.single()),
            ("by the published rule", merging.greedy()),
            ("by the planner", merging.exact()),
        ] {
            let predicted = merging.finish(&groups).map_err(text)?;
            let found = measured(&groups, args, link)?;
            let off = 100.0 * (predicted / found - 1.0);
            let count = Vec::from(groups).len();
            println!("| {rate} | {name} | {count} | {:.1} | {:.1} | {off:+.1} % |", 1e3 * predicted, 1e3 * found);
        }
    }
    Ok(())
}

/// Sums of these bytes, which the collective's line is fitted to.
const SIZES: [u64; 5] = [1 << 10, 1 << 15, 1 << 17, 1 << 19, 1 << 21];

/// What a sum over all ranks takes, by bytes: as the paper of MG-WFBP has it, measured.
fn collective(args: &Args, link: Link) -> Result<Line, String> {
    let all = each(Threads::throttled(args.ranks, link), |mut group| {
        let mut medians = Vec::new();
        for bytes in SIZES {
            let elements = bytes / 4;
            let mut compressor = dense(&[elements])?;
            let mut gradient = vec![1.0; elements as usize];
            let seconds = (0..args.steps + 2).map(|_| {
                let began = Instant::now();
                compressor.exchange(&Device::cpu(), &mut group, &mut gradient).map_err(|error| error.to_string())?;
                Ok(began.elapsed().as_secs_f64())
            });
            medians.push((bytes as f64, median(seconds.collect::<Result<_, String>>()?)));
        }
        Ok(medians)
    })?;
    Ok(Fit::least_squares(&all[0]).map_err(|error| error.to_string())?.line)
}

/// Seconds of a step in which groups of layers are exchanged as they are ready: the median of all.
fn measured(groups: &Groups, args: &Args, link: Link) -> Result<f64, String> {
    let all = each(Threads::throttled(args.ranks, link), |group| {
        let text = |error: gradwire_collectives::BackgroundError| error.to_string();
        let parts = groups.ranges().map(|range| dense(&LAYERS[range]));
        let mut work = Background::new(Device::cpu(), group, parts.collect::<Result<Vec<_>, _>>()?).map_err(text)?;
        let elements = groups.ranges().map(|range| LAYERS[range].iter().sum::<u64>() as usize);
        let mut gradients: Vec<Vec<f32>> = elements.map(|elements| vec![1.0; elements]).collect();
        let mut seconds = Vec::new();
        for _ in 0..args.steps + 2 {
            let began = Instant::now();
            for ((part, range), gradient) in groups.ranges().enumerate().zip(&mut gradients) {
                // Until a moment, and not for a time: waits that are too long do not add up.
                let ready = began + FORWARD + BACKWARD * range.end as u32;
                thread::sleep(ready.saturating_duration_since(Instant::now()));
                work.start(part, gradient).map_err(text)?;
            }
            for (part, gradient) in gradients.iter_mut().enumerate() {
                work.finish(part, gradient).map_err(text)?;
            }
            seconds.push(began.elapsed().as_secs_f64());
        }
        Ok(median(seconds))
    })?;
    Ok(all[0])
}

/// A compressor that sends layers as they are.
fn dense(layers: &[u64]) -> Result<Compressor, String> {
    let tensors: Vec<Tensor> =
        layers.iter().enumerate().map(|(number, elements)| Tensor::new(number.to_string(), [*elements])).collect();
    let policy = Policy::new("none").map_err(|error| error.to_string())?;
    Compressor::with_policy(&policy, &tensors, 1).map_err(|error| error.to_string())
}

/// The median, but for the first two, which begin with memory that nobody has touched.
fn median(mut seconds: Vec<f64>) -> f64 {
    let seconds = &mut seconds[2..];
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_its_compute_and_what_is_left_to_send_behind_it() {
        let args = Args { ranks: 2, side: 64, steps: 3, latency: 50, single: false };
        let link = Link::new(4_000_000, Duration::from_millis(1)).expect("a link");
        let compute = (FORWARD + BACKWARD * 16).as_secs_f64();
        let behind = |groups: Groups, elements: u64| {
            let seconds = measured(&groups, &args, link).expect("measured");
            // Half of the sum each way.
            assert!(seconds >= compute + 4.0 * elements as f64 / 4e6, "{groups:?}: {seconds}");
        };
        behind(Groups::single(16), LAYERS.iter().sum());
        behind(Groups::new(vec![14, 2], 16).expect("groups"), LAYERS[14..].iter().sum());
    }
}
