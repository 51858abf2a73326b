//! The residual of top-k's error feedback, from which what was sent is taken off when the next step reads it anyway.

use gradwire_kernels::arith::topk::key;

use crate::backend::cpu::Entries;
use crate::codec::topk::TopK;
use crate::device::Device;
use crate::error::Error;
use crate::gradient::{Dtype, Gradient};
use crate::seed::Seed;
use crate::sparse::device::{everything, is_more_than_all};
use crate::sparse::select::{SelectPlan, Sent};
use crate::sparse::{SparsePayload, ValueFormat};
use crate::words::little_endian;

/// A residual of error feedback for [`Device::encode_sparse_lazily`], owned by the caller.
///
/// An entry that is sent as it is leaves zero in the residual. A GPU would have to write each of those zeros for itself, a
/// sector of memory for each; here they are left out, and the residual keeps gradient + residual as the filter leaves it, with two
/// words for each segment that say what was sent. The next encode takes it off as it reads. What the residual is, is not
/// changed by when it is taken off: payloads and [`LazyResidual::materialize`] are bit for bit what
/// [`Device::encode_sparse_with_feedback`] gives.
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

    /// Takes off what was sent, in one pass over the segments of which something is pending, and gives the residual as it is:
    /// for a checkpoint, or another codec. The next encode goes on from it.
    pub fn materialize(&mut self) -> &mut [f32] {
        for sent in self.sent.drain(..) {
            let range = sent.start as usize..(sent.start + sent.elements) as usize;
            for (index, sum) in range.clone().zip(&mut self.sums[range]) {
                let key = key(sum.to_bits());
                let was_sent = key > sent.key || (key == sent.key && index <= sent.index as usize);
                *sum = if was_sent { 0.0 } else { *sum };
            }
        }
        &mut self.sums
    }

    /// What is yet to be taken off, of segments that rise.
    pub(super) fn pending(&self) -> &[Sent] {
        &self.sent
    }

    /// The residual with what was sent still in it.
    pub(super) fn sums(&self) -> &[f32] {
        &self.sums
    }

    /// The residual as it is.
    pub fn into_values(mut self) -> Vec<f32> {
        self.materialize();
        self.sums
    }

    /// What is pending of exactly these elements, each of which has a start and a number; `None` where something else is.
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

/// What entries, all that were sent, say of each of some parts.
fn sent_of(entries: &Entries, parts: &[(u64, u64)]) -> Vec<Sent> {
    let of_part = |&(start, elements): &(u64, u64)| {
        let at = |element: u64| entries.indices.partition_point(|i| u64::from(*i) < element);
        let range = at(start)..at(start + elements);
        let keys = entries.bits[range.clone()].iter().map(|bits| key(*bits)).zip(&entries.indices[range]);
        // Of the lowest key the last one: ties were kept from the first on.
        let last = keys.min_by(|(a, i), (b, j)| a.cmp(b).then(j.cmp(i)));
        last.map(|(key, index)| Sent { start, elements, key, index: *index })
    };
    let mut sent: Vec<Sent> = parts.iter().filter_map(of_part).collect();
    sent.sort_unstable_by_key(|sent| sent.start);
    sent
}

impl Device {
    /// As [`Device::encode_sparse_with_feedback`], of a residual from which what was sent is taken off as late as can be: the
    /// same payloads, and the same residual.
    ///
    /// It is late on a GPU where values are sent as they are ([`TopK`] as it comes), of everything but blocks of up to 8192
    /// elements, whose kernel has them at hand. Rounded and quantized values leave something behind that is not zero, and the CPU
    /// goes over the entries anyway: there the residual is up to date at once. Codec and device may change from step to step; where
    /// the segments change, what is pending is taken off first.
    ///
    /// # Errors
    /// As [`Device::encode_sparse_with_feedback`], and then the residual is as it was.
    pub fn encode_sparse_lazily<'g>(
        &self,
        codec: &TopK,
        gradient: impl Into<Gradient<'g>>,
        residual: &mut LazyResidual,
        seed: Seed,
    ) -> Result<SparsePayload, Error> {
        let gradient = gradient.into();
        let plan = codec.plan(gradient.len(), gradient.dtype(), true)?;
        Error::expect_len("residual", "elements", residual.len(), plan.n)?;
        if self.as_cpu().is_some() || plan.values != ValueFormat::Plain(Dtype::F32) {
            return self.encode_sparse_with_feedback(codec, gradient, residual.materialize(), seed);
        }
        let select = SelectPlan::new(&plan.select, plan.n, gradient.dtype(), true, true);
        let parts = select.parts();
        // A pass that looks for what is not finite before the filter takes the residual as it stands.
        let looks_first = plan.guarded && !plan.select.keeps_some_of_all();
        let pending = if looks_first { None } else { residual.pending_of(&parts) };
        let select = select.lazily(&pending.unwrap_or_else(|| {
            residual.materialize();
            vec![None; parts.len()]
        }));
        let mut sums = residual.sums.clone();
        let entries = match self.select_by(&select, &plan, gradient, Some(&mut sums)) {
            // Which element is the first has to be told of the residual as it is.
            Err(Error::NotFinite { .. }) if residual.is_pending() => {
                return self.encode_sparse_with_feedback(codec, gradient, residual.materialize(), seed);
            }
            outcome => outcome?,
        };
        let all = is_more_than_all(&plan, &entries);
        let chosen = if all { everything(Gradient::F32(&sums)) } else { entries };
        let sent = if all { Vec::new() } else { sent_of(&chosen, &parts) };
        if all {
            sums.fill(0.0);
        }
        let values = little_endian(&chosen.bits);
        let payload = SparsePayload::seal(plan.header(chosen.bits.len()), chosen.indices, &values);
        *residual = LazyResidual { sums, sent };
        Ok(payload)
    }
}
