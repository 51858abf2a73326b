//! A selection and its decode in a caller's memory.

use std::borrow::Cow;

use super::{Piece, Work, residual, sealed};
use crate::error::Error;
use crate::plan::{Limits, Pass, Role};
use crate::sparse::selection::Selection;
use crate::wire::MAX_ELEMENTS;

/// The memory that a selection works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectBuffers<B> {
    /// The gradient. Read; holds values.
    pub gradient: B,
    /// The residual, 4 bytes per element, with feedback. Read and written; holds values.
    pub residual: Option<B>,
    /// Where the kept entries' indices go, 4 bytes each, in rising order. Written.
    pub indices: B,
    /// Where their values go, f32. Written.
    pub values: B,
    /// Scratch of [`Selection::workspace_bytes`], from a multiple of 256 bytes on, whose first bytes hold
    /// [`Selection::table`]: the selection leaves those as they are, or if it is lazy keeps there what was sent.
    pub workspace: B,
}

/// The memory of the scan for non-finite values: three pieces of [`SelectBuffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanBuffers<B> {
    /// The gradient. Read; holds values.
    pub gradient: B,
    /// The residual, with feedback. Read; written if it is settled first.
    pub residual: Option<B>,
    /// As [`SelectBuffers::workspace`].
    pub workspace: B,
}

/// The memory that settling works on: two pieces of [`SelectBuffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettleBuffers<B> {
    /// The residual. Read and written; holds values.
    pub residual: B,
    /// As [`SelectBuffers::workspace`]; its first [`Selection::table_bytes`] are enough.
    pub workspace: B,
}

/// The memory that decoding kept entries works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScatterBuffers<B> {
    /// Indices, 4 bytes each, each there once. Read. One that is not below the number of elements is not looked at.
    pub indices: B,
    /// Values, f32. Read.
    pub values: B,
    /// The gradient, f32. Written; with a weight it holds values. Without one it needs the usage `COPY_DST` on wgpu.
    pub output: B,
}

/// A selection of the largest entries, all of a model's segments in one launch set.
///
/// Once the device has come that far, `indices` and `values` hold [`Selection::entries`] entries, the same on every
/// backend, and [`Selection::seal`] makes a payload of them; [`Selection::check_end`] tells where another stream has
/// disturbed them. With feedback the residual is gradient + residual, and zero where an entry was kept; where the
/// selection [is lazy](Selection::is_lazy) that is so once it is settled. It is planned by the limits of the device
/// that runs it, else [`Error::Limit`] or [`Error::Unavailable`].
#[derive(Clone, Copy, Debug)]
pub struct Select<'s>(pub &'s Selection);

/// The scan for non-finite values of gradient + residual, where the codec refuses them
/// ([`NonFinite::Error`](crate::NonFinite::Error)): nothing under the other policy.
///
/// Once [`Selection::status_bytes`] of the workspace are copied to the host, [`Selection::check`] tells whether to go
/// on with [`Select`], which looks for nothing. A residual that is late is settled first.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'s>(pub &'s Selection);

/// What takes off the residual of a [`TopK::lazy_selection`](crate::TopK::lazy_selection) what was sent and is still in
/// it: for a checkpoint, or before anything but the next selection reads or writes it. Nothing where nothing is ever
/// late.
///
/// The next selection goes on from there. It is one read of the segments that may be late, and a sector for each entry
/// that becomes zero: [`Device::settle`](crate::Device::settle) where the state is in the caller's memory.
#[derive(Clone, Copy, Debug)]
pub struct Settle<'s>(pub &'s Selection);

/// A decode of kept entries onto a gradient: over zeros, or with a weight onto its elements.
///
/// [`Error::TooLong`] for more than 2^31 entries or elements.
#[derive(Clone, Copy, Debug)]
pub struct Scatter {
    /// How many entries.
    pub entries: u64,
    /// Elements of the gradient.
    pub elements: u64,
    /// The weight; none for a decode over zeros.
    pub weight: Option<f32>,
}

impl sealed::Sealed for Select<'_> {}
impl sealed::Sealed for Scan<'_> {}
impl sealed::Sealed for Settle<'_> {}
impl sealed::Sealed for Scatter {}

impl Work for Select<'_> {
    type Buffers<B> = SelectBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        planned(self.0.passes(), limits)
    }

    fn pieces<B>(&self, buffers: SelectBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let (selection, sizes) = (self.0, self.0.sizes());
        let indices = sizes.of(Role::Indices);
        let workspace = workspace(selection, buffers.workspace, sizes.of(Role::Workspace));
        let mut pieces = vec![
            Piece::gradient(buffers.gradient, selection.elements(), selection.dtype()),
            Piece::new("list of indices", buffers.indices, indices, [Some((Role::Indices, 0)), None]),
            Piece::floats("list of values", buffers.values, sizes.of(Role::Values) / 4, Role::Values),
            workspace,
        ];
        pieces.extend(residual_of(selection, buffers.residual)?);
        Ok(pieces)
    }
}

impl Work for Scan<'_> {
    type Buffers<B> = ScanBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        planned(self.0.scan_passes(), limits)
    }

    fn pieces<B>(&self, buffers: ScanBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let selection = self.0;
        let mut workspace = workspace(selection, buffers.workspace, selection.workspace_bytes());
        workspace.roles[1] = Some((Role::Status, selection.status_bytes().start));
        let gradient = Piece::gradient(buffers.gradient, selection.elements(), selection.dtype());
        let mut pieces = vec![gradient, workspace];
        pieces.extend(residual_of(selection, buffers.residual)?);
        Ok(pieces)
    }
}

impl Work for Settle<'_> {
    type Buffers<B> = SettleBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        planned(self.0.settle_passes(), limits)
    }

    fn pieces<B>(&self, buffers: SettleBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        let mut pieces = vec![workspace(self.0, buffers.workspace, self.0.table_bytes())];
        pieces.extend(residual_of(self.0, Some(buffers.residual))?);
        Ok(pieces)
    }
}

impl Work for Scatter {
    type Buffers<B> = ScatterBuffers<B>;

    fn passes(&self, limits: &Limits) -> Result<Cow<'_, [Pass]>, Error> {
        self.check()?;
        Selection::scatter(self.entries, self.weight, self.elements, limits).map(Cow::Owned)
    }

    fn pieces<B>(&self, buffers: ScatterBuffers<B>) -> Result<Vec<Piece<B>>, Error> {
        self.check()?;
        // Over zeros it is filled with them first.
        let output = Piece::floats("output", buffers.output, self.elements, Role::Output);
        let output = if self.weight.is_none() { output.scratch(0, 4 * self.elements) } else { output.updated() };
        let indices =
            Piece::new("list of indices", buffers.indices, 4 * self.entries, [Some((Role::Indices, 0)), None]);
        Ok(vec![
            indices.read(),
            Piece::floats("list of values", buffers.values, self.entries, Role::Values).read(),
            output,
        ])
    }
}

impl Scatter {
    /// Refuses lengths that no gradient has.
    fn check(&self) -> Result<(), Error> {
        let longest = self.entries.max(self.elements);
        if longest > MAX_ELEMENTS { Err(Error::TooLong { got: longest }) } else { Ok(()) }
    }
}

/// Passes that were planned beforehand, perhaps by the limits of another device.
fn planned<'p>(passes: &'p [Pass], limits: &Limits) -> Result<Cow<'p, [Pass]>, Error> {
    limits.check(passes).map(|()| Cow::Borrowed(passes))
}

fn residual_of<B>(selection: &Selection, buffer: Option<B>) -> Result<Option<Piece<B>>, Error> {
    let bytes = selection.sizes().of(Role::Residual);
    residual(bytes > 0, buffer, bytes / 4)
}

/// The workspace, whose table is read; where the selection is lazy, what was sent is kept in the table.
fn workspace<B>(selection: &Selection, buffer: B, needed: u64) -> Piece<B> {
    let table = selection.table_bytes();
    let piece = Piece::new("workspace", buffer, needed, [Some((Role::Workspace, 0)), None]);
    Piece { alignment: 256, ..piece.scratch(table, if selection.is_lazy() { table } else { 0 }) }
}
