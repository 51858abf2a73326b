//! `cargo xtask fuzz`: the fuzz targets, from seeds that are built anew.

use std::fs;

use gradwire_tests::hostile::{TARGETS, seeds};

use crate::place::root;

/// What to fuzz, and for how long.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The targets: wire, decode, sparse, low_rank. Without any, all of them, one after another.
    targets: Vec<String>,
    /// Seconds of each target.
    #[arg(long, default_value_t = 30)]
    seconds: u32,
}

/// Writes the seeds beside what earlier runs found, and runs cargo-fuzz.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let known = TARGETS.map(|(name, _)| name);
    if let Some(other) = args.targets.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("`{other}` is no fuzz target; there are {}", known.join(", ")));
    }
    for name in known.into_iter().filter(|name| args.targets.is_empty() || args.targets.iter().any(|t| t == name)) {
        let corpus = root().join("fuzz/corpus").join(name);
        let failed = |e| format!("the seeds could not be written to {}: {e}", corpus.display());
        fs::create_dir_all(&corpus).map_err(failed)?;
        for (index, seed) in seeds::of(name).iter().enumerate() {
            fs::write(corpus.join(format!("seed-{index:03}")), seed).map_err(failed)?;
        }
        println!("== {name}");
        let mut cargo = crate::ptx::pinned_cargo()?;
        cargo.args(["fuzz", "run", "--target-dir", "target/fuzz", name, "--", "-max_len=4096"]);
        cargo.arg(format!("-max_total_time={}", args.seconds)).current_dir(root());
        let status = cargo.status().map_err(|e| format!("cargo could not be started: {e}"))?;
        if !status.success() {
            return Err(format!(
                "fuzzing {name} ended with {status}; the output above says why. Where cargo knows no `fuzz`, run `cargo install cargo-fuzz`"
            ));
        }
    }
    Ok(())
}
