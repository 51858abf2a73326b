//! Memory of a step.

/// Memory that is kept from step to step.
#[derive(Clone, Debug, Default)]
pub(super) struct Workspace {
    pub(super) message: Vec<u8>,
    pub(super) gathered: Vec<Vec<u8>>,
    /// What goes uncompressed, one tensor after another.
    pub(super) whole: Vec<f32>,
    /// Bytes that were handed over in the last step.
    pub(super) bytes: u64,
}
