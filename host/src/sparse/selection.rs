//! A selection as passes: for a caller who keeps the gradient on the device.

use super::passes::scatter;
use super::select::SelectPlan;
use crate::codec::topk::{Select, TopK};
use crate::error::Error;
use crate::gradient::Dtype;
use crate::plan::{Limits, Pass};
use crate::session::{Role, Session, Sizes};

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
        Ok(Selection {
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
        session.write(Role::Workspace, workspace_at, &super::device::little_endian(&self.table))
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
