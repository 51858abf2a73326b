//! `cargo xtask bench --collective`: what messages take between ranks, and the exchange of each algorithm, in time and
//! bytes.

use std::thread;
use std::time::Instant;

use gradwire::{Collective, CollectiveError, Compressor, Device};
use gradwire_collectives::{Mpi, MpiSettings, Nccl, NcclSettings, Ping, Threads, ping};
use gradwire_planner::Network;
use serde::Serialize;

/// An engine, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Engine {
    /// Ranks that are threads of one process.
    Threads,
    /// Ranks that are processes: start `gradwire-bench bench --collective --engine mpi` with `mpirun -np 4`.
    Mpi,
    /// Ranks that are threads of one process, each with a GPU of its own.
    Nccl,
}

/// What is measured: an algorithm, and a recipe that takes it.
const EXCHANGES: [(&str, &str); 6] = [
    ("all-reduce", "none"),
    ("all-gather", "qsgd:bits=4,bucket=64+ef"),
    ("two phases", "qsgd:bits=4,bucket=64+ef+twophase"),
    ("all-gather", "topk:0.01+ef"),
    ("tree", "topk:0.01+ef+gtopk"),
    ("all-reduce of factors", "powersgd:rank=4"),
];
/// Bytes of the messages between two ranks, and how often each is sent.
const SIZES: [usize; 6] = [1 << 8, 1 << 12, 1 << 15, 1 << 17, 1 << 19, 1 << 21];
const REPETITIONS: usize = 9;
/// Exchanges that are measured, after two that are not.
const STEPS: usize = 7;

/// What an engine takes.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    engine: Engine,
    ranks: u32,
    /// Elements of the gradient.
    elements: u64,
    /// Seconds of a message and seconds per byte, fitted to the messages.
    alpha: Option<f64>,
    beta: Option<f64>,
    messages: Vec<Message>,
    exchanges: Vec<Row>,
}

/// A message from each of two ranks to the other.
#[derive(Debug, Serialize)]
struct Message {
    bytes: usize,
    /// The median.
    seconds: f64,
    /// What the fit says.
    fitted: Option<f64>,
}

/// The exchange of a gradient by one algorithm, on rank 0.
#[derive(Debug, Serialize)]
struct Row {
    algorithm: &'static str,
    recipe: &'static str,
    /// The median.
    seconds: f64,
    /// Bytes that the rank sent to others in the last exchange, as they were counted, without those of an all-reduce.
    sent: u64,
    /// The same by the formula, where the lengths are known beforehand.
    formula: Option<u64>,
    /// Bytes that were summed by an all-reduce, which sends them as its engine does.
    summed: u64,
}

/// A group that counts what its rank sends.
struct Counted<C> {
    group: C,
    sent: u64,
    summed: u64,
}

impl<C: Collective> Counted<C> {
    fn others(&self) -> u64 {
        u64::from(self.group.ranks()) - 1
    }
}

impl<C: Collective> Collective for Counted<C> {
    fn rank(&self) -> u32 {
        self.group.rank()
    }

    fn ranks(&self) -> u32 {
        self.group.ranks()
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        self.sent += self.others() * mine.len() as u64;
        self.group.all_gather(mine, all)
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        let others = (0..).zip(to).filter(|(rank, _)| *rank != self.group.rank());
        self.sent += others.map(|(_, part)| part.len() as u64).sum::<u64>();
        self.group.all_to_all(to, from)
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.summed += 4 * values.len() as u64;
        self.group.all_reduce_sum(values)
    }

    fn exchange(&mut self, peer: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.sent += mine.len() as u64;
        self.group.exchange(peer, mine, theirs)
    }

    fn broadcast(&mut self, root: u32, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        self.sent += if root == self.group.rank() { self.others() * bytes.len() as u64 } else { 0 };
        self.group.broadcast(root, bytes)
    }
}

/// Measures an engine with gradients of a square matrix with so many rows: rank 0 gets the result.
pub(super) fn measure(engine: Engine, ranks: u32, side: u64) -> Result<Option<Measured>, String> {
    if ranks < 2 || side == 0 {
        return Err("an exchange needs two ranks, and a gradient with elements".to_owned());
    }
    match engine {
        Engine::Threads => {
            on_threads(ranks, |group| of_rank(group, engine, side).map(|(measured, _)| measured)).map(Some)
        }
        Engine::Nccl => on_threads(ranks, |mut ranks| {
            let settings = NcclSettings::default().own_gpu(&mut ranks).map_err(|error| error.to_string())?;
            let group = Nccl::open_over(&mut ranks, &settings).map_err(|error| error.to_string())?;
            let (measured, group) = of_rank(group, engine, side)?;
            group.finish().map_err(|error| error.to_string())?;
            Ok(measured)
        })
        .map(Some),
        Engine::Mpi => {
            let group = Mpi::open(&MpiSettings::default()).map_err(|error| error.to_string())?;
            if group.ranks() < 2 {
                return Err("there is one process; start gradwire-bench with mpirun -np 4".to_owned());
            }
            let first = group.rank() == 0;
            let (measured, group) = of_rank(group, engine, side)?;
            group.finish().map_err(|error| error.to_string())?;
            Ok(first.then_some(measured))
        }
    }
}

/// What rank 0 gets of ranks that are threads, or an error of any of them.
fn on_threads<T: Send>(ranks: u32, rank: impl Fn(Threads) -> Result<T, String> + Sync) -> Result<T, String> {
    let groups = Threads::group(ranks).map_err(|error| error.to_string())?;
    let all = thread::scope(|scope| {
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| rank(group))).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|rank| rank.unwrap_or_else(|_| Err("a rank has panicked".to_owned()))).collect::<Result<Vec<_>, _>>()
    })?;
    all.into_iter().next().ok_or_else(|| "there is no rank".to_owned())
}

/// What one rank measures.
fn of_rank<C: Collective>(mut group: C, engine: Engine, side: u64) -> Result<(Measured, C), String> {
    let pings = ping(&mut group, &SIZES, REPETITIONS).map_err(|error| error.to_string())?;
    let medians: Vec<(f64, f64)> = pings.iter().map(|ping| (ping.bytes as f64, ping.median())).collect();
    // On a busy machine larger messages may seem to take less time, and nothing fits.
    let fitted = Network::fit(&medians).ok().map(|(network, _)| network);
    let message = |ping: &Ping| {
        let fitted = fitted.map(|network| network.message().at(ping.bytes as f64));
        Message { bytes: ping.bytes, seconds: ping.median(), fitted }
    };
    let messages = pings.iter().map(message).collect();
    let mut group = Counted { group, sent: 0, summed: 0 };
    let mut exchanges = Vec::new();
    for (algorithm, recipe) in EXCHANGES {
        exchanges.push(exchange(&mut group, algorithm, recipe, side).map_err(|error| format!("{recipe}: {error}"))?);
    }
    let [alpha, beta] = [fitted.map(|network| network.alpha()), fitted.map(|network| network.beta())];
    let ranks = group.ranks();
    Ok((Measured { engine, ranks, elements: side * side, alpha, beta, messages, exchanges }, group.group))
}

/// The exchanges of one recipe.
fn exchange<C: Collective>(
    group: &mut Counted<C>,
    algorithm: &'static str,
    recipe: &'static str,
    side: u64,
) -> Result<Row, gradwire::Error> {
    let mut compressor = Compressor::new(recipe, [[side, side]], 1)?;
    let elements = compressor.elements() as u64;
    let mut seconds = Vec::with_capacity(STEPS);
    for step in 0..STEPS + 2 {
        (group.sent, group.summed) = (0, 0);
        let mut gradient: Vec<f32> = (0..elements).map(|at| ((at * 7919) % 1009) as f32 - 504.0).collect();
        let began = Instant::now();
        compressor.exchange(&Device::cpu(), group, &mut gradient)?;
        if step > 1 {
            seconds.push(began.elapsed().as_secs_f64());
        }
    }
    seconds.sort_by(f64::total_cmp);
    let formula = compressor.sent_bytes(group.rank(), group.ranks())?;
    Ok(Row { algorithm, recipe, seconds: seconds[STEPS / 2], sent: group.sent, formula, summed: group.summed })
}

impl Measured {
    /// Both tables.
    pub(super) fn print(&self) {
        println!("{} ranks, {} elements of f32\n", self.ranks, self.elements);
        if let (Some(alpha), Some(beta)) = (self.alpha, self.beta) {
            println!(
                "a message takes {:.1} us, and {:.3} ns per byte ({:.2} GB/s)\n",
                1e6 * alpha,
                1e9 * beta,
                1e-9 / beta
            );
        } else {
            println!("the messages fit no line\n");
        }
        println!("| message, bytes | us | fitted, us |\n|---|---|---|");
        for message in &self.messages {
            let fitted = message.fitted.map_or("-".to_owned(), |seconds| format!("{:.1}", 1e6 * seconds));
            println!("| {} | {:.1} | {fitted} |", message.bytes, 1e6 * message.seconds);
        }
        println!(
            "\n| algorithm | recipe | ms | sent, bytes | by the formula | summed, bytes |\n|---|---|---|---|---|---|"
        );
        for row in &self.exchanges {
            let formula = row.formula.map_or("-".to_owned(), |bytes| bytes.to_string());
            let (algorithm, recipe, milliseconds) = (row.algorithm, row.recipe, 1e3 * row.seconds);
            println!("| {algorithm} | {recipe} | {milliseconds:.2} | {} | {formula} | {} |", row.sent, row.summed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_bytes_are_those_of_the_formula() {
        for ranks in [2, 3, 5] {
            let measured = measure(Engine::Threads, ranks, 64).expect("measured").expect("rank 0");
            assert_eq!((measured.exchanges.len(), measured.messages.len()), (EXCHANGES.len(), SIZES.len()));
            let known: Vec<_> = measured.exchanges.iter().filter(|row| row.formula.is_some()).collect();
            // Every rank's payload of a tree has its own length.
            assert!(known.len() >= 5, "{measured:?}");
            assert!(known.iter().all(|row| row.formula == Some(row.sent)), "{measured:?}");
            let summed: Vec<_> = measured.exchanges.iter().map(|row| row.summed > 0).collect();
            assert_eq!(summed, [true, false, false, false, false, true]);
            assert_eq!(measured.exchanges[0].summed, 4 * 64 * 64);
            let json = serde_json::to_value(&measured).expect("JSON");
            assert_eq!(json["exchanges"][2]["algorithm"], "two phases");
            assert_eq!(json["engine"], "threads");
        }
        assert!(measure(Engine::Threads, 1, 64).is_err());
    }
}
