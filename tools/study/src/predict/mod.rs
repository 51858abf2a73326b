//! `cargo xtask predict`: what the planner says of a step over slow links, beside what the step takes.

mod merged;

use std::thread;
use std::time::{Duration, Instant};

use gradwire::{Compressor, Device, Recipe};
use gradwire_collectives::{Link, Ping, Threads, ping_group};
use gradwire_planner::{Algorithm, CodecCost, Curve, Layer, Line, Network, Profile, Question};

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many ranks there are, each a thread.
    #[arg(long, default_value_t = 4)]
    ranks: u32,
    /// The gradient is a square matrix with so many rows.
    #[arg(long, default_value_t = 1024)]
    side: u64,
    /// Steps of which the median is taken.
    #[arg(long, default_value_t = 31)]
    steps: usize,
    /// The latency of each link, in microseconds.
    #[arg(long, default_value_t = 50)]
    latency: u64,
    /// Leave out the layers that are exchanged while backpropagation goes on.
    #[arg(long)]
    single: bool,
}

/// Gigabits per second.
const RATES: [f64; 3] = [0.1, 1.0, 10.0];
const RECIPES: [&str; 4] = ["none", "qsgd:bits=4,bucket=64+ef", "topk:0.01+ef", "powersgd:rank=4"];
/// What a step computes before its exchange: a sleep, which takes no core from other ranks.
const FORWARD: Duration = Duration::from_millis(20);
const BACKWARD: Duration = Duration::from_millis(30);
/// Bytes of the messages that a link is measured by, and how often.
const SIZES: [usize; 5] = [1 << 8, 1 << 12, 1 << 15, 1 << 17, 1 << 19];
const REPETITIONS: usize = 7;

/// A recipe's exchange.
struct Measured {
    /// Seconds of a step, the median of all.
    seconds: f64,
    /// Bytes that a rank hands over.
    bytes: u64,
}

/// Predicts and measures each recipe over each link, and prints a table.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    if args.ranks < 2 || args.side == 0 || args.steps == 0 {
        return Err("a prediction needs two ranks, a row and a step".to_owned());
    }
    let elements = args.side * args.side;
    let mut costs = Vec::new();
    let copies = network(args.ranks, None)?;
    for text in RECIPES {
        let recipe: Recipe = text.parse().map_err(|error| format!("{text}: {error}"))?;
        // Without a link what is left is the codec, and the copies between threads, which a link's messages have too.
        let alone = measured(text, args, None, Duration::ZERO)?;
        let (name, sums, header, decode) = (text.to_owned(), recipe.is_linear(), alone.bytes as f64, Curve::NONE);
        let copied = algorithm(sums).cost(&copies, args.ranks).map_err(|error| error.to_string())?.at(header);
        let encode = Curve::Line(Line::new((alone.seconds - copied).max(0.0), 0.0));
        // A sum for each factor of PowerSGD.
        let rounds = if recipe.is_linear() && !recipe.is_none() { 2 } else { 1 };
        costs.push(CodecCost {
            name,
            encode,
            decode,
            header,
            bytes_per_element: 0.0,
            sums,
            rounds,
            ..CodecCost::dense()
        });
    }
    let layer = Layer::new("matrix", elements, BACKWARD.as_secs_f64());
    let profile = Profile::new(FORWARD.as_secs_f64(), vec![layer]).map_err(|error| error.to_string())?;
    println!(
        "{} ranks that are threads, {} us from each other, {} MB of gradient, {} ms of compute",
        args.ranks,
        args.latency,
        4 * elements / 1_000_000,
        50
    );
    println!("| Gb/s | recipe | predicted, ms | measured, ms | off |\n|---|---|---|---|---|");
    let mut verdicts = Vec::new();
    for rate in RATES {
        let link = Link::new((rate * 1e9 / 8.0) as u64, Duration::from_micros(args.latency))
            .map_err(|error| error.to_string())?;
        let network = network(args.ranks, Some(link))?;
        let algorithms = &Algorithm::ALL;
        let (least_margin, states, ranks) = (0.0, 256, args.ranks);
        let question = Question { profile: &profile, network, ranks, codecs: &costs, algorithms, least_margin, states };
        let plan = question.plan().map_err(|error| error.to_string())?;
        let mut rows = Vec::new();
        for cost in &costs {
            let row = plan.rows.iter().find(|row| row.codec == cost.name && row.algorithm == algorithm(cost.sums));
            let predicted = row.ok_or_else(|| format!("the plan has no row for {}", cost.name))?.single;
            let found = measured(&cost.name, args, Some(link), FORWARD + BACKWARD)?.seconds;
            let off = 100.0 * (predicted / found - 1.0);
            println!("| {rate} | {} | {:.1} | {:.1} | {off:+.1} % |", cost.name, 1e3 * predicted, 1e3 * found);
            rows.push((cost.name.as_str(), predicted, found));
        }
        let least = |of: fn(&(&str, f64, f64)) -> f64| rows.iter().min_by(|a, b| of(a).total_cmp(&of(b)));
        if let (Some(chosen), Some(best)) = (least(|row| row.1), least(|row| row.2)) {
            let behind = 100.0 * (chosen.2 / best.2 - 1.0);
            verdicts.push(format!(
                "{rate} Gb/s: chosen {}, fastest {}; the choice is {behind:.1} % behind",
                chosen.0, best.0
            ));
        }
    }
    verdicts.iter().for_each(|verdict| println!("{verdict}"));
    if args.single { Ok(()) } else { merged::run(args) }
}

/// The threads sum directly, and gather.
fn algorithm(sums: bool) -> Algorithm {
    if sums { Algorithm::Direct } else { Algorithm::AllGather }
}

/// The link between ranks, or none, as messages and gathers show.
fn network(ranks: u32, link: Option<Link>) -> Result<Network, String> {
    let groups = link.map_or_else(|| Threads::group(ranks), |link| Threads::throttled(ranks, link));
    let all = each(groups, |mut group| ping_group(&mut group, &SIZES, REPETITIONS).map_err(|error| error.to_string()))?;
    let medians =
        |pings: &[Ping]| -> Vec<(f64, f64)> { pings.iter().map(|ping| (ping.bytes as f64, ping.median())).collect() };
    let fitted = Network::fit(&medians(&all[0].messages));
    let network = fitted.and_then(|(network, _)| network.with_gathers(ranks, &medians(&all[0].gathers)));
    network.map_err(|error| error.to_string())
}

/// Steps of compute and exchange, over a link or none.
fn measured(recipe: &str, args: &Args, link: Option<Link>, compute: Duration) -> Result<Measured, String> {
    let groups = link.map_or_else(|| Threads::group(args.ranks), |link| Threads::throttled(args.ranks, link));
    let all = each(groups, |mut group| {
        let text = |error: gradwire::Error| error.to_string();
        let mut compressor = Compressor::new(recipe, [[args.side, args.side]], 1).map_err(text)?;
        let elements = compressor.elements();
        let mut gradient: Vec<f32> = (0..elements).map(|at| ((at * 7919) % 1009) as f32 - 504.0).collect();
        let mut seconds = Vec::new();
        for step in 0..args.steps + 2 {
            let began = Instant::now();
            thread::sleep(compute);
            compressor.exchange(&Device::cpu(), &mut group, &mut gradient).map_err(text)?;
            if step > 1 {
                seconds.push(began.elapsed().as_secs_f64());
            }
        }
        seconds.sort_by(f64::total_cmp);
        Ok(Measured { seconds: seconds[seconds.len() / 2], bytes: compressor.last_bytes() })
    })?;
    all.into_iter().next().ok_or_else(|| "no rank has measured".to_owned())
}

/// What each rank gives, each in a thread of its own.
fn each<T: Send>(
    groups: Result<Vec<Threads>, gradwire::CollectiveError>,
    work: impl Fn(Threads) -> Result<T, String> + Sync,
) -> Result<Vec<T>, String> {
    let groups = groups.map_err(|error| error.to_string())?;
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || work(group))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a rank panicked".to_owned())?).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_its_compute_and_its_link_at_least() {
        let args = Args { ranks: 2, side: 64, steps: 3, latency: 50, single: true };
        let link = Link::new(1_000_000, Duration::from_micros(args.latency)).expect("a link");
        let over = measured("none", &args, Some(link), Duration::from_millis(5)).expect("measured");
        // Half of the sum each way: 16 kB at 1 MB/s, after the compute.
        assert!(over.seconds >= 0.005 + 0.016, "{}", over.seconds);
        assert_eq!(over.bytes % 4, 0);
    }

    #[test]
    fn too_little_to_measure_is_refused() {
        for args in [
            Args { ranks: 1, side: 64, steps: 3, latency: 50, single: true },
            Args { ranks: 2, side: 0, steps: 3, latency: 50, single: true },
            Args { ranks: 2, side: 64, steps: 0, latency: 50, single: true },
        ] {
            assert!(run(&args).is_err());
        }
    }
}
