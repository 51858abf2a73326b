//! The algorithm of a part.

use super::step::{Place, Step};
use super::{tree, two_phase};
use crate::collective::Collective;
use crate::compressor::failure::Failure;
use crate::compressor::part::{Method, Part};
use crate::compressor::witness::Witness;

/// The exchange of a part by its algorithm; bytes that were handed over. The gradient becomes the mean.
pub(in crate::compressor) fn run(
    host: &mut Place<'_, '_>,
    part: &mut Part,
    step: Step,
    group: &mut Witness<'_, impl Collective + ?Sized>,
    weight: f32,
) -> Result<u64, Failure> {
    match &part.method {
        Method::Sparse { .. } => tree::run(host, part, step, group, weight),
        _ => two_phase::run(host, part, step, group),
    }
}
