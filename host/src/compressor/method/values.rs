//! Payloads of quantizers, checked, and memory for their values.

use super::contract::Received;
use crate::compressor::group::{Group, VALUES};
use crate::error::Error;
use crate::plan::EncodePlan;
use crate::view::PayloadView;
use crate::words::zeros;

impl<'m> Received<'m> {
    /// Checks payloads of all ranks, each rank's by these plans.
    pub(crate) fn of_plans(group: &Group, plans: &[EncodePlan], ranks: &[&[&'m [u8]]]) -> Result<Self, Error> {
        let mut all = Vec::with_capacity(ranks.len());
        for (rank, payloads) in (0..).zip(ranks) {
            let mut views = Vec::with_capacity(payloads.len());
            for (index, (plan, bytes)) in plans.iter().zip(*payloads).enumerate() {
                views.push(view(group, plan, bytes, (rank, index))?);
            }
            all.push(views);
        }
        Ok(Self::Payloads(all))
    }
}

/// Checks the payload that a rank sent of one of the group's tensors.
pub(crate) fn view<'m>(
    group: &Group,
    plan: &EncodePlan,
    bytes: &'m [u8],
    (rank, tensor): (u32, usize),
) -> Result<PayloadView<'m>, Error> {
    let view = PayloadView::from_bytes(bytes).map_err(|source| group.damaged(rank, tensor, source))?;
    if let Some(what) = plan.header().difference(view.header()) {
        return Err(group.differs(rank, tensor, what));
    }
    group.expect_finite(rank, view.is_finite())?;
    Ok(view)
}

/// Memory for this number of values, the same memory if it has the size already.
pub(crate) fn sized(values: &mut Vec<f32>, elements: usize) -> Result<&mut [f32], Error> {
    if values.len() != elements {
        *values = zeros(elements as u64, VALUES)?;
    }
    Ok(values)
}
