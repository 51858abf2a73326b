//! What belongs to a step under way: its own factors, so that a step that is given up leaves nothing behind.

use crate::plan::Side;

/// The factors of a step, which become the state's when the step is finished, and what is sent of tensors that are not
/// compressed in place of what is kept. Empty between steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StepFactors {
    pub(crate) left: Vec<f32>,
    pub(crate) right: Vec<f32>,
    /// Elements of tensors that are not compressed which are sent as something other than finite: `sums` has what stays
    /// behind. In the order of the elements, of which there are at most 2^31.
    pub(crate) odd: Vec<(u32, f32)>,
}

impl StepFactors {
    pub(crate) fn factors(&mut self, side: Side) -> &mut Vec<f32> {
        match side {
            Side::Left => &mut self.left,
            Side::Right => &mut self.right,
        }
    }

    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(crate) fn of(&self, side: Side) -> &[f32] {
        match side {
            Side::Left => &self.left,
            Side::Right => &self.right,
        }
    }

    pub(crate) fn clear(&mut self) {
        let Self { left, right, odd } = self;
        left.clear();
        right.clear();
        odd.clear();
    }
}
