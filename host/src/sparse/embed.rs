//! The memory of a caller's that a selection and its decode work on.

use super::selection::Selection;
use crate::embed::{Access, Piece};
use crate::error::Error;
use crate::plan::Role;

/// The memory that a selection works on, and what settles its residual. `B` is how a backend names a piece: `DeviceSlice` or `wgpu::BufferSlice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectBuffers<B> {
    /// The gradient. Read.
    pub gradient: B,
    /// The residual, 4 bytes per element, with feedback. Read and written.
    pub residual: Option<B>,
    /// Where the kept entries' indices go, 4 bytes each, in rising order. Written.
    pub indices: B,
    /// Where their values go, f32. Written.
    pub values: B,
    /// Scratch of [`Selection::workspace_bytes`], from a multiple of 256 bytes on, whose first bytes hold
    /// [`Selection::table`]: the selection leaves those as they are, or where it is lazy keeps there what was sent.
    pub workspace: B,
}

/// The memory that decoding kept entries works on. `B` is as in [`SelectBuffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScatterBuffers<B> {
    /// Indices, 4 bytes each, below the number of elements and each there once. Read.
    pub indices: B,
    /// Values, f32. Read.
    pub values: B,
    /// The gradient, f32. Written.
    pub output: B,
}

impl<B: Copy> SelectBuffers<B> {
    pub(crate) fn pieces(&self, selection: &Selection) -> Result<Vec<Piece<B>>, Error> {
        let sizes = selection.sizes();
        let piece = |what, buffer, role| Piece::new(what, buffer, sizes.of(role), [Some((role, 0)), None]);
        let size = selection.dtype().bytes() as u64;
        let gradient = Piece {
            alignment: size,
            needed: selection.elements() * size,
            ..piece("gradient", self.gradient, Role::Input).accessed(Access::Read)
        };
        let workspace = piece("workspace", self.workspace, Role::Workspace).accessed(Access::Scratch);
        let mut pieces = vec![
            gradient,
            piece("list of indices", self.indices, Role::Indices),
            piece("list of values", self.values, Role::Values),
            Piece { alignment: 256, ..workspace },
        ];
        pieces.extend(self.residual_piece(selection)?);
        Ok(pieces)
    }

    /// The pieces that are used where what is not finite is looked for.
    pub(crate) fn scan_pieces(&self, selection: &Selection) -> Result<Vec<Piece<B>>, Error> {
        let status = Some((Role::Status, selection.status_bytes().start));
        let mut pieces = self.pieces(selection)?;
        pieces.retain(|piece| {
            piece.roles.iter().flatten().all(|(role, _)| !matches!(role, Role::Indices | Role::Values))
        });
        for piece in &mut pieces {
            if piece.roles[0] == Some((Role::Workspace, 0)) {
                piece.roles[1] = status;
            }
        }
        Ok(pieces)
    }

    /// The pieces that are used where the residual is settled: of the workspace, the table.
    pub(crate) fn settle_pieces(&self, selection: &Selection) -> Result<Vec<Piece<B>>, Error> {
        let table =
            Piece::new("workspace", self.workspace, selection.table_bytes(), [Some((Role::Workspace, 0)), None]);
        let table = Piece { alignment: 256, ..table.accessed(Access::Scratch) };
        Ok([Some(table), self.residual_piece(selection)?].into_iter().flatten().collect())
    }

    fn residual_piece(&self, selection: &Selection) -> Result<Option<Piece<B>>, Error> {
        let needed = selection.sizes().of(Role::Residual);
        if needed == 0 {
            return Ok(None);
        }
        let missing = Error::NoResidual { expected: needed, unit: "bytes" };
        Ok(Some(Piece::new("residual", self.residual.ok_or(missing)?, needed, [Some((Role::Residual, 0)), None])))
    }
}

impl<B: Copy> ScatterBuffers<B> {
    /// `cleared` says that the output is filled with zeros first.
    pub(crate) fn pieces(&self, entries: u64, elements: u64, cleared: bool) -> Vec<Piece<B>> {
        let piece = |what, buffer, count, role| Piece::new(what, buffer, 4 * count, [Some((role, 0)), None]);
        let access = if cleared { Access::Scratch } else { Access::Write };
        vec![
            piece("list of indices", self.indices, entries, Role::Indices).accessed(Access::Read),
            piece("list of values", self.values, entries, Role::Values).accessed(Access::Read),
            piece("output", self.output, elements, Role::Output).accessed(access),
        ]
    }
}
