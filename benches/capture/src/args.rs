//! The command line: two paths, each with a default.

use std::path::PathBuf;

use crate::error::CaptureError;

pub(crate) const USAGE: &str = "\
Trains a small network on handwritten digits and saves its gradients.

Usage: gradwire-capture [--digits PATH] [--out PATH]

  --digits PATH  gzipped csv of 8x8 images [benches/data/digits.csv.gz]
  --out PATH     safetensors file to write [benches/data/digits_cnn.safetensors]
  -h, --help     print this text

The defaults are relative to the root of the repository.";

#[derive(Debug, PartialEq)]
pub(crate) struct Args {
    pub(crate) digits: PathBuf,
    pub(crate) out: PathBuf,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Request {
    Help,
    Run(Args),
}

pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Request, CaptureError> {
    let mut args = Args {
        digits: PathBuf::from("benches/data/digits.csv.gz"),
        out: PathBuf::from("benches/data/digits_cnn.safetensors"),
    };
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let target = match argument.as_str() {
            "-h" | "--help" => return Ok(Request::Help),
            "--digits" => &mut args.digits,
            "--out" => &mut args.out,
            other => {
                return Err(CaptureError::Usage(format!("`{other}` is not an option of this program")));
            }
        };
        match arguments.next() {
            Some(path) => *target = PathBuf::from(path),
            None => {
                return Err(CaptureError::Usage(format!(
                    "`{argument}` needs a path after it, but it is the last argument"
                )));
            }
        }
    }
    Ok(Request::Run(args))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(words: &[&str]) -> Result<Request, CaptureError> {
        parse(words.iter().map(|word| word.to_string()))
    }

    #[test]
    fn each_path_can_be_given() {
        let expected = Args { digits: PathBuf::from("a"), out: PathBuf::from("b") };
        let found = parse_words(&["--out", "b", "--digits", "a"]).unwrap();
        assert_eq!(found, Request::Run(expected));
        assert_eq!(parse_words(&["--help"]).unwrap(), Request::Help);
    }

    #[test]
    fn a_bad_command_line_is_an_error() {
        for words in [&["--steps", "3"][..], &["--out"], &["file"]] {
            let error = parse_words(words).unwrap_err().to_string();
            assert!(error.contains("--help"), "{error}");
        }
    }
}
