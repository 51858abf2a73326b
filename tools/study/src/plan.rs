//! `cargo xtask plan`: what to merge and compress, from a profile, a network and what a bench measured.

use std::fs;
use std::path::{Path, PathBuf};

use gradwire::Recipe;
use gradwire_collectives::{Collective, GroupPings, Mpi, MpiSettings, Ping, Threads, ping_group};
use gradwire_planner::{Algorithm, CodecCost, Network, Plan, PlanError, Profile, Question, gantt};
use gradwire_tools::checkout;

/// What to plan for.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The profile of an iteration: JSON with `forward` and, in order of readiness, `layers` of `name`, `elements` and
    /// `backward`. Times are in seconds.
    #[arg(long, required_unless_present = "trace", conflicts_with = "trace")]
    profile: Option<PathBuf>,
    /// What torch's profiler has recorded of some iterations, with shapes, in place of a profile.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// 1GbE, 10GbE, 25GbE or InfiniBand, or a link's seconds per message and per byte: `3e-5,8e-10`.
    #[arg(long, required_unless_present = "engine", conflicts_with = "engine")]
    network: Option<String>,
    /// Measures the network, as what messages take between the first two ranks of this engine.
    #[arg(long, value_enum)]
    engine: Option<Engine>,
    /// How many ranks train. Of MPI, as many as the launcher starts unless this says otherwise.
    #[arg(long, required_unless_present = "engine")]
    ranks: Option<u32>,
    /// What `cargo xtask bench` measured: its codecs are tried. Without it, only merging is planned.
    #[arg(long)]
    bench: Option<PathBuf>,
    /// The share of an iteration that compression must save.
    #[arg(long, default_value_t = 0.05)]
    margin: f64,
    /// States per layer that the search keeps at most. The table says where more might find a faster plan.
    #[arg(long, default_value_t = 256)]
    states: usize,
    /// Where a chart of the planned iteration goes, as SVG.
    #[arg(long)]
    chart: Option<PathBuf>,
    /// Where the plan goes, as JSON. Its messages name recipes, which a training can use as they are.
    #[arg(long, alias = "json")]
    write: Option<PathBuf>,
}

/// An engine, by its name.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Engine {
    /// Ranks that are threads of one process.
    Threads,
    /// Ranks that are processes: start `gradwire-study plan` with `mpirun -np 4`. Rank 0 plans.
    Mpi,
}

/// Plans, prints the table of choices and the verdict, and writes what was asked for.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    for (file, option) in [(&args.chart, "--chart"), (&args.write, "--write")] {
        file.as_ref().map_or(Ok(()), |file| checkout::check_writable(file, option))?;
    }
    let profile = match (&args.profile, &args.trace) {
        (Some(file), _) => read(file, Profile::from_json)?,
        (None, Some(file)) => read(file, Profile::from_torch_trace)?,
        (None, None) => return Err("name --profile or --trace".to_owned()),
    };
    let unnamed = || "name --ranks, how many train".to_owned();
    let (link, ranks) = match (&args.network, args.engine) {
        (Some(text), _) => (network(text)?, args.ranks.ok_or_else(unnamed)?),
        (None, Some(Engine::Threads)) => {
            let ranks = args.ranks.ok_or_else(unnamed)?;
            (of_threads(ranks)?, ranks)
        }
        (None, Some(Engine::Mpi)) => match of_mpi()? {
            Some((network, found)) => (network, args.ranks.unwrap_or(found)),
            None => return Ok(()),
        },
        (None, None) => return Err("name --network or --engine".to_owned()),
    };
    let codecs = args.bench.as_ref().map_or(Ok(Vec::new()), |file| read(file, CodecCost::from_bench))?;
    let plan = Question {
        profile: &profile,
        network: link,
        ranks,
        codecs: &codecs,
        algorithms: &Algorithm::ALL,
        least_margin: args.margin,
        states: args.states,
    }
    .plan()
    .map_err(|error| error.to_string())?;
    print!("{plan}");
    if let Some(file) = &args.chart {
        write(file, &gantt(&plan.graph).map_err(|error| error.to_string())?)?;
    }
    if let Some(file) = &args.write {
        expect_recipes(&plan)?;
        write(file, &serde_json::to_string_pretty(&plan).map_err(|e| format!("the plan does not fit JSON: {e}"))?)?;
    }
    Ok(())
}

fn read<T>(file: &Path, parse: impl Fn(&str) -> Result<T, PlanError>) -> Result<T, String> {
    let text = fs::read_to_string(file).map_err(|e| format!("{} cannot be read: {e}", file.display()))?;
    parse(&text).map_err(|e| format!("{}: {e}", file.display()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|e| format!("{} cannot be written: {e}", file.display()))?;
    println!("wrote {}", file.display());
    Ok(())
}

/// Refuses a plan whose codecs are no recipes, which a training could not use.
fn expect_recipes(plan: &Plan) -> Result<(), String> {
    plan.messages.iter().try_for_each(|message| {
        let parsed: Result<Recipe, _> = message.recipe.parse();
        parsed.map(drop).map_err(|error| {
            let recipe = &message.recipe;
            format!("--write: {recipe:?} is no recipe ({error}); plan with a bench of --codec qsgd or topk")
        })
    })
}

/// Bytes of the messages that are measured: a sixteenth of a kilobyte to 4 megabytes.
const SIZES: [usize; 9] = [1 << 6, 1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22];
/// How often each size is measured. The median counts.
const REPETITIONS: usize = 51;

/// The link between this many ranks that are threads.
fn of_threads(ranks: u32) -> Result<Network, String> {
    if ranks < 2 {
        return Err(format!("--engine measures a link between two ranks, and there are {ranks}: name --network"));
    }
    let group = Threads::group(ranks).map_err(|error| error.to_string())?;
    let pings = std::thread::scope(|scope| {
        let of_rank = |mut group: Threads| scope.spawn(move || ping_group(&mut group, &SIZES, REPETITIONS));
        let threads: Vec<_> = group.into_iter().map(of_rank).collect();
        let first = threads.into_iter().map(|thread| thread.join()).next();
        first.and_then(Result::ok).ok_or("a rank of the measurement panicked")
    })?;
    fitted("threads", ranks, &pings.map_err(|error| error.to_string())?)
}

/// The link between the processes that the launcher started, and their number. None on other ranks than the first.
fn of_mpi() -> Result<Option<(Network, u32)>, String> {
    let mut group = Mpi::open(&MpiSettings::default()).map_err(|error| error.to_string())?;
    let (rank, ranks) = (group.rank(), group.ranks());
    if ranks < 2 {
        return Err("--engine measures a link between two ranks, and MPI has one: start \
             mpirun -np 2 target/release/gradwire-study plan"
            .to_owned());
    }
    let pings = ping_group(&mut group, &SIZES, REPETITIONS).map_err(|error| error.to_string())?;
    group.finish().map_err(|error| error.to_string())?;
    if rank > 0 { Ok(None) } else { Ok(Some((fitted("mpi", ranks, &pings)?, ranks))) }
}

/// The link that messages and gathers show, printed with how far each size of a message is from it.
fn fitted(engine: &str, ranks: u32, pings: &GroupPings) -> Result<Network, String> {
    let medians =
        |pings: &[Ping]| -> Vec<(f64, f64)> { pings.iter().map(|ping| (ping.bytes as f64, ping.median())).collect() };
    let (messages, gathers) = (medians(&pings.messages), medians(&pings.gathers));
    let (network, fit) = Network::fit(&messages).map_err(|error| format!("--engine {engine}: {error}"))?;
    let network = network.with_gathers(ranks, &gathers).map_err(|error| format!("--engine {engine}: {error}"))?;
    println!("{:>10}{:>16}{:>16}", "bytes", "measured, us", "off, us");
    for ((bytes, seconds), residual) in messages.iter().zip(&fit.residuals) {
        println!("{bytes:>10}{:>16.3}{:>16.3}", seconds * 1e6, residual * 1e6);
    }
    println!(
        "a link of {:.3e} s and {:.3e} s per byte, {:.3e} s between messages sent at once; messages are off by {:.3} us rms",
        network.alpha(),
        network.beta(),
        network.gap(),
        fit.rms() * 1e6
    );
    Ok(network)
}

/// A preset by its name, or a link by its two numbers.
fn network(text: &str) -> Result<Network, String> {
    let numbers = text.split_once(',').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    let found = match numbers {
        Some((alpha, beta)) => Network::new(alpha, beta),
        None => Network::preset(text),
    };
    found.map_err(|error| format!("--network {text}: {error}"))
}

#[cfg(test)]
mod tests {
    use gradwire_planner::{Curve, Layer, Line};

    use super::*;

    #[test]
    fn only_recipes_are_written() {
        let curve = Curve::Line(Line::new(0.0, 0.0));
        let verdict = |name: &str| {
            let name = name.to_owned();
            let codec = CodecCost {
                name,
                encode: curve,
                decode: curve,
                bytes_per_element: 0.5,
                sums: false,
                ..CodecCost::dense()
            };
            let plan = Question {
                profile: &Profile::new(0.0, vec![Layer::new("one", 1 << 20, 0.0)]).expect("valid"),
                network: Network::preset("1GbE").expect("there"),
                ranks: 2,
                codecs: &[codec],
                algorithms: &Algorithm::ALL,
                least_margin: 0.0,
                states: 256,
            };
            expect_recipes(&plan.plan().expect("a plan"))
        };
        for recipe in ["qsgd:bits=4,bucket=512", "qsgd:bits=8,bucket=whole", "topk:0.001", "onebit"] {
            assert_eq!(verdict(recipe), Ok(()));
        }
        let error = verdict("QSGD 4 bit / 512").expect_err("no recipe");
        assert!(error.starts_with("--write: \"QSGD 4 bit / 512\" is no recipe"), "{error}");
    }

    #[test]
    fn a_link_takes_two_ranks() {
        for (ranks, wanted) in [(0, "there are 0"), (1, "there are 1"), (Threads::MOST + 1, "1 to 1024")] {
            let error = of_threads(ranks).expect_err("no link");
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn networks_are_named_or_numbers() {
        assert_eq!(network("10gbe"), Network::preset("10GbE").map_err(|e| e.to_string()));
        assert_eq!(network("3e-5, 8e-10"), Network::new(3e-5, 8e-10).map_err(|e| e.to_string()));
        for (bad, wanted) in [("0,1", "alpha"), ("token ring", "1GbE, 10GbE"), ("1,x", "no network is called")] {
            let error = network(bad).expect_err(bad);
            assert!(error.starts_with(&format!("--network {bad}")) && error.contains(wanted), "{error}");
        }
    }
}
