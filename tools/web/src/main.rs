//! `cargo xtask web`: the quickstart in a browser without a window, on WebGPU.

mod browser;
mod serve;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{fs, net::TcpListener};

use clap::Parser;
use gradwire::{Codec, Device, Dtype, Qsgd, Seed, TopK};
use gradwire_tools::checkout::root;
use gradwire_tools::ending::ending;
use gradwire_tools::step::succeed;

const TARGET: &str = "wasm32-unknown-unknown";

/// How long a browser may take. One in software on a busy machine needs about ten seconds.
const PATIENCE: Duration = Duration::from_secs(180);

/// What to do with the page.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Open no browser: serve the page until this command is stopped, and print what browsers say.
    #[arg(long)]
    serve: bool,
    /// The port to serve at; without it, one that is free.
    #[arg(long, default_value_t = 0)]
    port: u16,
}

/// Builds the page, opens it, and compares the bytes that come back with this machine's.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let page = build()?;
    let listener = TcpListener::bind(("127.0.0.1", args.port)).map_err(|e| format!("port {}: {e}", args.port))?;
    let port = listener.local_addr().map_err(|e| format!("the port is unknown: {e}"))?.port();
    let address = format!("http://localhost:{port}/index.html");
    println!("serving {address}");
    if args.serve {
        loop {
            let answer = serve::until_answered(&listener, &page, None)?;
            println!("{}", answer.said);
            println!("{}", compare(&answer.bytes).map_or_else(|e| e, |()| "the bytes are this machine's".to_owned()));
        }
    }
    let browser = browser::open(&address)?;
    let answer = serve::until_answered(&listener, &page, Some(PATIENCE));
    let log = browser.close();
    let answer = answer.map_err(|e| format!("{e}\nthe browser's log:\n{log}"))?;
    print!("{}", answer.said);
    compare(&answer.bytes)?;
    println!("quickstart: the browser's payloads of QSGD and of top-k are this machine's, byte for byte");
    Ok(())
}

/// Whether the digits are those of the payloads that the CPU of this machine makes of the same gradient.
fn compare(digits: &str) -> Result<(), String> {
    // As in examples/web/src/lib.rs.
    let gradient: Vec<f32> =
        (0..10_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as f32 / 65536.0 - 0.5).collect();
    let plan = Qsgd::bits(4).bucket(512).plan(gradient.len(), Dtype::F32).map_err(|e| e.to_string())?;
    let payload = Device::cpu()
        .encode_plan(&plan, (&gradient).into(), &mut [], Seed::new(42).step(1).tensor(0))
        .map_err(|e| e.to_string())?;
    let mut residual = vec![0.125; gradient.len()];
    let sparse = Device::cpu()
        .encode_sparse_with_feedback(&TopK::fraction(0.01), &gradient, &mut residual, Seed::new(42).step(1))
        .map_err(|e| e.to_string())?;
    let (ours, theirs) = digits.split_once(' ').unwrap_or((digits, ""));
    same("QSGD", ours, payload.as_bytes())?;
    same("top-k", theirs, sparse.as_bytes())
}

fn same(codec: &str, digits: &str, expected: &[u8]) -> Result<(), String> {
    let expected: String = expected.iter().map(|byte| format!("{byte:02x}")).collect();
    if digits == expected {
        return Ok(());
    }
    let place = digits.bytes().zip(expected.bytes()).position(|(a, b)| a != b).map(|at| at / 2);
    Err(format!(
        "the browser's payload of {codec}, of {} bytes, is not this machine's of {}; they part at byte {place:?}",
        digits.len() / 2,
        expected.len() / 2
    ))
}

/// The folder with the page and its module.
fn build() -> Result<PathBuf, String> {
    let example = root().join("examples/web");
    let folder = root().join("target/web");
    let manifest = |path: &Path| vec!["--manifest-path".to_owned(), path.join("Cargo.toml").display().to_string()];
    let (mut cargo, flags) = compiler()?;
    cargo.args(["build", "--release", "--locked", "--package", "gradwire-web", "--target", TARGET]).args(flags);
    println!("building examples/web for {TARGET} in {}", folder.display());
    cargo.args(manifest(&example)).arg("--target-dir").arg(&folder).current_dir(root());
    succeed(&mut cargo, "the example could not be built")?;

    let module = folder.join(TARGET).join("release/gradwire_web.wasm");
    let page = folder.join("page");
    let mut bindgen = Command::new(env!("CARGO"));
    bindgen.args(["run", "--locked", "--package", "gradwire-bindgen"]).args(manifest(&example));
    bindgen.arg("--target-dir").arg(&folder).arg("--").arg(&module).arg(&page);
    succeed(bindgen.current_dir(root()), "no JavaScript could be made of it")?;

    let index = "index.html";
    fs::copy(example.join(index), page.join(index)).map_err(|e| format!("{index} could not be copied: {e}"))?;
    Ok(page)
}

/// A cargo that builds for a browser: this one, with the target's standard library, or the pinned nightly, which builds
/// that from its sources.
fn compiler() -> Result<(Command, &'static [&'static str]), String> {
    let installed = || {
        let output = Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output().ok()?;
        Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir().then_some(())
    };
    if installed().is_none() {
        println!("asking rustup for {TARGET}");
        // What it says is looked at by what comes next.
        let _ = Command::new("rustup").args(["target", "add", TARGET]).output();
    }
    if installed().is_some() {
        return Ok((Command::new(env!("CARGO")), &[]));
    }
    println!("rustup has no {TARGET} for this toolchain; building its standard library with the pinned nightly");
    Ok((gradwire_tools::nightly::pinned_cargo()?, &["-Zbuild-std=std,panic_abort"]))
}

#[derive(Parser)]
#[command(name = "gradwire-browser", bin_name = "cargo xtask")]
enum Cli {
    /// Run the quickstart in a browser without a window, on WebGPU, and compare its bytes with this machine's.
    Web(Args),
}

fn main() -> ExitCode {
    ending(match Cli::parse() {
        Cli::Web(args) => run(&args),
    })
}
