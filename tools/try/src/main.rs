//! `cargo try`: formats, and runs the CPU's tests of what was changed.
//!
//! It is a program of its own, since `cargo xtask` holds the library: after a change to a kernel, that would have to be
//! built first.

mod what;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use what::{Suite, What};

const HELP: &str = "\
cargo try [WHAT]

Formats the workspace, and runs the CPU's tests of WHAT at the quick depth: a codec, such as qsgd, topk or powersgd; the
compressor; or cpu, the suite of all codecs. Without it, the files that differ from the last commit say what.
--check also runs `cargo check` on the workspace. `cargo xtask test` runs what must hold before a change lands.";

fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut words: Vec<String>) -> Result<(), String> {
    if words.iter().any(|word| word == "--help" || word == "-h") {
        println!("{HELP}");
        return Ok(());
    }
    let check = words.iter().any(|word| word == "--check");
    words.retain(|word| word != "--check");
    let root = root()?;
    let what = match &words[..] {
        [] => What::of_paths(changed(&root)?.iter().map(String::as_str)),
        [word] => What::of_word(word)?,
        _ => return Err(format!("asked for {}; it takes one thing: see --help", words.join(" "))),
    };
    let start = Instant::now();
    step(&root, &["fmt", "--all"], &[])?;
    for Suite { program, filters, codec } in what.suites() {
        // With the workspace's features, as everywhere: with those of one package, wgpu would be built anew.
        let mut line = vec!["test", "--quiet", "--locked", "--workspace", "--test", program, "--"];
        line.extend(filters);
        let mut environment = vec![("GRADWIRE_DEPTH", "quick")];
        environment.extend(codec.map(|codec| ("GRADWIRE_CODEC", codec)));
        step(&root, &line, &environment)?;
    }
    if check || what.is_nothing() {
        step(&root, &["check", "--quiet", "--locked", "--workspace", "--all-targets"], &[])?;
    }
    println!(
        "{what}: passed in {:.0} s; `cargo xtask test` runs what must hold before a change lands",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// The folder of the workspace.
fn root() -> Result<PathBuf, String> {
    let said = said(Path::new("."), cargo().as_str(), &["locate-project", "--workspace", "--message-format", "plain"])?;
    let manifest = PathBuf::from(said.trim());
    manifest.parent().map(Path::to_path_buf).ok_or_else(|| format!("cargo names `{}` as a manifest", said.trim()))
}

/// The files that differ from the last commit, and those that git does not know yet.
fn changed(root: &Path) -> Result<Vec<String>, String> {
    let changed = said(root, "git", &["diff", "--name-only", "HEAD"])?;
    let new = said(root, "git", &["ls-files", "--others", "--exclude-standard"])?;
    Ok(changed.lines().chain(new.lines()).map(str::to_owned).collect())
}

/// The cargo that runs this, or the first on PATH.
fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

fn said(folder: &Path, program: &str, words: &[&str]) -> Result<String, String> {
    let told = |why: String| format!("{program} {}: {why}", words.join(" "));
    let output = Command::new(program).args(words).current_dir(folder).output();
    let output = output.map_err(|e| told(format!("it could not be started: {e}")))?;
    if !output.status.success() {
        return Err(told(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn step(root: &Path, words: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    let settings: String = environment.iter().map(|(name, value)| format!("{name}={value} ")).collect();
    println!("== {settings}cargo {}", words.join(" "));
    let start = Instant::now();
    let mut command = Command::new(cargo());
    command.args(words).envs(environment.iter().copied()).current_dir(root);
    let status = command.status().map_err(|e| format!("cargo could not be started: {e}"))?;
    if !status.success() {
        return Err(format!("cargo {} ended with {status}; the output above says why", words.join(" ")));
    }
    println!("   {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
