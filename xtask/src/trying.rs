//! `cargo try`: formats, and runs the CPU's tests of the changed files.

mod what;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use gradwire_tools::checkout::root;
use gradwire_tools::repository::git;
use gradwire_tools::settings::{CODEC, DEPTH};
use gradwire_tools::step::succeed;

use what::{Suite, What};

/// What to try.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A codec, such as qsgd, topk or powersgd; `compressor`; or `cpu`, the suite of all codecs. Without it, the files
    /// that differ from the last commit say what.
    what: Option<String>,
    /// Also run `cargo check` on the workspace.
    #[arg(long)]
    check: bool,
}

/// Formats, builds and tests.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let root = root();
    let what = match &args.what {
        None => What::of_paths(changed(&root)?.iter().map(String::as_str)),
        Some(word) => What::of_word(word)?,
    };
    let start = Instant::now();
    step(&root, &["fmt", "--all"], &[])?;
    for Suite { program, profile, filters, codec } in what.suites() {
        // Without GPU backends: the CPU's tests need none, and wgpu is not built.
        let mut line = vec!["test", "--quiet", "--locked", "--profile", profile, "-p", "gradwire-tests"];
        line.extend(["--no-default-features", "--test", program, "--"]);
        line.extend(filters);
        let mut environment = vec![(DEPTH, "quick")];
        environment.extend(codec.map(|codec| (CODEC, codec)));
        step(&root, &line, &environment)?;
    }
    if args.check || what.is_nothing() {
        step(&root, &["check", "--quiet", "--locked", "--workspace", "--all-targets"], &[])?;
    }
    println!(
        "{what}: passed in {:.0} s; `cargo xtask test` runs what must hold before a change lands",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// The files that differ from the last commit, and those that git does not know yet.
fn changed(root: &Path) -> Result<Vec<String>, String> {
    let changed = git(root, &["diff", "--name-only", "HEAD"])?;
    let new = git(root, &["ls-files", "--others", "--exclude-standard"])?;
    Ok(changed.lines().chain(new.lines()).map(str::to_owned).collect())
}

fn step(root: &Path, words: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    let settings: String = environment.iter().map(|(name, value)| format!("{name}={value} ")).collect();
    println!("== {settings}cargo {}", words.join(" "));
    let start = Instant::now();
    let mut command = Command::new(env!("CARGO"));
    command.args(words).envs(environment.iter().copied()).current_dir(root);
    succeed(&mut command, &format!("cargo {} failed", words.join(" ")))?;
    println!("   {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
