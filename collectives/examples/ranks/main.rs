//! Runs every operation of a group and exchanges gradients by many recipes, and prints a hash of all results per rank.
//!
//! Engines agree where the hashes do. `cargo xtask mpi` runs it under the launchers of OpenMPI and MPICH.
//!
//! ```text
//! cargo run --release --example ranks -- --engine threads --ranks 4
//! mpirun -np 4 target/release/examples/ranks --engine mpi
//! ```

mod faults;
mod work;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use gradwire_collectives::{Collective, CollectiveError, Mpi, MpiSettings, Threads};

/// Runs the operations of a group, and prints a hash of the results per rank.
#[derive(Debug, Parser)]
struct Args {
    /// What moves the bytes.
    #[arg(long, value_enum, default_value_t = Engine::Threads)]
    engine: Engine,
    /// Ranks, where they are threads; MPI's are those of mpirun.
    #[arg(long, default_value_t = 4)]
    ranks: u32,
    /// What to run.
    #[arg(long, value_enum, default_value_t = Case::Agree)]
    case: Case,
    /// Seconds for which MPI waits for another rank.
    #[arg(long, default_value_t = 60.0)]
    deadline: f64,
    /// Most bytes of one of MPI's messages.
    #[arg(long, default_value_t = 1 << 30)]
    largest: usize,
    /// Seconds after which the program ends itself.
    #[arg(long, default_value_t = 120)]
    limit: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    Threads,
    Mpi,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Case {
    /// All operations and recipes; the hash of what came of them.
    Agree,
    /// Times of a gather and of a sum, for several sizes.
    Time,
    /// Rank 1 does nothing for longer than the deadline.
    Late,
    /// Rank 1 has another model.
    Mismatch,
    /// Rank 1 leaves in the middle.
    Left,
    /// Rank 1 is killed.
    Killed,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // A call that hangs would hang whoever runs this.
    let limit = Duration::from_secs(args.limit);
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        eprintln!("error: not done after {} s", limit.as_secs());
        std::process::exit(3);
    });
    let ended = match args.engine {
        Engine::Threads => threads(&args),
        Engine::Mpi => mpi(&args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn threads(args: &Args) -> Result<(), String> {
    let groups = Threads::group(args.ranks).map_err(|error| error.to_string())?;
    let run = |mut group: Threads| run(args, &mut group);
    std::thread::scope(|scope| {
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || run(group))).collect();
        threads.into_iter().try_for_each(|one| one.join().unwrap_or_else(|_| Err("a rank panicked".to_owned())))
    })
}

fn mpi(args: &Args) -> Result<(), String> {
    let deadline = Duration::from_secs_f64(args.deadline);
    let settings = MpiSettings { deadline, largest: args.largest, ..MpiSettings::default() };
    let told = |error: CollectiveError| error.to_string();
    let mut group = Mpi::open(&settings).map_err(told)?;
    run(args, &mut group)?;
    match args.case {
        Case::Agree | Case::Time => {
            // A second group beside the first has messages of its own.
            let mut second = Mpi::open(&settings).map_err(told)?;
            let mut values = [1.0];
            second.all_reduce_sum(&mut values).map_err(told)?;
            if values != [group.ranks() as f32] {
                return Err(format!("a second group of {} ranks adds up {}", group.ranks(), values[0]));
            }
            // It counts what it sends: a payload to each other rank.
            let before = second.sent().total();
            second.all_gather(&[0; 1000], &mut Vec::new()).map_err(told)?;
            let (sent, others) = (second.sent().total() - before, u64::from(group.ranks() - 1));
            if sent != others * 1000 || second.sent().to(group.rank()) != 0 {
                return Err(format!("{sent} bytes were sent to {others} other ranks"));
            }
            // A message of several stretches, since its length is known to its sender alone. A run whose messages have
            // very many parts leaves it out.
            if args.largest >= 1 << 20 {
                let all: Vec<u8> = (0..50 << 20).map(|at: u32| (at % 251) as u8).collect();
                let mut bytes = if second.rank() == 0 { all.clone() } else { b"old".to_vec() };
                second.broadcast(0, &mut bytes).map_err(told)?;
                if bytes != all {
                    return Err(format!("{} bytes that were broadcast came as {} others", all.len(), bytes.len()));
                }
            }
            second.finish().map_err(told)?;
            group.finish().map_err(told)
        }
        _ => {
            drop(group);
            // Where a rank ends without MPI's own end, the launcher ends all others: they are to be heard before.
            std::thread::sleep(deadline.mul_f64(3.0).min(Duration::from_secs(6)));
            Ok(())
        }
    }
}

fn run(args: &Args, group: &mut dyn Collective) -> Result<(), String> {
    let (rank, ranks) = (group.rank(), group.ranks());
    let told = |error: gradwire::Error| format!("rank {rank} of {ranks}: {error}");
    match args.case {
        Case::Agree => {
            let hash = work::everything(group).map_err(told)?;
            println!("rank {rank} of {ranks}: {hash:016x}");
            Ok(())
        }
        Case::Time => work::times(group).map_err(told),
        case => {
            let found = faults::run(case, group, Duration::from_secs_f64(args.deadline))?;
            println!("rank {rank} of {ranks}: {found}");
            Ok(())
        }
    }
}
