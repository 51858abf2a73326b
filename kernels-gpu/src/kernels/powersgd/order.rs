//! In which order the rows and columns of a tile are taken, so that accesses begin at sectors of memory wherever rows
//! begin.
//!
//! A warp reads 32 neighbouring columns of eight rows at a time. Where rows begin at any element, those would lie in
//! five sectors and not in four. So the eight rows are chosen to lie alike: 16 rows apart, as 16 elements are a sector
//! of any type. And the columns are turned: a warp begins where a sector does, and what a row has before its first
//! whole sector is taken together with its last columns, by the lanes that would begin before the row. A row of a tile
//! is then in one sector more than it must be, at most.

use super::{FOUR, Less, ROWS, Tile, terms};
use crate::device;
use crate::params::{LOW_RANK_TILE, LOW_RANK_TOGETHER};

/// Elements after which any type is at a sector again.
const SECTOR: u32 = 16;
/// Entries of each column of a factor in the stage (logarithm): those of a tile.
pub(super) const WIDTH_LOG2: u32 = 8;
pub(super) const WIDTH: u32 = 1 << WIDTH_LOG2;
/// Where in the stage the factor is that is multiplied by, and L and R.
pub(super) const FACTOR: u32 = 0;
pub(super) const LEFT: u32 = WIDTH * LOW_RANK_TOGETHER;
pub(super) const RIGHT: u32 = 2 * LEFT;
/// Groups of eight rows of a whole tile.
const GROUPS: u32 = LOW_RANK_TILE / ROWS as u32;
/// Groups of which all rows lie alike.
pub(super) const ALIKE: u32 = LOW_RANK_TILE / SECTOR / ROWS as u32;

/// The order of a tile's rows.
#[derive(Clone, Copy)]
pub(super) struct Order {
    /// From a row of a group to the next (logarithm).
    apart_log2: u32,
}

/// Eight rows.
#[derive(Clone, Copy)]
pub(super) struct Group {
    /// The first of them, in the tile.
    pub(super) row: u32,
    /// How many there are, or more.
    pub(super) rows: u32,
    /// Elements from one to the next.
    pub(super) stride: u32,
    /// By how many columns the rows begin after the start of a sector.
    turned: u32,
}

impl Order {
    #[inline(always)]
    pub(super) fn new(tile: &Tile) -> Self {
        Self { apart_log2: if tile.matrix.columns.is_multiple_of(SECTOR) { 0 } else { SECTOR.ilog2() } }
    }

    /// The place among all groups' rows of a row of the tile.
    #[inline(always)]
    pub(super) fn place(self, row: u32) -> u32 {
        if self.apart_log2 == 0 { row } else { row % SECTOR * (LOW_RANK_TILE / SECTOR) + row / SECTOR }
    }

    /// How many groups there are of which rows are there, or a few more. No constant, by which a loop would be
    /// unrolled.
    #[inline(always)]
    pub(super) fn groups(self, tile: &Tile) -> u32 {
        if self.apart_log2 == 0 { tile.rows().div_ceil(ROWS as u32) } else { device::opaque(GROUPS) }
    }

    /// The group whose rows are at places from eight times `index` on.
    #[inline(always)]
    pub(super) fn group(self, tile: &Tile, index: u32) -> Group {
        let place = index * ROWS as u32;
        let row = if self.apart_log2 == 0 {
            place
        } else {
            place / (LOW_RANK_TILE / SECTOR) + place % (LOW_RANK_TILE / SECTOR) * SECTOR
        };
        // None, where the tile ends before.
        let apart = 1 << self.apart_log2;
        let rows = ((tile.rows() + apart - 1).saturating_sub(row)) >> self.apart_log2;
        let turned = (tile.at + row * tile.matrix.columns) % SECTOR;
        Group { row, rows, stride: tile.matrix.columns << self.apart_log2, turned }
    }
}

impl Group {
    /// Eight rows one after another, not turned.
    #[inline(always)]
    pub(super) fn neighbours(tile: &Tile, row: u32) -> Self {
        Self { row, rows: tile.rows() - row, stride: tile.matrix.columns, turned: 0 }
    }

    /// The column that is taken as the `index`th.
    #[inline(always)]
    pub(super) fn column(&self, index: u32) -> u32 {
        index.wrapping_sub(self.turned) % LOW_RANK_TILE
    }

    /// How many are to be taken until all columns of the tile are.
    #[inline(always)]
    pub(super) fn columns(&self, tile: &Tile) -> u32 {
        (self.turned + tile.columns()).min(LOW_RANK_TILE)
    }

    /// Where an element of a column is, of the first row.
    #[inline(always)]
    pub(super) fn at(&self, tile: &Tile, column: u32) -> u32 {
        tile.at + self.row * tile.matrix.columns + column
    }
}

/// Where in the stage R and L are, of a column and the rows from a place on.
pub(super) struct InStage {
    pub(super) rank: u32,
    pub(super) place: u32,
    pub(super) column: u32,
}

impl<const N: usize> Less<N> for InStage {
    #[inline(always)]
    unsafe fn of(&self) -> [f32; N] {
        let mut less = [0.0; N];
        for four in 0..LOW_RANK_TOGETHER as usize / FOUR {
            let k = (four * FOUR) as u32;
            if k < self.rank {
                // SAFETY: the stage holds eight columns of R and of L.
                unsafe {
                    let right = |i: u32| device::stage_load(RIGHT + (k + i) * WIDTH + self.column);
                    let rights = [right(0), right(1), right(2), right(3)];
                    less = terms(less, four == 0, LEFT + k * WIDTH + self.place, WIDTH, rights);
                }
            }
        }
        less
    }
}

const _: () = assert!(ROWS == 8 && RIGHT + LEFT <= device::STAGE && ALIKE * SECTOR == GROUPS);
