//! What can go wrong with a training.

use std::path::PathBuf;

/// An error of the example.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrainError {
    /// Arguments that do not fit each other or the data.
    #[error("{what} is {got}, and {allowed}")]
    Argument { what: &'static str, got: String, allowed: String },
    /// A file that could not be read.
    #[error("{} could not be read: {source}; name the gzipped csv of digits with --digits", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// A line of the digits that is not one image.
    #[error("line {line} of the digits is not 64 pixels of 0 to 16 and a label of 0 to 9: {found}")]
    Digits { line: usize, found: String },
    /// A file that is no plan.
    #[error("{} is no plan: {reason}; write one with cargo xtask plan --write", path.display())]
    Plan { path: PathBuf, reason: String },
    /// A plan for another network.
    #[error("the plan is not for this network: {reason}")]
    Messages { reason: String },
    /// A checkpoint that could not be taken up.
    #[error("{} could not be taken up: {reason}; --resume wants a file that --save has written for this network", path.display())]
    Resume { path: PathBuf, reason: String },
    /// A checkpoint that could not be written.
    #[error("{} could not be written: {source}; name another file with --save", path.display())]
    Save { path: PathBuf, source: std::io::Error },
    /// A chart that could not be drawn.
    #[error("{} could not be drawn: {reason}; name another file with --plot", path.display())]
    Plot { path: PathBuf, reason: String },
    /// A table that could not be written.
    #[error("{} could not be written: {source}; name another file with --csv", path.display())]
    Csv { path: PathBuf, source: std::io::Error },
    /// The compression, a device or the group failed.
    #[error("{0}")]
    Gradwire(#[from] gradwire::Error),
    /// An exchange beside backpropagation failed.
    #[error("{0}")]
    Background(gradwire_collectives::BackgroundError),
    /// Ranks whose parameters should be the same, and are not.
    #[error(
        "ranks 0 and {rank} ended with different parameters, first at number {at}: a rank was started with other data or \
         another release, or the exchange is at fault"
    )]
    Apart { rank: usize, at: usize },
    /// A rank that was started with other options.
    #[error("rank {rank} trains with {theirs}, and this rank with {ours}; start every rank with the same options")]
    Options { rank: u32, theirs: String, ours: String },
    /// A parameter that is no number any longer.
    #[error(
        "after step {step} the loss is not finite: the learning rate is too large for {codec}; give a smaller one with \
         --rate"
    )]
    Diverged { step: usize, codec: String },
    /// One rank, where more were set up.
    #[error(
        "MPI has one rank, and {name} is {asked}: start all of them with mpirun -n {asked}, or with srun --mpi=pmix if MPI \
         was built for it; to train alone, unset {name}"
    )]
    Alone { name: &'static str, asked: u32 },
    /// A thread that ended by a panic.
    #[error("the thread of rank {rank} panicked; its message stands above")]
    Panicked { rank: usize },
}

impl From<gradwire_collectives::BackgroundError> for TrainError {
    fn from(error: gradwire_collectives::BackgroundError) -> Self {
        match error {
            gradwire_collectives::BackgroundError::Exchange { source, .. } => Self::Gradwire(source),
            error => Self::Background(error),
        }
    }
}

impl TrainError {
    /// Whether this tells only that another rank had an error, or may have had one.
    pub(crate) fn is_of_another_rank(&self) -> bool {
        use gradwire::CollectiveError::{Late, Left, Stalled};
        matches!(self, Self::Gradwire(gradwire::Error::Collective(Late { .. } | Left { .. } | Stalled { .. })))
    }
}
