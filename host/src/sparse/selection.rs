//! A selection as passes: for a caller who keeps the gradient on the device.

use std::ops::Range;

use super::entries::ENTRIES;
use super::passes::{refuse_stuck, scan_passes, scatter, waits};
use super::payload::SparsePayload;
use super::select::SelectPlan;
use crate::codec::topk::{Select, SparsePlan, TopK};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{ALIGNMENT, Limits, Pass, Role, STATUS_BYTES, Sizes, refuse_not_finite};
use crate::session::Session;
use crate::wire::{PayloadError, SparseHeader, ValueFormat};
use crate::words::{copied, from_little_endian, reserved};

/// What [`crate::Device::encode_sparse`] runs on a device, over the buffers of a session, without the payload that the
/// host makes of the entries. Made by [`TopK::selection`].
///
/// ```
/// use gradwire::plan::Limits;
/// use gradwire::{Dtype, TopK};
/// // Best the limits of the device that is to run it; these are of any CUDA device.
/// let selection = TopK::fraction(0.01).selection(1_000_000, Dtype::F32, false, &Limits::NONE)?;
/// assert_eq!(selection.entries(), 10_000);
/// // session.write(Role::Input, ...); selection.prepare(&mut session, 0)?; unsafe { session.run_trusted(selection.passes()) }?;
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    sizes: Sizes,
    table: Vec<u32>,
    passes: Vec<Pass>,
    /// The passes that subtract deferred values from the residual.
    settle: Vec<Pass>,
    /// Under the policy that refuses non-finite values: the scan for them, of a residual that is settled first.
    scan: Vec<Pass>,
    /// Where that leaves its verdict, in bytes of the workspace of a caller's.
    status_at: u64,
    /// Where workgroups leave that they waited in vain, if they wait at all.
    stuck_at: Option<u64>,
    entries: u64,
    header: SparseHeader,
    /// Whether the payload's values are those that the selection leaves.
    exact: bool,
}

impl TopK {
    /// The passes that select from a gradient of `n` elements. With feedback, what is selected from is gradient +
    /// residual, the residual becomes that sum, and zero where an entry is kept.
    ///
    /// `limits` are those of the device that is to run them: [`Device::limits`](crate::Device::limits), `Cuda::limits`
    /// or `Wgpu::limits`. By its own, a CUDA device of compute capability 7.0 and more takes four launches where
    /// segments are larger than a tile of 8192, and by [`Limits::NONE`] up to eleven.
    ///
    /// A threshold is not offered, estimated or not, since how many entries it keeps is known on the device alone. Nor
    /// is a part of each sign, nor are values that are not sent as they are. Under
    /// [`NonFinite::Error`](crate::NonFinite::Error) the scan for non-finite values is a call of its own, before the
    /// one that selects: [`Scan`](crate::embed::Scan), and [`Selection::check`]; a session has no such call, and
    /// selects whatever it finds. A session on the CPU refuses these passes.
    ///
    /// # Errors
    /// As [`crate::Device::encode_sparse`]; [`Error::Keep`] for a threshold, for an estimate of one, and for a part of
    /// each sign.
    pub fn selection(&self, n: usize, dtype: Dtype, feedback: bool, limits: &Limits) -> Result<Selection, Error> {
        self.select_in_passes(n, dtype, feedback, false, limits)
    }

    /// [`TopK::selection`] with feedback, of a residual from which the sent values are subtracted when the next
    /// selection reads it anyway: [`LazyResidual`](crate::LazyResidual) where the state is in the caller's memory.
    /// Entries are those of `selection`, bit for bit, and so is the residual once it is settled.
    ///
    /// What was sent of each segment is two words of the table that the workspace begins with. The selection leaves
    /// them there, and the next one finds them: no host is asked, so that a CUDA graph may record it and repeat it. So
    /// the workspace's first [`Selection::table_bytes`] are part of the state: they hold [`Selection::table`] before
    /// the first step, are kept from step to step, and are no other selection's. Before a checkpoint, before anything
    /// else than the next selection reads or writes the residual, and before another selection takes it over,
    /// [`Settle`](crate::embed::Settle) subtracts deferred values.
    ///
    /// Late are segments that do not lie within 8192 elements, counted from the last multiple of 32 that is not after
    /// their first. Others have their zeros at once, since the kernel that selects from them has just written there,
    /// and so have blocks that all lie so; [`Selection::is_lazy`] tells whether any segment is late. NaN and infinity
    /// are sent, and taken off, as any other entry; under [`NonFinite::Error`](crate::NonFinite::Error) the look for
    /// them settles the residual first, as it asks about that as it is: four bytes per element more, which is what
    /// being late has saved.
    ///
    /// A call that fails has queued nothing, and residual and table are as they were, but where the driver gives up in
    /// the middle: after [`Error::Backend`] of a selection both have to be restored from a checkpoint, as the residual
    /// may hold a sum of which the table tells nothing yet. A call that settles may be repeated.
    ///
    /// ```
    /// use gradwire::plan::Limits;
    /// use gradwire::{Dtype, TopK};
    /// let selection = TopK::fraction(0.001).lazy_selection(1_000_000, Dtype::F32, &Limits::NONE)?;
    /// assert!(selection.is_lazy() && selection.workspace_bytes() >= selection.table_bytes());
    /// assert_eq!(selection.table().len() as u64, selection.table_bytes());
    /// assert_eq!(selection.settle_passes().len(), 2);
    /// # Ok::<(), gradwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TopK::selection`].
    pub fn lazy_selection(&self, n: usize, dtype: Dtype, limits: &Limits) -> Result<Selection, Error> {
        self.select_in_passes(n, dtype, true, true, limits)
    }

    fn select_in_passes(
        &self,
        n: usize,
        dtype: Dtype,
        feedback: bool,
        late: bool,
        limits: &Limits,
    ) -> Result<Selection, Error> {
        let plan = self.plan(n, dtype, feedback)?;
        let what = ["an estimate as passes", "a part of each sign as passes"];
        plan.refuse_search(what, "a count, a part, blocks or segments")?;
        if let Select::Above(threshold) = plan.select {
            let (what, allowed) = ("a threshold as passes", "a count, a part, blocks or segments");
            return Err(Error::Keep { what, got: threshold.into(), allowed });
        }
        Ok(Selection::of_plan(&plan, feedback, true, late, limits)?.0)
    }
}

impl Selection {
    /// The passes of a plan, and where in the workspace they count the entries. `exact` if they leave zeros in the
    /// residual.
    pub(crate) fn of_plan(
        plan: &SparsePlan,
        feedback: bool,
        exact: bool,
        late: bool,
        limits: &Limits,
    ) -> Result<(Self, u64), Error> {
        let dtype = plan.dtype;
        let select = SelectPlan::new(&plan.select, plan.n, dtype, feedback, exact);
        let select = if late { select.late() } else { select };
        let exact = plan.values == ValueFormat::Plain(if feedback { Dtype::F32 } else { dtype })
            || plan.values == ValueFormat::Plain(Dtype::F32);
        let (mut sizes, settle, mut scan) = (select.sizes(), select.settle_passes(limits)?, Vec::new());
        let workspace = &mut sizes.0[Role::Workspace as usize];
        let status_at = workspace.next_multiple_of(ALIGNMENT);
        if plan.guarded {
            *workspace = status_at + STATUS_BYTES;
            scan.clone_from(&settle);
            scan.extend(scan_passes(plan.n as usize, dtype, feedback, limits)?);
        }
        let passes = select.passes(limits)?;
        let selection = Self {
            exact,
            header: plan.header(select.entries() as usize),
            sizes,
            stuck_at: waits(&passes).then(|| select.stuck_at()),
            passes,
            settle,
            scan,
            status_at,
            entries: select.entries(),
            table: select.table().to_vec(),
        };
        Ok((selection, select.total_at()))
    }

    /// This one of a threshold, without the passes that write entries.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(crate) fn counting(mut self) -> Self {
        SelectPlan::keep_counting(&mut self.passes);
        self
    }

    /// Bytes of each buffer.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Elements of the gradient.
    pub fn elements(&self) -> u64 {
        self.header.n
    }

    /// The type of its elements.
    pub fn dtype(&self) -> Dtype {
        self.header.dtype
    }

    /// Bytes of scratch that a selection in a caller's memory needs: a pure function of the selection.
    pub fn workspace_bytes(&self) -> u64 {
        self.sizes.of(Role::Workspace)
    }

    /// The first bytes of the workspace: copied to the device once. The passes leave it as it is, but
    /// for what those of a [`TopK::lazy_selection`] keep there.
    pub fn table(&self) -> Vec<u8> {
        crate::words::little_endian(&self.table).into_owned()
    }

    /// Bytes of [`Selection::table`]: of a [`TopK::lazy_selection`], what of the workspace is kept from step to step. A
    /// pure function of the selection.
    pub fn table_bytes(&self) -> u64 {
        4 * self.table.len() as u64
    }

    /// Whether anything may be in the residual that was sent: of a [`TopK::lazy_selection`], one of whose segments is
    /// late.
    pub fn is_lazy(&self) -> bool {
        !self.settle.is_empty()
    }

    /// The passes that take off the residual what is late, and leave in the table that nothing is. None where
    /// [`Selection::is_lazy`] is false.
    pub fn settle_passes(&self) -> &[Pass] {
        &self.settle
    }

    /// Bytes of the workspace that [`Selection::check`] reads: none but under
    /// [`NonFinite::Error`](crate::NonFinite::Error).
    pub fn status_bytes(&self) -> Range<u64> {
        let bytes = if self.scan.is_empty() { 0 } else { 4 };
        self.status_at..self.status_at + bytes
    }

    /// What a [`Scan`](crate::embed::Scan) found, under [`NonFinite::Error`](crate::NonFinite::Error): from
    /// [`Selection::status_bytes`] of the workspace, copied to the host before anything is selected. Under the other
    /// policy there is nothing to look at.
    ///
    /// # Errors
    /// [`Error::NotFinite`]: gradient and residual are as they were, and so they stay if nothing is selected;
    /// [`Error::Length`] for other than four bytes.
    pub fn check(&self, status: &[u8]) -> Result<(), Error> {
        if self.scan.is_empty() {
            return Ok(());
        }
        Error::expect_len("status of the workspace", "bytes", status.len(), 4)?;
        refuse_not_finite(from_little_endian(status)[0])
    }

    /// Bytes of the workspace that [`Selection::check_end`] reads: none if no workgroup waits for another, as on
    /// WebGPU, below compute capability 7.0 and where segments lie in tiles of 8192.
    pub fn end_bytes(&self) -> Range<u64> {
        self.stuck_at.map_or(0..0, |at| at..at + 4)
    }

    /// Whether the selection came to its end: from [`Selection::end_bytes`] of the workspace, copied to the host after
    /// the passes.
    ///
    /// Workgroups wait for one another there, for seconds at the most. In vain they wait only where two streams share a
    /// workspace, or where a pass was left out. It need not be looked at in every step: a selection that is used as
    /// documented always ends.
    ///
    /// # Errors
    /// [`Error::Stuck`]: of segments that are larger than a tile of 8192 nothing was selected. Indices and values are
    /// of no use, and so is the residual, which has to be restored, with the table if it [is
    /// lazy](Selection::is_lazy). [`Error::Length`] for other than as many bytes.
    pub fn check_end(&self, bytes: &[u8]) -> Result<(), Error> {
        let range = self.end_bytes();
        Error::expect_len("end of the selection", "bytes", bytes.len(), range.end - range.start)?;
        refuse_stuck(from_little_endian(bytes).first().copied().unwrap_or(0))
    }

    pub(crate) fn scan_passes(&self) -> &[Pass] {
        &self.scan
    }

    /// The payload of entries that were copied from device memory: what [`crate::Device::encode_sparse`] makes.
    ///
    /// # Errors
    /// [`Error::Length`] for other than [`Selection::entries`] of each; [`Error::Payload`] for indices that do not
    /// rise, or are not below the number of elements; [`Error::NotExact`] for a codec that rounds or quantizes the
    /// values.
    pub fn seal(&self, indices: &[u32], values: &[f32]) -> Result<SparsePayload, Error> {
        if !self.exact {
            return Err(Error::NotExact);
        }
        Error::expect_len("list of indices", "of them", indices.len(), self.entries)?;
        Error::expect_len("list of values", "of them", values.len(), self.entries)?;
        let rising = indices.windows(2).position(|pair| pair[0] >= pair[1]).map(|at| at + 1);
        let beyond = indices.iter().position(|index| u64::from(*index) >= self.header.n);
        let wrong = |at: usize, what| Err(PayloadError::Index { at: at as u64, what }.into());
        match (rising, beyond) {
            (Some(at), _) => return wrong(at, "is not above the one before it"),
            (None, Some(at)) => return wrong(at, "is not below the number of elements"),
            (None, None) => {}
        }
        let mut bytes: Vec<u8> = reserved(4 * values.len(), ENTRIES)?;
        match self.header.values {
            ValueFormat::Plain(Dtype::F16) => bytes.extend(values.iter().flat_map(|v| f16_bits(*v).to_le_bytes())),
            ValueFormat::Plain(Dtype::Bf16) => {
                bytes.extend(values.iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()));
            }
            _ => bytes.extend(values.iter().flat_map(|v| v.to_le_bytes())),
        }
        SparsePayload::seal(self.header, copied(indices, ENTRIES)?, &bytes)
    }

    /// How many entries are kept. Their indices and values, as f32, are then in the buffers of these names, in rising
    /// order.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// The passes, in order. They can be run again.
    pub fn passes(&self) -> &[Pass] {
        &self.passes
    }

    /// Writes the table of segments that the passes read, once, to where the workspace begins in its buffer.
    ///
    /// # Errors
    /// As [`Session::write`].
    pub fn prepare(&self, session: &mut dyn Session, workspace_at: u64) -> Result<(), Error> {
        session.write(Role::Workspace, workspace_at, &crate::words::little_endian(&self.table))
    }

    /// The passes that decode `entries` entries, from the buffers of indices and values: over zeros, or weighted onto
    /// what the output of `elements` holds.
    ///
    /// # Errors
    /// [`Error::Limit`] if the limits are too small for any entry.
    pub fn scatter(entries: u64, weight: Option<f32>, elements: u64, limits: &Limits) -> Result<Vec<Pass>, Error> {
        scatter(entries, weight, elements, limits)
    }
}

/// The half that became this f32, NaN included.
fn f16_bits(v: f32) -> u16 {
    let bits = v.to_bits();
    if v.is_nan() {
        (bits >> 16 & 0x8000 | 0x7c00 | bits >> 13 & 0x3ff) as u16
    } else {
        half::f16::from_f32(v).to_bits()
    }
}
