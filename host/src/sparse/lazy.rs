//! The residual of top-k's error feedback, from which the sent values are subtracted when the next step reads it.

use gradwire_kernels::arith::topk::key;

use crate::sparse::select::Sent;

/// A residual of error feedback for [`Device::encode_sparse_lazily`](crate::Device::encode_sparse_lazily), owned by the
/// caller.
///
/// An entry that is sent as it is leaves zero in the residual. A GPU would have to write each of those zeros for
/// itself, a sector of memory for each; here they are left out, and the residual keeps gradient + residual as the
/// filter leaves it, with two words for each segment that say what was sent. The next encode takes it off as it reads.
/// What the residual is, is not changed by when it is taken off: payloads and [`LazyResidual::materialize`] are bit for
/// bit what [`Device::encode_sparse_with_feedback`](crate::Device::encode_sparse_with_feedback) gives.
///
/// ```
/// use gradwire::{Device, LazyResidual, Seed, TopK};
/// let device = Device::cpu();
/// let mut residual = LazyResidual::zeros(4);
/// let sent = device.encode_sparse_lazily(&TopK::count(1), &[4.0f32, 3.0, 0.0, -1.0], &mut residual, Seed::new(1))?;
/// assert_eq!(sent.indices(), [0]);
/// assert_eq!(residual.materialize(), [0.0, 3.0, 0.0, -1.0]); // before it is saved
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LazyResidual {
    sums: Vec<f32>,
    /// Rising, and apart from each other; only what has an entry.
    sent: Vec<Sent>,
}

impl LazyResidual {
    /// A residual of zeros, for the first step.
    pub fn zeros(elements: usize) -> Self {
        Self::from(vec![0.0; elements])
    }

    /// Its elements.
    pub fn len(&self) -> usize {
        self.sums.len()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// Whether something that was sent is yet to be taken off.
    pub fn is_pending(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Takes off what was sent, in one pass over the segments of which something is pending, and gives the residual as
    /// it is: for a checkpoint, or another codec. The next encode goes on from it.
    pub fn materialize(&mut self) -> &mut [f32] {
        take_off(&self.sent, &mut self.sums);
        self.sent.clear();
        &mut self.sums
    }

    /// Sums of which entries were sent that are still in them.
    pub(crate) fn with_pending(sums: Vec<f32>, sent: Vec<Sent>) -> Self {
        Self { sums, sent }
    }

    /// The sent values that are still to be subtracted, and the sums that have them.
    pub(crate) fn unsettled(&mut self) -> (&[Sent], &mut [f32]) {
        (&self.sent, &mut self.sums)
    }

    /// Notes that nothing is pending any more.
    pub(crate) fn settled(&mut self) {
        self.sent.clear();
    }

    /// The sent values that are still to be subtracted, of ascending segments.
    pub(crate) fn pending(&self) -> &[Sent] {
        &self.sent
    }

    /// The residual before the sent values are subtracted.
    pub(crate) fn sums(&self) -> &[f32] {
        &self.sums
    }

    /// The residual as it is.
    pub fn into_values(mut self) -> Vec<f32> {
        self.materialize();
        self.sums
    }

    /// What is pending of exactly these elements, each of which has a start and a number; `None` where something else
    /// is.
    pub(crate) fn pending_of(&self, parts: &[(u64, u64)]) -> Option<Vec<Option<Sent>>> {
        let mut found = 0;
        let of_part = |part: &(u64, u64)| {
            let sent = self.sent.binary_search_by_key(&part.0, |sent| sent.start).ok().map(|at| self.sent[at]);
            let sent = sent.filter(|sent| sent.elements == part.1);
            found += usize::from(sent.is_some());
            sent
        };
        let pending: Vec<Option<Sent>> = parts.iter().map(of_part).collect();
        (found == self.sent.len()).then_some(pending)
    }
}

impl From<Vec<f32>> for LazyResidual {
    /// A residual that was saved.
    fn from(residual: Vec<f32>) -> Self {
        Self { sums: residual, sent: Vec::new() }
    }
}

/// Makes the sent sums zero.
pub(crate) fn take_off(sent: &[Sent], sums: &mut [f32]) {
    for sent in sent {
        let range = sent.start as usize..(sent.start + sent.elements) as usize;
        for (index, sum) in range.clone().zip(&mut sums[range]) {
            let key = key(sum.to_bits());
            let was_sent = key > sent.key || (key == sent.key && index <= sent.index as usize);
            *sum = if was_sent { 0.0 } else { *sum };
        }
    }
}
