//! `cargo xtask traffic`: what each kernel moves and executes for an element, counted on the PTX machine.

use gradwire_tests::{launches, low_rank_models, low_rank_traffic, reads, totals, traffic};
use gradwire_tools::checkout::root;

/// What to do with the table.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write it to docs/traffic.md, where a test compares.
    #[arg(long)]
    write: bool,
}

/// Counts, and prints the table or writes it.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    // Beside the table, which a pipe may take.
    eprintln!("running every kernel on the PTX machine, and counting: it takes minutes");
    let (kernels, selections, steps) = (traffic::count()?, reads::count(&|_| true)?, low_rank_traffic::count()?);
    let launches = launches::table(&launches::count().map_err(|e| e.to_string())?);
    let models = low_rank_models::table(&low_rank_models::count()?);
    let totals = totals::table(&totals::all(&kernels, &selections, &steps));
    let (kernels, selections) = (traffic::table(&kernels), reads::table(&selections));
    let table = [kernels, selections, launches, low_rank_traffic::table(&steps), models, totals].concat();
    if !args.write {
        print!("{table}");
        return Ok(());
    }
    let path = root().join(traffic::PAGE);
    std::fs::write(&path, table).map_err(|e| format!("{} cannot be written: {e}", path.display()))?;
    println!("wrote {}", traffic::PAGE);
    Ok(())
}
