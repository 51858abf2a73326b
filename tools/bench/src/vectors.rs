//! `cargo xtask vectors`: writes the golden vectors that the oracle computes, or checks the committed ones.

use std::fs;

use gradwire_tests::vectors;
use gradwire_tools::checkout::root;

/// Write the golden vectors, or check them.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Change nothing: fail where what the oracle computes is not what is committed.
    #[arg(long)]
    check: bool,
}

/// Writes `tests/vectors`, or compares.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    println!("computing the golden vectors");
    for (name, text) in vectors::files() {
        let path = root().join("tests/vectors").join(&name);
        if !args.check {
            fs::write(&path, &text).map_err(|e| format!("{} could not be written: {e}", path.display()))?;
            println!("{name}: {} bytes", text.len());
            continue;
        }
        let committed = fs::read_to_string(&path).map_err(|e| format!("{} could not be read: {e}", path.display()))?;
        vectors::same(&name, &committed, &text)?;
        println!("{name}: as the oracle computes it");
    }
    Ok(())
}
