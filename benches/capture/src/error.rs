//! One error type for everything that can go wrong.

use std::fmt;
use std::path::PathBuf;

/// Every message says what was asked, what was found and what to do about it.
#[derive(Debug)]
pub(crate) enum CaptureError {
    /// The command line could not be understood.
    Usage(String),
    /// A file could not be read or written.
    Io { action: &'static str, path: PathBuf, hint: &'static str, source: std::io::Error },
    /// The text of the digits file is not what it should be. Lines count from 1.
    Csv { line: usize, found: String },
    /// The digits file is well formed but has too few images to train on.
    TooFewImages { needed: usize, found: usize },
    /// The tensor library refused an operation.
    Tensor(candle_core::Error),
    /// A gradient came out in a way that no healthy training run gives.
    BadGradient { name: String, found: &'static str },
    /// The gradients file could not be put together.
    Encode(String),
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(found) => write!(f, "{found}; see --help for the usage"),
            Self::Io { action, path, hint, source } => {
                write!(f, "could not {action} {}: {source}; {hint}", path.display())
            }
            Self::Csv { line, found } => write!(
                f,
                "line {line} of the digits file should be 64 pixels in 0..=16 and a label in \
                 0..=9, with commas between them, but {found}; fetch the file again as the \
                 README in benches/data describes"
            ),
            Self::TooFewImages { needed, found } => write!(
                f,
                "training needs at least {needed} images, but the digits file has {found}; \
                 use the full file of 1797 images"
            ),
            Self::Tensor(source) => write!(
                f,
                "the tensor library refused an operation: {source}; check that candle is at \
                 the version that Cargo.toml pins"
            ),
            Self::BadGradient { name, found } => write!(
                f,
                "the gradient {name} should be finite and not all zero, but {found}; nothing \
                 was written, check the learning rate and the initialisation"
            ),
            Self::Encode(found) => write!(
                f,
                "the gradients could not be put into the safetensors format: {found}; check \
                 that safetensors is at the version that Cargo.toml asks for"
            ),
        }
    }
}

impl std::error::Error for CaptureError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Tensor(source) => Some(source),
            _ => None,
        }
    }
}

impl From<candle_core::Error> for CaptureError {
    fn from(source: candle_core::Error) -> Self {
        Self::Tensor(source)
    }
}
