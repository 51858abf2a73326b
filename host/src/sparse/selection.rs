//! A selection as passes: for a caller who keeps the gradient on the device.

use super::passes::scatter;
use super::select::SelectPlan;
use crate::codec::topk::{Select, TopK};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{Limits, Pass};
use crate::session::{Role, Session, Sizes};
use crate::sparse::{SparseHeader, SparsePayload, ValueFormat};
use crate::wire::PayloadError;

/// What [`crate::Device::encode_sparse`] runs on a device, over the buffers of a session, without the payload that the host
/// makes of the entries. Made by [`TopK::selection`].
///
/// ```
/// use gradwire::plan::Limits;
/// use gradwire::{Dtype, TopK};
/// let selection = TopK::fraction(0.01).selection(1_000_000, Dtype::F32, false, &Limits::NONE)?;
/// assert_eq!(selection.entries(), 10_000);
/// // session.write(Role::Input, ...); selection.prepare(&mut session, 0)?; session.run(selection.passes())?;
/// # Ok::<(), gradwire::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    sizes: Sizes,
    table: Vec<u32>,
    passes: Vec<Pass>,
    entries: u64,
    header: SparseHeader,
    /// Whether the payload's values are those that the selection leaves.
    exact: bool,
}

impl TopK {
    /// The passes that select from a gradient of `n` elements. With feedback, what is selected from is gradient + residual,
    /// the residual becomes that sum, and zero where an entry is kept.
    ///
    /// A threshold is not offered, since how many entries it keeps is known on the device alone; nor is a look for NaN, nor
    /// values that are not sent as they are. A session on the CPU refuses these passes.
    ///
    /// # Errors
    /// As [`crate::Device::encode_sparse`]; [`Error::Keep`] for a threshold.
    pub fn selection(&self, n: usize, dtype: Dtype, feedback: bool, limits: &Limits) -> Result<Selection, Error> {
        let plan = self.plan(n, dtype, feedback)?;
        if let Select::Above(threshold) = plan.select {
            let (what, allowed) = ("a threshold as passes", "a count, a part, blocks or segments");
            return Err(Error::Keep { what, got: threshold.into(), allowed });
        }
        let select = SelectPlan::new(&plan.select, plan.n, dtype, feedback, true);
        let exact = plan.values == ValueFormat::Plain(if feedback { Dtype::F32 } else { dtype })
            || plan.values == ValueFormat::Plain(Dtype::F32);
        Ok(Selection {
            exact,
            header: plan.header(select.entries() as usize),
            sizes: select.sizes(),
            passes: select.passes(limits)?,
            entries: select.entries(),
            table: select.table().to_vec(),
        })
    }
}

impl Selection {
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

    /// What the first bytes of the workspace have to hold: copied to the device once, since the passes leave it as it is.
    pub fn table(&self) -> Vec<u8> {
        crate::words::little_endian(&self.table).into_owned()
    }

    /// The payload of entries that were copied from device memory: what [`crate::Device::encode_sparse`] makes.
    ///
    /// # Errors
    /// [`Error::Length`] for other than [`Selection::entries`] of each; [`Error::Payload`] for indices that do not rise, or
    /// are not below the number of elements; [`Error::NotExact`] for a codec that rounds or quantizes the values.
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
        let bytes: Vec<u8> = match self.header.values {
            ValueFormat::Plain(Dtype::F16) => values.iter().flat_map(|v| f16_bits(*v).to_le_bytes()).collect(),
            ValueFormat::Plain(Dtype::Bf16) => {
                values.iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect()
            }
            _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        };
        Ok(SparsePayload::seal(self.header, indices.to_vec(), &bytes))
    }

    /// How many entries are kept. Their indices and values, as f32, are then in the buffers of these names, in rising order.
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

    /// The passes that decode so many entries, from the buffers of indices and values: over zeros, or weighted onto what the
    /// output of `elements` holds.
    ///
    /// # Errors
    /// [`Error::Limit`] where the limits are too small for any entry.
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
