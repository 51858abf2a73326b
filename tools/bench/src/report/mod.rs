//! `cargo xtask report`: one binary that tells the truth about a GPU, on a machine that has nothing else of ours.

mod bench;
mod chart;
mod chosen;
mod event;
pub(crate) mod machine;
mod markdown;
mod models;
mod part;
mod peers;
pub(crate) mod place;
mod plan;
mod results;
mod resume;
mod run;
mod sanitizer;
mod schema;
pub(crate) mod stage;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use self::place::Place;

/// What the exit code says.
const EXIT_CODES: &str = "\
Exit codes:
  0  everything that was asked for ran, and every check passed
  1  a check failed, a result was wrong, or a part of the report died
  2  the arguments were wrong
  3  a device that was asked for is not here; without --device: no GPU is here. The report is written all the same
  4  the time was up before everything had run; what had is in the report";

/// What to report.
#[derive(clap::Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Args {
    /// The folder for report.json and report.md. Both are rewritten as results come, so that a kill loses nothing.
    #[arg(long, value_name = "DIR", default_value = "gradwire-report")]
    out: PathBuf,
    /// Only these: cuda, wgpu, cpu; or ptx-machine, an interpreter, to rehearse a report without a GPU.
    /// [default: cuda,wgpu,cpu]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse_device)]
    device: Vec<Place>,
    /// Minutes for everything, from 0.5 to 240. Below 3, add --quick.
    #[arg(long, default_value_t = 8.0, value_parser = parse_minutes)]
    minutes: f64,
    /// The small suite and the smallest sizes.
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// The whole suite on the artifact that a device would choose, tensors above 2^25 elements included.
    #[arg(long)]
    full: bool,
    /// Run the other implementations' scripts from here, a clone's benches/peers, in place of those in the binary.
    #[arg(long, value_name = "DIR", conflicts_with = "no_peers")]
    peers: Option<PathBuf>,
    /// Leave the other implementations out.
    #[arg(long)]
    no_peers: bool,
    /// Run the small suite under compute-sanitizer too: memcheck, racecheck and initcheck. Give it more --minutes.
    #[arg(long)]
    sanitizer: bool,
    /// Go on with a report of the same PTX and device that ran out of time: what it lacks runs, and joins it.
    #[arg(long, value_name = "REPORT.JSON")]
    resume: Option<PathBuf>,
    /// In a clone: write the README's table and chart from benches/results, and measure nothing.
    #[arg(long, conflicts_with_all = ["out", "device", "minutes", "quick", "full", "peers", "no_peers", "sanitizer", "resume"])]
    readme: bool,
    /// With --readme: compare instead of writing.
    #[arg(long, requires = "readme")]
    check: bool,
}

fn parse_device(text: &str) -> Result<Place, String> {
    let place = Place::parse(text)?;
    match place {
        // Which artifacts a device loads is what a report finds out.
        Place::Cuda(Some(_)) => Err("every target that the device can load is verified; say cuda".to_owned()),
        place => Ok(place),
    }
}

fn parse_minutes(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(minutes) if (0.5..=240.0).contains(&minutes) => Ok(minutes),
        _ => Err(format!("minutes are a number from 0.5 to 240; got `{text}`")),
    }
}

/// Reports, or writes the README's table.
pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    if args.readme {
        return results::readme(&gradwire_tools::checkout::root(), args.check).map(|()| ExitCode::SUCCESS);
    }
    run::run(args)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn refused(args: &[&str]) -> String {
        match Cli::try_parse_from([&["report"], args].concat()) {
            Ok(_) => panic!("{args:?} is accepted"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn wrong_arguments_say_what_would_be_right() {
        assert!(refused(&["--device", "gpu"]).contains("`gpu` is none of cuda, wgpu, cpu, ptx-machine"));
        assert!(refused(&["--device", "cuda:80"]).contains("every target that the device can load"));
        for minutes in ["0", "-3", "241", "nan", "soon"] {
            let error = refused(&[&format!("--minutes={minutes}")]);
            assert!(error.contains("from 0.5 to 240; got"), "{error}");
        }
        assert!(refused(&["--quick", "--full"]).contains("cannot be used with"));
        assert!(refused(&["--no-peers", "--peers", "x"]).contains("cannot be used with"));
        assert!(refused(&["--check"]).contains("--readme"));
        assert!(refused(&["--readme", "--quick"]).contains("cannot be used with"));
    }

    #[test]
    fn the_defaults_are_those_of_the_help() {
        let args = Cli::try_parse_from(["report"]).unwrap().args;
        assert_eq!((args.minutes, args.device.len()), (8.0, 0));
        let args = Cli::try_parse_from(["report", "--device", "cuda,ptx-machine:35"]).unwrap().args;
        assert_eq!(args.device, [Place::Cuda(None), Place::PtxMachine(35)]);
    }
}
