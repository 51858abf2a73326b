//! The tables of a model's matrices, and where their factors lie.

use crate::error::Error;

/// Entries that the columns of a factor are padded to with zeros, so that vectors need no remainder.
const PAD: usize = 16;

/// Which factor of M^ = L R^T.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// P of the paper: an entry for each row.
    Left,
    /// Q of the paper: an entry for each column.
    Right,
}

impl Side {
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }
}

/// A tensor in the table of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) compressed: bool,
    /// Its first element in the gradient.
    pub(crate) first: usize,
    /// Where its left factor starts among all, padding included. Column by column.
    pub(crate) left: usize,
    /// Where its right factor starts.
    pub(crate) right: usize,
}

impl Part {
    pub(crate) fn elements(&self) -> usize {
        self.rows * self.columns
    }

    /// From a column of the left factor to the next.
    pub(crate) fn row_stride(&self) -> usize {
        self.rows.next_multiple_of(PAD)
    }

    /// From a column of the right factor to the next.
    pub(crate) fn column_stride(&self) -> usize {
        self.columns.next_multiple_of(PAD)
    }

    /// Entries of a factor's column.
    pub(crate) fn dimension(&self, side: Side) -> usize {
        match side {
            Side::Left => self.rows,
            Side::Right => self.columns,
        }
    }

    /// From a column of a factor to the next.
    pub(crate) fn stride(&self, side: Side) -> usize {
        self.dimension(side).next_multiple_of(PAD)
    }

    /// Where a factor starts among all of its side.
    pub(crate) fn start(&self, side: Side) -> usize {
        match side {
            Side::Left => self.left,
            Side::Right => self.right,
        }
    }
}

/// The tensors of a model, and where each lies in the buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) rank: usize,
    pub(crate) parts: Vec<Part>,
    /// Of the gradient.
    pub(crate) elements: usize,
    /// Entries of all left factors, padding included.
    pub(crate) left: usize,
    /// Entries of all right factors.
    pub(crate) right: usize,
}

impl Table {
    /// Entries of all factors of a side as they are sent, without padding.
    pub(crate) fn factor_len(&self, side: Side) -> usize {
        self.compressed().map(|(_, part)| part.dimension(side) * self.rank).sum()
    }

    /// Elements that are sent as they are.
    pub(crate) fn plain_len(&self) -> usize {
        self.parts.iter().filter(|part| !part.compressed).map(Part::elements).sum()
    }

    /// Checks that a state for `found` serves these tensors.
    pub(crate) fn expect_same(&self, found: &Self) -> Result<(), Error> {
        self.expect_model(found.rank, found.parts.len())?;
        for (index, part) in found.parts.iter().enumerate() {
            self.expect_part(index, part.rows as u64, part.columns as u64, part.compressed)?;
        }
        Ok(())
    }

    /// Checks the settings that all tensors share.
    pub(crate) fn expect_model(&self, rank: usize, tensors: usize) -> Result<(), Error> {
        differ("rank", None, rank as u64, self.rank as u64)?;
        differ("number of tensors", None, tensors as u64, self.parts.len() as u64)
    }

    /// Checks a tensor. In 64 bits, since another model's may have more rows than this machine can count in a `usize`.
    pub(crate) fn expect_part(&self, index: usize, rows: u64, columns: u64, compressed: bool) -> Result<(), Error> {
        let (part, tensor) = (&self.parts[index], Some(index as u64));
        differ("number of rows", tensor, rows, part.rows as u64)?;
        differ("number of columns", tensor, columns, part.columns as u64)?;
        let [found, expected] = [compressed, part.compressed].map(|compressed| 2 * u64::from(compressed));
        differ("number of factors", tensor, found, expected)
    }

    /// The matrices that are compressed, each with its place among the tensors.
    pub(crate) fn compressed(&self) -> impl Iterator<Item = (usize, &Part)> {
        self.parts.iter().enumerate().filter(|(_, part)| part.compressed)
    }

    /// Splits a message into the factors of the matrices.
    pub(crate) fn split<'a>(&self, side: Side, mut sent: &'a [f32]) -> Vec<&'a [f32]> {
        let cut = |(_, part): (usize, &Part)| {
            let (mine, others) = sent.split_at(part.dimension(side) * self.rank);
            sent = others;
            mine
        };
        self.compressed().map(cut).collect()
    }

    /// As [`Table::split`], to be written.
    pub(crate) fn split_mut<'a>(&self, side: Side, mut sent: &'a mut [f32]) -> Vec<&'a mut [f32]> {
        let cut = |(_, part): (usize, &Part)| {
            let (mine, others) = std::mem::take(&mut sent).split_at_mut(part.dimension(side) * self.rank);
            sent = others;
            mine
        };
        self.compressed().map(cut).collect()
    }

    /// Splits padded factors, to be written.
    pub(crate) fn split_padded<'a>(&self, side: Side, mut factors: &'a mut [f32]) -> Vec<&'a mut [f32]> {
        let cut = |(_, part): (usize, &Part)| {
            let (mine, others) = std::mem::take(&mut factors).split_at_mut(part.stride(side) * self.rank);
            factors = others;
            mine
        };
        self.compressed().map(cut).collect()
    }
}

fn differ(what: &'static str, tensor: Option<u64>, found: u64, expected: u64) -> Result<(), Error> {
    if found == expected { Ok(()) } else { Err(Error::Shape { what, tensor, found, expected }) }
}
