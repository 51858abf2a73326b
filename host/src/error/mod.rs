//! Errors, each with the request, the finding and the remedy.

mod exchange;
mod recipe;
mod saved;
mod state;

pub use self::exchange::ExchangeError;
pub use self::recipe::RecipeError;
pub use self::saved::SavedError;
pub(crate) use self::saved::{MAGIC as SAVED_MAGIC, VERSION as SAVED_VERSION};
pub use self::state::StateError;
pub(crate) use self::state::{MAGIC as STATE_MAGIC, VERSION as STATE_VERSION};
use crate::kind::BackendKind;
use crate::wire::PayloadError;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A code width that no codec packs.
    #[error("{codec} packs codes of {allowed} bits; got {got}")]
    Bits {
        /// The codec that was asked.
        codec: &'static str,
        /// The widths it packs.
        allowed: &'static str,
        /// The width that was asked for.
        got: u32,
    },
    /// A level count that the code width cannot hold.
    #[error("{bits}-bit codes of {codec} hold 1 to {max} levels; got {got}")]
    Levels {
        /// The codec that was asked.
        codec: &'static str,
        /// The code width.
        bits: u32,
        /// The most levels of that width.
        max: u32,
        /// The count that was asked for.
        got: u32,
    },
    /// A bucket size that is not supported.
    #[error("bucket must be a power of two from 32 to 8192, or the whole tensor; got {got}")]
    Bucket {
        /// The size that was asked for.
        got: usize,
    },
    /// A tensor that is one bucket, of a codec that has none.
    #[error(
        "{codec} has no bucket that is a whole tensor, since its scale is of codes, which a tensor's parts do not know; \
         use buckets of a power of two from 32 to 8192 elements"
    )]
    WholeTensor {
        /// The codec.
        codec: &'static str,
    },
    /// A bucket that no block of threads sorts in its own memory.
    #[error(
        "a bucket of quantiles must be a power of two from 256 to 4096, which a block of threads sorts in its own memory; got {}",
        got.map_or("the whole tensor".to_owned(), |elements| elements.to_string())
    )]
    SortedBucket {
        /// The size that was asked for; none for the whole tensor.
        got: Option<usize>,
    },
    /// Two tensors of a layout that share an element.
    #[error("tensors {first} and {second} of the layout both have element {element}; give each its own range")]
    Overlap {
        /// The one that begins first.
        first: usize,
        /// The other one.
        second: usize,
        /// The first element that both have.
        element: u64,
    },
    /// More elements than one tensor may have.
    #[error("a tensor may have up to 2^31 elements; got {got}: encode it in parts")]
    TooLong {
        /// Elements that were asked for.
        got: u64,
    },
    /// More entries were to be kept than there are.
    #[error("{asked} entries were to be kept, and there are {found}; keep fewer, or use clamped(), which keeps all")]
    TooFew {
        /// Entries asked for.
        asked: u64,
        /// Entries there are, in the gradient or in a block.
        found: u64,
    },
    /// Values that would have to be rounded or quantized, of a selection whose entries were made in a caller's memory.
    #[error(
        "entries that were selected in a caller's memory are sent as they are, and this codec rounds or quantizes them; \
         leave out values(..) and then_..(..), or use Device::encode_sparse"
    )]
    NotExact,
    /// Packed codes, where their length has to be known before they are made, or codes of fixed width are read.
    #[error(
        "{asked} is of codes of fixed width, and here they are to be packed, or are: leave out elias(), delta(), base3() or sparse(), and pack the payload \
         by Device::pack, or use Device::encode; what is packed, Device::unpack makes one of fixed width"
    )]
    Packed {
        /// The operation or the memory that was asked for.
        asked: &'static str,
    },
    /// Codes that cannot be packed as asked for.
    #[error("{asked} packs {takes}, and these are codes of {bits} bits of {codec}: send them as they are")]
    NotPacked {
        /// How they should be packed.
        asked: &'static str,
        /// Which codes can be packed so.
        takes: &'static str,
        /// The codec.
        codec: &'static str,
        /// Bits of a code.
        bits: u32,
    },
    /// A selection that keeps nothing that makes sense.
    #[error("{what} must be {allowed}; got {got}")]
    Keep {
        /// The setting.
        what: &'static str,
        /// The requested value.
        got: f64,
        /// The values that are allowed.
        allowed: &'static str,
    },
    /// Error feedback would diverge.
    #[error(
        "plain error feedback diverges when the codec's variance factor omega is 1 or more, and here it is {omega:.2}: \
         {remedy}"
    )]
    FeedbackDiverges {
        /// The bound on E|C(x) - x|^2 / |x|^2.
        omega: f64,
        /// What to do instead: the settings that are allowed.
        remedy: String,
    },
    /// A buffer's length does not fit the plan or the payload.
    #[error("the {what} holds {found} {unit}, but {expected} are needed; resize it to match")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// The number that it holds.
        found: u64,
        /// The number needed.
        expected: u64,
        /// The unit of both numbers.
        unit: &'static str,
    },
    /// No residual for a plan that has error feedback.
    #[error(
        "the plan has error feedback, and no residual was handed over: give it one of {expected} {unit}, zeros before the \
         first step, or make the plan without feedback"
    )]
    NoResidual {
        /// The length that the residual needs.
        expected: u64,
        /// The unit of that length: elements or bytes.
        unit: &'static str,
    },
    /// A residual for a plan that has no error feedback.
    #[error(
        "a residual of {found} elements was handed over, and the plan has no error feedback: make the plan with \
         with_feedback(), or hand over an empty slice"
    )]
    NoFeedback {
        /// Elements of the residual.
        found: u64,
    },
    /// The gradient's element type is not the plan's.
    #[error("the plan is for {expected} gradients, and this one is {found}: make a plan with its type")]
    Dtype {
        /// The type that the plan was made for.
        expected: &'static str,
        /// The type that was given.
        found: &'static str,
    },
    /// An element is NaN or infinite, under the policy that refuses it.
    #[error(
        "element {index} of the gradient (plus residual, if any) is not finite, and the policy is NonFinite::Error; nothing was encoded and the \
         residual is as it was. Skip the step, or use NonFinite::Propagate"
    )]
    NotFinite {
        /// The first such element.
        index: u64,
    },
    /// A gradient that another thread wrote while it was read. Safe Rust cannot; other languages can.
    #[error(
        "the gradient changed while it was read: {expected} entries were to be selected, and {found} were found. Let no \
         other thread write it until the call returns, or hand over a copy"
    )]
    Changed {
        /// Entries that the selection keeps.
        expected: u64,
        /// Entries that were found.
        found: u64,
    },
    /// An entry of a factor that was handed back is NaN, infinite or too large, under the policy that refuses it.
    #[error(
        "entry {index} of the reduced factor is not finite, or is 2^120 or more, and the policy is NonFinite::Error; the step \
         waits for another (low_rank_step has given it up, and changed nothing). Hand one over, or give the step up with \
         abandon(), which keeps the gradient in the residual; where that is what has grown too large, clear_residual() drops it"
    )]
    NotFiniteFactor {
        /// The first such entry.
        index: u64,
    },
    /// A sum of finite numbers is too large for f32.
    #[error(
        "element {index} of the {what} is too large for f32; nothing was changed. clear_residual() drops what a state has kept"
    )]
    Overflow {
        /// Which sum.
        what: &'static str,
        /// The first such element.
        index: u64,
    },
    /// A rank that a matrix cannot have, or that is not supported.
    #[error("a rank of 1 to {most} is possible{}; got {rank}", of_tensor(*tensor))]
    Rank {
        /// The rank that was asked for.
        rank: u32,
        /// The largest that is possible: 32, or the lesser side of the matrix.
        most: u64,
        /// Which tensor has no such rank; none if no tensor could have it.
        tensor: Option<u64>,
    },
    /// A setting out of range.
    #[error("{what} must be {allowed}; got {got}")]
    Setting {
        /// The setting.
        what: &'static str,
        /// The requested value.
        got: f64,
        /// The values that are allowed.
        allowed: &'static str,
    },
    /// A seed of one worker, where all workers need the same one.
    #[error("PowerSGD needs one seed on every worker, and this one is worker {rank}'s: leave out Seed::worker")]
    WorkerSeed {
        /// The seed's worker.
        rank: u32,
    },
    /// A state that was made for something else.
    #[error("the state's {what} is {found}{}, and {expected} is needed; start a new state, or use the one that fits", of_tensor(*tensor))]
    Shape {
        /// What differs.
        what: &'static str,
        /// At which tensor; none if it is the same for all.
        tensor: Option<u64>,
        /// The value in the state.
        found: u64,
        /// The expected value.
        expected: u64,
    },
    /// A call out of its turn.
    #[error("{asked} was called, and the state waits for {expected}; abandon() gives a step up that was begun")]
    Order {
        /// The call.
        asked: &'static str,
        /// The call or calls that would be right.
        expected: &'static str,
    },
    /// Bytes that are not a state this version reads.
    #[error("not a readable state: {0}")]
    State(#[from] StateError),
    /// What another rank sent does not fit.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// Bytes that are not a state of this compressor.
    #[error("not a readable state: {0}")]
    Saved(#[from] SavedError),
    /// A recipe that cannot be made, or cannot be used.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// Bytes that are not a payload this version reads.
    #[error("not a readable payload: {0}")]
    Payload(#[source] PayloadError),
    /// Ranks that could not work together.
    #[error("not exchanged: {0}")]
    Collective(#[from] crate::collective::CollectiveError),
    /// Payloads that cannot be summed in one pass.
    #[error(
        "payload {index} has a different {what} than payload 0; a sum needs payloads of one codec, one setting and one length"
    )]
    Mixed {
        /// Which payload.
        index: usize,
        /// What differs.
        what: &'static str,
    },
    /// A payload that is not of the kind that a plan decodes.
    #[error(
        "payload {index} has a different {what} than the plan: make the plan with DecodePlan::new(*payload.header(), ..), \
         or decode payloads of one kind"
    )]
    Other {
        /// Which payload.
        index: usize,
        /// What differs.
        what: &'static str,
    },
    /// A pass that trusts the contents of memory.
    #[error(
        "{kernel} takes on trust what it finds in memory, as a table or as what an earlier pass left, and would reach elsewhere \
         if that were wrong: run it by Session::run_trusted, whose contract says what has to be there"
    )]
    Trusting {
        /// The pass's kernel.
        kernel: &'static str,
    },
    /// The workgroups of a selection waited for one another in vain.
    #[error(
        "the selection's workgroups waited for one another in vain, so that its entries are not whole: another stream used \
         the workspace meanwhile, or a pass was left out. Give each stream a workspace of its own, queue all passes in \
         order, and restore the residual of this selection, if it is in your memory on the device"
    )]
    Stuck,
    /// A codec that plans the tensors of one model in different ways.
    #[error(
        "the codec plans tensor {index} with another {what} than tensor 0, and the tensors of one model plan share all \
         settings: make a plan for each setting"
    )]
    Uneven {
        /// Which tensor.
        index: usize,
        /// What differs.
        what: &'static str,
    },
    /// Memory that cannot serve the purpose that it was handed over for.
    #[error("the {what} at {address:#x} {problem}")]
    Memory {
        /// The purpose.
        what: &'static str,
        /// Where it begins: an address, or the offset in a buffer of wgpu's.
        address: u64,
        /// Its fault, and the remedy.
        problem: String,
    },
    /// A stream that cannot be used.
    #[error("the stream at {address:#x} {problem}")]
    Stream {
        /// Its handle.
        address: u64,
        /// Its fault, and the remedy.
        problem: String,
    },
    /// Kernels that have yet to be compiled, while the stream is being captured.
    #[error(
        "the kernels of {family} have yet to be compiled, and the stream is being captured into a CUDA graph, which a driver does \
         not allow meanwhile; nothing was queued, and the capture goes on. Call Cuda::warm_up or Cuda::warm_up_passes before the capture begins"
    )]
    Capturing {
        /// The family of kernels.
        family: &'static str,
    },
    /// A backend cannot be had on this machine.
    #[error("{backend} is not available: {reason}")]
    Unavailable {
        /// Which backend.
        backend: BackendKind,
        /// The request, the finding, and the remedy.
        reason: String,
    },
    /// A backend failed while it worked.
    #[error("{backend} failed: {reason}")]
    Backend {
        /// Which backend.
        backend: BackendKind,
        /// What failed, and what to do.
        reason: String,
    },
    /// A device's limits are too small for any part of the work.
    #[error(
        "the device's limit {limit} is {found}, and the smallest part of this tensor needs {needed}; raise it when the device is requested"
    )]
    Limit {
        /// Which limit.
        limit: &'static str,
        /// The device's limit.
        found: u64,
        /// The number needed.
        needed: u64,
    },
}

/// A conversion that cannot fail, where one that can is allowed as well.
impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

impl From<PayloadError> for Error {
    fn from(error: PayloadError) -> Self {
        match error {
            PayloadError::Memory { bytes } => Self::no_memory("a payload", bytes),
            error => Self::Payload(error),
        }
    }
}

impl Error {
    /// There is no room for a buffer of these bytes.
    pub(crate) fn no_memory(what: &str, bytes: u64) -> Self {
        let reason = format!("{bytes} bytes for {what} cannot be had; free memory, or work on fewer tensors at a time");
        Self::Backend { backend: BackendKind::Cpu, reason }
    }

    /// Checks a buffer's length.
    pub(crate) fn expect_len(what: &'static str, unit: &'static str, found: usize, expected: u64) -> Result<(), Self> {
        if found as u64 == expected { Ok(()) } else { Err(Self::Length { what, found: found as u64, expected, unit }) }
    }
}

/// Checks the residual of an encode against the plan's `elements`.
pub(crate) fn expect_residual(feedback: bool, found: usize, elements: u64) -> Result<(), Error> {
    match (feedback, found) {
        (true, 0) if elements > 0 => Err(Error::NoResidual { expected: elements, unit: "elements" }),
        (true, _) => Error::expect_len("residual", "elements", found, elements),
        (false, 0) => Ok(()),
        (false, _) => Err(Error::NoFeedback { found: found as u64 }),
    }
}

fn of_tensor(tensor: Option<u64>) -> String {
    tensor.map_or_else(String::new, |index| format!(" at tensor {index}"))
}
